"""Memory outside PyTorch by library, as text and HTML."""

from __future__ import annotations

import dataclasses

from fakes.facts import report
from ipygpumem.core.grade import grade
from ipygpumem.display.html import html_tables
from ipygpumem.display.table import text_tables
from ipygpumem.features.outside.model import LibraryMemory, PoolMemory, balance
from ipygpumem.features.outside.table import outside_sentences, outside_table, with_outside
from ipygpumem.features.report.line import html_line, text_line
from ipygpumem.features.report.table import report_tables

MIB = 1 << 20
LIBRARIES = (
    LibraryMemory("NCCL", "libnccl.so.2", "device", 200 * MIB, 200 * MIB, 200 * MIB, 0, 100),
    LibraryMemory("cuFFT", "libcufft.so.12", "device", 0, 11 * MIB, 11 * MIB, 11 * MIB, 6),
    LibraryMemory("CuPy", "runtime.so", "device", 32 * MIB, 96 * MIB, 128 * MIB, 96 * MIB, 2, pooled=True),
    LibraryMemory("cuDNN", "libcudnn_graph.so.9", "device", 20_000, 20_000, 20_000, 0, 4),
    LibraryMemory("libmine.so", "libmine.so", "managed", 512 * MIB, 512 * MIB, 512 * MIB, 0, 1),
)
POOLS = (PoolMemory("CuPy's pool", 256 * MIB, 200 * MIB, 300 * MIB, None, grade("exact", "cupy")),)


def with_libraries(libraries=LIBRARIES, pools=POOLS, trust=None, **facts):
    one = report(**facts)
    told = balance(
        one.devices["cuda:0"],
        libraries,
        pools,
        peak=250 * MIB,
        reserved=40 * MIB if libraries else None,
        graphs=None,
        seconds=0.0,
        grade=trust or grade("exact", "CUPTI"),
    )
    return dataclasses.replace(one, libraries=(told,))


TABLE = """\
cuda:0 outside PyTorch, by library
change peak allocated freed allocations
NCCL +200.0 MiB +200.0 MiB 200.0 MiB 0.0 MiB 100 libnccl.so.2
CuPy, from a CUDA pool +32.0 MiB +96.0 MiB 128.0 MiB 96.0 MiB 2 runtime.so
cuFFT 0 +11.0 MiB 11.0 MiB 11.0 MiB 6 libcufft.so.12
1 smaller <0.1 MiB 4
in CUDA's own pools, not in use +8.0 MiB
CUDA context, kernel code, stacks +16.0 MiB
outside PyTorch +256.0 MiB
managed memory, on the card or in the host
libmine.so +512.0 MiB +512.0 MiB 512.0 MiB 0.0 MiB 1
as they count themselves
CuPy's pool +256.0 MiB 300.0 MiB now, in use +200.0 MiB
no allocation asked for context, kernel code and stacks; what a library maps by cuMemCreate is among them"""
"""But for the width of the columns."""


def test_the_table_adds_up_from_top_to_bottom():
    one = with_libraries()
    table = outside_table(one.libraries[0], one.devices["cuda:0"])
    assert [" ".join(line.split()) for line in text_tables([table]).splitlines()] == TABLE.splitlines()


def test_the_table_stands_below_its_device():
    one = with_libraries()
    titles = [table.title.partition("   ")[0] for table in with_outside(report_tables(one), one)]
    assert titles == ["cuda:0", "cuda:0 outside PyTorch, by library", "host memory of this process"]
    assert "libnccl.so.2" in html_tables(with_outside(report_tables(one), one))


def test_one_sentence_in_the_line():
    one = with_libraries()
    (sentence,) = outside_sentences(one)
    assert sentence == (
        "cuda:0 outside PyTorch: libmine.so, managed memory +512.0 MiB · NCCL +200.0 MiB in 100 allocations · "
        "CuPy +32.0 MiB in 2 allocations (peak +96.0 MiB) · cuFFT peak +11.0 MiB in 6 allocations · "
        "in CUDA's own pools, not in use +8.0 MiB · CUDA context, kernel code, stacks +16.0 MiB"
    )
    assert sentence in text_line(one).splitlines()
    assert "NCCL +200.0 MiB in 100 allocations" in html_line(one)


def test_without_records_the_pools_own_counts_are_told_and_nothing_is_claimed():
    one = with_libraries((), trust=grade("unknown", "llvmlite is not installed"))
    assert outside_sentences(one) == ["cuda:0 outside PyTorch: CuPy's pool +256.0 MiB"]
    text = text_tables([outside_table(one.libraries[0], one.devices["cuda:0"])])
    assert "not told apart" in text
    assert "kernel code" not in text


def test_a_report_without_the_question_says_nothing():
    assert outside_sentences(report()) == []
    one = report()
    assert with_outside(report_tables(one), one) == report_tables(one)


def test_incomplete_records_leave_a_rest_that_may_be_anybodys():
    """A library's allocation whose record was lost is no context and no kernel code."""
    one = with_libraries(trust=grade("sampled", "records until CUPTI failed"))
    text = text_tables([outside_table(one.libraries[0], one.devices["cuda:0"])])
    (sentence,) = outside_sentences(one)
    for words in (text, sentence):
        assert "kernel code" not in words
        assert "not told apart" in words
    assert "not told apart +16.0 MiB" in sentence
