"""Reports of several processes as text, compared with the complete expected text."""

from __future__ import annotations

import dataclasses

from fakes.sessions import cell
from ipygpumem.core.tables import html_tables, text_tables
from ipygpumem.features.lines.model import AllocationSite
from ipygpumem.features.ranks.model import DeviceInfo, RankInfo, RankPeak, RankResult
from ipygpumem.features.ranks.table import ranks_tables

MIB = 1 << 20


def member(rank, report, *, uuid="GPU-aaaa1111-2", lines=(), **origin):
    info = RankInfo(rank, 4, **{"host": "node", "pid": 7, "version": "0.1.0", **origin})
    info = dataclasses.replace(info, devices=(DeviceInfo("cuda:0", uuid, "H200", 143_771 * MIB),))
    parts = tuple(AllocationSite(label, mib * MIB, 1) for label, mib in lines)
    total = sum(mib for _, mib in lines) * MIB
    peaks = (RankPeak(0, total, 9, 0, parts, AllocationSite("other lines", 0, 0)),) if lines else ()
    return RankResult(str(rank), "done", info, report, peaks)


def text(members, **options):
    return text_tables(ranks_tables(members, **options)).splitlines()


def test_shared_device_dead_engine_and_slow_engine():
    lines = [("train.py:3 step", 500), ("train.py:9 loss", 20)]
    members = [
        member(0, cell(1, held=100, peak=300), lines=lines),
        member(1, cell(1, held=100, peak=310, seconds=9.0), lines=[lines[0], ("train.py:9 loss", 90)]),
        member(2, cell(1, held=100, peak=900), uuid="GPU-bbbb2222-2", lines=lines),
        RankResult("3", "died", RankInfo(3, 4, "node"), note="died while running the cell"),
    ]
    assert text(members, role="engine") == [
        "4 engines on node",
        "              device        held        peak  allocated   cached  outside    time",
        "  0  cuda:0 aaaa1111  +100.0 MiB  +300.0 MiB  200.0 MiB  1.9 GiB        0  2.31 s  ███",
        "  1  cuda:0 aaaa1111  +100.0 MiB  +310.0 MiB  200.0 MiB  1.9 GiB        0  9.00 s  ███",
        "  2  cuda:0 bbbb2222  +100.0 MiB  +900.0 MiB  200.0 MiB  1.9 GiB        0  2.31 s  ██████████",
        f"  3{' ' * 92}died while running the cell",
        "no report from engine 3",
        "much slower than the median of 2.31 s: engine 1 (9.00 s)",
        "",
        "spread",
        "            lowest  engine      median     highest  engine",
        "  peak  +300.0 MiB       0  +310.0 MiB  +900.0 MiB       2  highest: 2.9 times the median",
        "  time      2.31 s       0      2.31 s      9.00 s       1  highest: 3.9 times the median",
        "similar for all engines: held, outside PyTorch, host peak",
        "",
        "devices at the end of the measurements",
        "            engines              used  by these engines  other processes",
        "  aaaa1111     0, 1  3.4 of 140.4 GiB           5.4 GiB          unknown  █           shared by 2 processes, counted once",  # noqa: E501 (a line of the table)
        "  bbbb2222        2  3.4 of 140.4 GiB           2.7 GiB         79.0 MiB  █",
        "",
        "memory at the peak, by line of code: engine 1 deviates most; engine 0 is the most typical",
        "                    engine 0   engine 1     change",
        "  train.py:9 loss   20.0 MiB   90.0 MiB  +70.0 MiB",
        "peak (requested)   520.0 MiB  590.0 MiB  +70.0 MiB",
        "engine 0 has the same lines and sizes as 1 of 2 other engines",
    ]


def test_short_times_are_not_compared():
    table = text([member(0, cell(1, seconds=0.02, peak=398)), member(1, cell(1, seconds=0.09, peak=400))])
    assert table[table.index("spread") + 1 :] == [
        "            lowest  rank      median     highest  rank",
        "  peak  +398.0 MiB     0  +399.0 MiB  +400.0 MiB     1",
        "similar for all ranks: held, outside PyTorch, host peak, time",
        "",
        *table[table.index("devices at the end of the measurements") :],
    ]
    assert "similar for all ranks: held, outside PyTorch, host peak, time" in text(
        [member(0, cell(1)), member(1, cell(1, peak=9))]
    )


def test_html_is_escaped():
    evil = RankResult("<script>", "missing", RankInfo(host="<b>"), note="<img>")
    html = html_tables(ranks_tables([evil, member(1, cell(1))]))
    assert "<script>" not in html and "<img>" not in html and "<b>" not in html


def test_no_ranks():
    assert text([]) == ["0 ranks"]


def test_row_limit():
    table = text([member(rank, cell(1, peak=rank + 1)) for rank in range(300)], by="peak", limit=3)
    assert [line.split()[0] for line in table[2:5]] == ["299", "298", "297"]
    assert table[5] == "not shown: 297 more rows"


def test_many_clocks_are_one_note():
    members = [member(n, cell(1, held=1), host=f"n{n}", clock=60.0 * n, began=1e9 - 60 * n) for n in range(40)]
    (note,) = [line for line in text(members) if line.startswith("start times")]
    assert note == (
        "start times refer to the clock of the shared file system, from which the clocks of these hosts differ by up "
        "to 39 min 00 s: n1, n2, n3, n4, n5, n6, n7, n8 and 31 more"
    )
