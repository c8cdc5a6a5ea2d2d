"""The lines at the peak: they add up to the counter, and are left out where they would not."""

import ipygpumem
from ipygpumem.core.units import MIB
from ipygpumem.display.table import report_tables, text_tables
from ipygpumem.features.lines.peak import peak_lines


def work(fake_gpu):
    kept = fake_gpu.alloc(3 * MIB + 100)
    for _ in range(4):
        fake_gpu.free(fake_gpu.alloc(20 * MIB))
    return kept


def test_the_lines_add_up_to_the_counter(fake_gpu, tmp_path):
    before = fake_gpu.alloc(5 * MIB)
    with ipygpumem.measure(snapshot=tmp_path / "x.pickle") as m:
        kept = work(fake_gpu)
    [peak] = peak_lines(m.report)
    assert peak.device == "cuda:0"
    assert peak.allocated == m.report.devices["cuda:0"].high.counters.allocated == 28 * MIB + 512
    parts = [*(line.amount for line in peak.lines), peak.rest.amount, peak.rounding, peak.pending]
    assert sum(parts) == peak.allocated
    assert peak.rounding == 412
    assert [line.amount for line in peak.lines[:2]] == [20 * MIB, 5 * MIB]
    assert "test_peak.py" in peak.lines[0].label
    text = text_tables(report_tables(m.report, [peak]))
    assert "cuda:0 at its peak, by line of code" in text
    assert "rounding by the allocator" in text
    fake_gpu.free(kept)
    fake_gpu.free(before)


def test_no_lines_without_a_recording_or_without_stacks(fake_gpu, tmp_path):
    fake_gpu.free(fake_gpu.alloc(MIB))
    with ipygpumem.measure() as m:
        fake_gpu.free(work(fake_gpu))
    assert peak_lines(m.report) == []
    with ipygpumem.measure(snapshot=tmp_path / "x.pickle", stacks="none") as m:
        fake_gpu.free(work(fake_gpu))
    assert peak_lines(m.report) == []


def test_no_lines_where_events_are_missing_or_the_file_is_gone(fake_gpu, tmp_path):
    fake_gpu.free(fake_gpu.alloc(MIB))
    with ipygpumem.measure(snapshot=tmp_path / "x.pickle", max_entries=3) as m:
        fake_gpu.free(work(fake_gpu))
    assert m.report.recording.dropped > 0
    assert peak_lines(m.report) == []
    with ipygpumem.measure(snapshot=tmp_path / "y.pickle") as m:
        fake_gpu.free(work(fake_gpu))
    (tmp_path / "y.pickle").write_text("no snapshot")
    assert peak_lines(m.report) == []
