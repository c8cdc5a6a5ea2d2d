"""Lines of code at the peak: the values add up to the allocator's counter, and the labels are readable."""

from __future__ import annotations

import re
from dataclasses import replace

import ipygpumem
from ipygpumem import Snapshot
from ipygpumem.core.tables import text_tables
from ipygpumem.core.units import MIB
from ipygpumem.features.lines.model import AllocationSite
from ipygpumem.features.lines.peak import largest_lines, lines_at_peak, lines_reaching_peak, peak_lines
from ipygpumem.features.report.table import peak_lines_tables


def allocate_and_free(fake_gpu):
    block = fake_gpu.alloc(3 * MIB + 100)
    for _ in range(4):
        fake_gpu.free(fake_gpu.alloc(20 * MIB))
    return block


def record(path, fake_gpu, **options):
    with ipygpumem.measure(snapshot=path, **options) as m:
        fake_gpu.free(allocate_and_free(fake_gpu))
    return m.report, Snapshot.load(path)


def test_lines_add_up_to_the_counter(fake_gpu, tmp_path):
    before = fake_gpu.alloc(5 * MIB)
    report, snapshot = record(tmp_path / "x.pickle", fake_gpu)
    peak = peak_lines(snapshot, report.devices["cuda:0"])
    assert peak.device == "cuda:0"
    assert peak.allocated == report.devices["cuda:0"].high.allocated == 28 * MIB + 512
    assert sum(line.amount for line in (*peak.lines, peak.rest)) + peak.rounding + peak.pending == peak.allocated
    assert peak.rounding == 412
    assert [line.amount for line in peak.lines[:2]] == [20 * MIB, 5 * MIB]
    assert peak.lines[0].label.startswith("lines/test_peak.py:")
    assert "allocate_and_free()" in peak.lines[0].label
    text = text_tables(peak_lines_tables([peak]))
    assert "cuda:0 at its peak, by line of code" in text
    assert "rounding" not in text, "412 bytes are 0.0 MiB"
    text = text_tables(peak_lines_tables([replace(peak, rounding=MIB)]))
    assert re.search(r"rounding by the allocator +1\.0 MiB", text)
    fake_gpu.free(before)


def test_lines_at_peak_and_lines_that_reach_it(fake_gpu, tmp_path):
    fake_gpu.free(fake_gpu.alloc(MIB))
    _, snapshot = record(tmp_path / "x.pickle", fake_gpu)
    first, second = lines_at_peak(snapshot, 0)
    assert (first.amount, first.blocks, second.amount) == (20 * MIB, 1, 3 * MIB + 100)
    assert lines_reaching_peak(snapshot, 0) == (first,)
    assert first.known


def test_lines_are_unknown_without_stacks(fake_gpu, tmp_path):
    fake_gpu.free(fake_gpu.alloc(MIB))
    report, snapshot = record(tmp_path / "x.pickle", fake_gpu, stacks="none")
    assert peak_lines(snapshot, report.devices["cuda:0"]) is None
    assert not any(line.known for line in lines_at_peak(snapshot, 0))


def test_no_lines_for_bounded_peak(fake_gpu, tmp_path):
    fake_gpu.free(fake_gpu.alloc(50 * MIB))
    report, snapshot = record(tmp_path / "x.pickle", fake_gpu, peaks="untouched")
    assert peak_lines(snapshot, report.devices["cuda:0"]) is None


def test_largest_lines():
    lines = [AllocationSite(f"a.py:{number}", 10 - number, 1) for number in range(4)]
    assert largest_lines(lines, 2) == ((lines[0], lines[1]), AllocationSite("other lines", 8 + 7, 2))
    assert largest_lines(lines, 9) == (tuple(lines), AllocationSite("other lines", 0, 0))
