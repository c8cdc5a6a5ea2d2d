"""Memory outside PyTorch by library, as text and HTML."""

from __future__ import annotations

import dataclasses

from fakes.reports import report
from ipygpumem.core.reading import make_accuracy
from ipygpumem.core.tables import html_tables, text_tables
from ipygpumem.features.outside.model import LibraryMemory, PoolMemory, balance
from ipygpumem.features.outside.table import outside_sentence, outside_table
from ipygpumem.features.report.short_report import ShortReport
from ipygpumem.features.report.table import report_tables

MIB = 1 << 20
LIBRARIES = (
    LibraryMemory("NCCL", "libnccl.so.2", "device", 200 * MIB, 200 * MIB, 200 * MIB, 0, 100),
    LibraryMemory("cuFFT", "libcufft.so.12", "device", 0, 11 * MIB, 11 * MIB, 11 * MIB, 6),
    LibraryMemory("CuPy", "runtime.so", "device", 32 * MIB, 96 * MIB, 128 * MIB, 96 * MIB, 2, pooled=True),
    LibraryMemory("cuDNN", "libcudnn_graph.so.9", "device", 20_000, 20_000, 20_000, 0, 4),
    LibraryMemory("libmine.so", "libmine.so", "managed", 512 * MIB, 512 * MIB, 512 * MIB, 0, 1),
)
POOLS = (PoolMemory("CuPy's pool", 256 * MIB, 200 * MIB, 300 * MIB, None, make_accuracy("exact", "cupy")),)


def with_libraries(libraries=LIBRARIES, pools=POOLS, trust=None, **values):
    base = report(**values)
    memory = balance(
        base.devices["cuda:0"],
        libraries,
        pools,
        peak=250 * MIB,
        reserved=40 * MIB if libraries else None,
        graphs=None,
        seconds=0.0,
        grade=trust or make_accuracy("exact", "CUPTI"),
    )
    return dataclasses.replace(base, libraries=(memory,))


TABLE = """\
cuda:0 outside PyTorch, by library
change peak allocated freed allocations
NCCL +200.0 MiB +200.0 MiB 200.0 MiB 0.0 MiB 100 libnccl.so.2
CuPy, from a CUDA memory pool +32.0 MiB +96.0 MiB 128.0 MiB 96.0 MiB 2 runtime.so
cuFFT 0 +11.0 MiB 11.0 MiB 11.0 MiB 6 libcufft.so.12
1 smaller <0.1 MiB 4
unused in CUDA's memory pools +8.0 MiB
CUDA context, kernel code, local memory +16.0 MiB
outside PyTorch +256.0 MiB
managed memory, on the device or the host
libmine.so +512.0 MiB +512.0 MiB 512.0 MiB 0.0 MiB 1
memory pools, from their own counters
CuPy's pool +256.0 MiB 300.0 MiB now, in use +200.0 MiB
CUPTI does not record memory of the CUDA context, kernel code and stacks, or memory created with cuMemCreate"""
"""The text of the table with single spaces."""


def test_table_rows():
    changed = with_libraries()
    table = outside_table(changed.libraries[0], changed.devices["cuda:0"])
    assert [" ".join(line.split()) for line in text_tables([table]).splitlines()] == TABLE.splitlines()


def test_table_is_below_table_of_its_device():
    changed = with_libraries()
    titles = [table.title.partition("   ")[0] for table in report_tables(changed)]
    assert titles == ["cuda:0", "cuda:0 outside PyTorch, by library", "host memory of this process"]
    assert "libnccl.so.2" in html_tables(report_tables(changed))


def test_sentence_for_each_device():
    changed = with_libraries()
    sentence = outside_sentence(changed.libraries[0])
    assert sentence == (
        "cuda:0 outside PyTorch: libmine.so, managed memory +512.0 MiB · NCCL +200.0 MiB in 100 allocations · "
        "CuPy +32.0 MiB in 2 allocations (peak +96.0 MiB) · cuFFT peak +11.0 MiB in 6 allocations · "
        "unused in CUDA's memory pools +8.0 MiB · CUDA context, kernel code, local memory +16.0 MiB"
    )
    assert sentence in ShortReport(changed).text().splitlines()
    assert "NCCL +200.0 MiB in 100 allocations" in ShortReport(changed).html()


def test_only_pool_counters_are_shown_without_records():
    changed = with_libraries((), trust=make_accuracy("unknown", "llvmlite is not installed"))
    assert outside_sentence(changed.libraries[0]) == "cuda:0 outside PyTorch: CuPy's pool +256.0 MiB"
    text = text_tables([outside_table(changed.libraries[0], changed.devices["cuda:0"])])
    assert "not attributed to a library" in text
    assert "kernel code" not in text


def test_report_without_libraries():
    assert len(ShortReport(report()).text().splitlines()) == 1
    assert len(report_tables(report())) == 2


def test_remainder_of_incomplete_records_may_belong_to_a_library():
    changed = with_libraries(trust=make_accuracy("sampled", "records until CUPTI failed"))
    text = text_tables([outside_table(changed.libraries[0], changed.devices["cuda:0"])])
    sentence = outside_sentence(changed.libraries[0])
    for output in (text, sentence):
        assert "kernel code" not in output
        assert "not attributed to a library" in output
    assert "not attributed to a library +16.0 MiB" in sentence
