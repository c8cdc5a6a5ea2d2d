"""The tables of a report and of a reading as text."""

from __future__ import annotations

from textwrap import dedent

from fakes.reports import MIB, after, before, report
from ipygpumem.core.reading import Baseline, HostReading, Reading
from ipygpumem.core.tables import text_tables
from ipygpumem.features.report.table import breakdown_tables, report_tables


def text(table):
    return "\n".join(line.rstrip() for line in table.splitlines()) + "\n"


def test_report_tables():
    low, high = HostReading(200 * MIB, 200 * MIB, 0), HostReading(210 * MIB, 250 * MIB, 8 * MIB)
    assert text(text_tables(report_tables(report(host=(low, high), notes=("a note",))))) == dedent("""\
        cuda:0   In [7], 2.31 s
                                   change      peak        now
          allocated (tensors)  +400.0 MiB  +1.2 GiB  500.0 MiB
          cached                +64.0 MiB             84.0 MiB
          outside PyTorch      +256.0 MiB            942.0 MiB
          other processes               0             70.0 MiB
          unattributed                  0              9.0 MiB
          driver reserved               0            615.0 MiB
        device used            +720.0 MiB              2.2 GiB
        free                   -720.0 MiB            138.2 GiB

        host memory of this process
                                change       peak        now
          resident (RSS)     +10.0 MiB  +50.0 MiB  210.0 MiB
          pinned by PyTorch   +8.0 MiB               8.0 MiB
        a note
        """)


def test_inexact_values_are_marked_and_explained():
    unattributed = {"process": None, "others": None, "mode": "device", "why": "NVML lists no process"}
    table = text(text_tables(report_tables(report(before(**unattributed), after(**unattributed), exact=False))[:1]))
    assert table == dedent("""\
        cuda:0   In [7], 2.31 s
                                   change              peak         now
          allocated (tensors)  +400.0 MiB  at most +1.2 GiB   500.0 MiB
          cached                +64.0 MiB                      84.0 MiB
          outside PyTorch      +256.0 MiB                    1021.0 MiB ~
          other processes         unknown                       unknown
          unattributed            unknown                       unknown
          driver reserved               0                     615.0 MiB
        device used            +720.0 MiB                       2.2 GiB
        free                   -720.0 MiB                     138.2 GiB
        ~ may include the memory of other processes: NVML lists no process
        unknown: per-process memory usage is unknown: NVML lists no process
        at most: the peak counters were not reset (peaks='untouched'), and an earlier peak was higher
        """)


def test_values_from_two_sources_are_not_subtracted():
    other_source = {"process": None, "others": None, "mode": "device", "why": "GPU is lost", "source": "cudaMemGetInfo"}
    table = text_tables(report_tables(report(end=after(**other_source, used=1605 * MIB, driver_reserved=None)))[:1])
    changes = {
        line.split("  ")[1 if line.startswith("  ") else 0]: line.split()[-4:] for line in table.splitlines()[2:]
    }
    for label in ("outside PyTorch", "device used", "free"):
        assert "unknown" in changes[label]
    assert any(line.split() == ["driver", "reserved", "unknown", "unknown"] for line in table.splitlines())


def test_breakdown_tables():
    reading = before()
    base = Baseline(Reading(0.0, {"cuda:0": before(process=766 * MIB)}, HostReading()), "cuda:0", "NVIDIA H200",
                    context=580 * MIB, kernels=66 * MIB)  # fmt: skip
    host = HostReading(200 * MIB, 300 * MIB, total=24_000 * MIB, available=12_000 * MIB, pinned=0)
    idle = before("cuda:1", context=False)
    tables = breakdown_tables(Reading(1.0, {"cuda:0": reading, "cuda:1": idle}, host), base)
    assert text(text_tables(tables)) == dedent("""\
        cuda:0 NVIDIA H200
                                         now
        device total               140.4 GiB
        free                       138.9 GiB
        used                         1.5 GiB
          driver reserved          615.0 MiB
          this process             806.0 MiB
            PyTorch reserved       120.0 MiB
              allocated (tensors)  100.0 MiB
              cached                20.0 MiB
            outside PyTorch        686.0 MiB
              CUDA context         580.0 MiB
              first kernels         66.0 MiB
              since the baseline    40.0 MiB
          other processes           70.0 MiB
          unattributed               9.0 MiB

        host memory
                                    now
        machine total          23.4 GiB
        available              11.7 GiB
          this process (RSS)  200.0 MiB
          its peak so far     300.0 MiB
        not used by this process: cuda:1
        """)


def test_breakdown_tables_without_a_gpu():
    host = Reading(1.0, {}, HostReading(200 * MIB, 300 * MIB, total=24_000 * MIB, available=12_000 * MIB))
    table = text_tables(breakdown_tables(host, Baseline(host, note="torch finds no NVIDIA GPU")))
    assert table.endswith("\nno GPU: torch finds no NVIDIA GPU")
