from __future__ import annotations

import dataclasses

from fakes.reports import before, report
from fakes.sessions import cell, session
from ipygpumem.core.tables import html_tables, text_tables
from ipygpumem.features.history.model import changed_rows, pair_rows
from ipygpumem.features.history.plot import history_plot
from ipygpumem.features.history.table import TablePage, comparison_tables, history_tables


def text(reports, page=None, **options):
    return text_tables(history_tables(changed_rows(reports), page or TablePage(), **options))


REPORTS = [
    cell(1, held=400, peak=1200, outside=66, code="x = torch.ones(100 << 20)", seconds=2.31),
    cell(None, held=10, peak=10, code="In [1]:2", cell_id=None, seconds=0.0021),
    cell(
        12,
        held=-400,
        peak=0,
        code="loss = train(model, loader, epochs=3, optimizer=optimizer)",
        success=False,
        seconds=75,
    ),
    cell(13, held=0, peak=5, code="model(x)", end={"ooms": 1}, success=False, seconds=0.5),
]


def test_table():
    assert text(REPORTS).splitlines() == [
        "this session: 4 measurements",
        "                                                         held       peak    outside        time",
        "  In [1]   x = torch.ones(100 << 20)               +400.0 MiB   +1.2 GiB  +66.0 MiB      2.31 s  ██████████",
        "           In [1]:2                                 +10.0 MiB  +10.0 MiB          0      2.1 ms  █",
        "  In [12]  loss = train(model, loader, epochs=3,…  -400.0 MiB          0          0  1 min 15 s              failed",  # noqa: E501 (a line of the table)
        "  In [13]  model(x)                                         0   +5.0 MiB          0    500.0 ms  █           out of memory",  # noqa: E501 (as above)
    ]


def column(reports, page):
    (table,) = history_tables(changed_rows(reports), page)
    return [row.label.split()[1] for row in table.rows]


def test_sort_by_each_column():
    reports = session(9)
    for by, name in (("held", "held"), ("peak", "peak"), ("time", "seconds")):
        rows = changed_rows(reports)
        expected = [f"[{row.cell}]" for row in sorted(rows, key=lambda row, name=name: -getattr(row, name))]
        values = {f"[{row.cell}]": getattr(row, name) for row in rows}
        assert [values[label] for label in column(reports, TablePage(by))] == [values[label] for label in expected]
    assert column(reports, TablePage("in")) == [f"[{number}]" for number in range(1, 10)]
    assert column([cell(1), cell(2, outside=5), cell(3, outside=-9)], TablePage("outside")) == ["[2]", "[3]"]


def test_unknown_values_are_sorted_last():
    unread = before(process=None, used=None, source=None, mode="torch-only")
    unknown = report(before(), unread, peak=None, cell=5)
    assert column([unknown, cell(6, outside=-3)], TablePage("outside")) == ["[6]", "[5]"]
    assert column([unknown, cell(6)], TablePage("peak"))[-1] == "[5]"
    assert "unknown" in text([unknown])


def test_rows_without_a_change_are_shown_only_by_time():
    reports = [cell(1, held=5), cell(2, seconds=9), cell(3, success=False), cell(4, outside=-3)]
    assert column(reports, TablePage()) == ["[1]", "[3]", "[4]"]
    assert text(reports).endswith("not shown: 1 row without a memory change (--by time shows all rows)")
    assert column(reports, TablePage("time"))[0] == "[2]"


def test_pages():
    reports = session(70)
    assert column(reports, TablePage("in", 1, 30)) == [f"[{number}]" for number in range(41, 71)]
    assert column(reports, TablePage("in", 3, 30)) == [f"[{number}]" for number in range(1, 11)]
    assert column(reports, TablePage("in", 4, 30)) == []
    assert text(reports).endswith("page 1 of 3 (next page: --page 2)")
    assert text(reports, TablePage("in", 3)).endswith("page 3 of 3")
    labels = [label for number in (1, 2, 3) for label in column(reports, TablePage("peak", number, 30))]
    assert sorted(labels) == sorted(f"[{number}]" for number in range(1, 71)), "each row is on one page"
    assert column(reports, TablePage("peak", 10**9, 30)) == []


def test_page_of_a_thousand_rows():
    (table,) = history_tables(changed_rows(session(1000)), TablePage())
    assert len(table.rows) == 30
    assert table.notes == ("page 1 of 34 (next page: --page 2)",)


def test_one_row_per_device():
    first, second = cell(1, held=5), cell(1, held=7, name="cuda:1")
    two_devices = dataclasses.replace(first, devices={**first.devices, **second.devices})
    lines = text([two_devices]).splitlines()
    assert lines[0] == "this session: 1 measurement, one row per device with changes"
    assert [line.split()[3] for line in lines[2:]] == ["cuda:0", "cuda:1"]


def test_host_rows_and_empty_session():
    table_text = text([dataclasses.replace(cell(3), devices={})])
    assert "at most +100.0 MiB" in table_text
    assert table_text.endswith("on the host, held and peak refer to the resident memory of the process")
    assert text([]) == "this session: no measurements yet"


def test_values_of_the_whole_device_are_marked():
    whole_device = report(before(process=None, mode="device"), before(process=None, mode="device"), cell=1)
    assert "~0" in text([whole_device])


def test_discarded_reports_are_mentioned():
    note = "discarded: 1,234 older reports (set GPUMem.log to write all reports to a file)"
    assert text(REPORTS, dropped=1234).endswith(note)


def test_code_is_escaped_in_html():
    hostile = cell(1, held=5, code="<script>alert(1)</script>")
    page = html_tables(history_tables(changed_rows([hostile]), TablePage(), title="<b>"))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;" in page


def compared(before, after, by="in"):
    pairs, earlier_runs = pair_rows(changed_rows(before), changed_rows(after))
    return text_tables(comparison_tables(pairs, by, ("a.jsonl", "b.jsonl"), earlier_runs)).splitlines()


BEFORE = [cell(1, held=400, peak=1200), cell(2, held=5), cell(3, held=7, success=False), cell(4, held=1, outside=66)]
AFTER = [cell(1, held=400, peak=900), cell(2, held=50, seconds=1.31), cell(3, held=7), cell(4, held=1), cell(5, held=8)]


def test_comparison_of_two_runs():
    assert compared(BEFORE, AFTER) == [
        "b.jsonl compared with a.jsonl (rows in both: 4, different: 3)",
        "                         held     change        peak      change    time   change",
        "  In [1]  step(1)  +400.0 MiB          =  +900.0 MiB  -300.0 MiB  2.31 s  +0.0 ms",
        "  In [2]  step(2)   +50.0 MiB  +45.0 MiB   +50.0 MiB   +45.0 MiB  1.31 s  -1.00 s",
        "  In [3]  step(3)    +7.0 MiB          =    +7.0 MiB           =  2.31 s  +0.0 ms  failed in a.jsonl",
        "  In [4]  step(4)    +1.0 MiB          =    +1.0 MiB           =  2.31 s  +0.0 ms  outside PyTorch -66.0 MiB",
        "  In [5]  step(5)    +8.0 MiB               +8.0 MiB              2.31 s           only in b.jsonl",
    ]


def test_rows_without_memory_use_in_either_run_are_omitted():
    lines = compared([cell(1), cell(2, held=5)], [cell(1), cell(2)])
    assert [line.split()[1] for line in lines[2:3]] == ["[2]"]
    assert lines[3:] == ["not shown: 1 row without a memory change in either run"]


def test_sorted_comparison():
    assert [line.split()[1] for line in compared(BEFORE, AFTER, "peak")[2:4]] == ["[1]", "[2]"]
    assert [line.split()[1] for line in compared(BEFORE, AFTER, "held")[2:3]] == ["[2]"]
    assert "only in a.jsonl" in compared(AFTER, BEFORE)[-1]


class EqualHash(float):
    """A number with the same hash as all other instances. A file can contain numbers with equal hashes."""

    compared = 0

    def __hash__(self):
        return 1

    def __eq__(self, other):
        type(self).compared += 1
        return float(self) == float(other)


def test_numbers_with_equal_hashes_take_linear_time():
    (row,) = changed_rows([cell(1, held=5)])
    numbers = map(EqualHash, range(1, 200))
    rows = [dataclasses.replace(row, cell=n, time=n, seconds=n, cell_id=None) for n in numbers]
    EqualHash.compared = 0
    assert "199 measurements" in text_tables(history_tables(rows, TablePage()))
    assert len(pair_rows(rows, rows)[0]) == 199
    history_plot(rows, "x")
    assert EqualHash.compared < 10 * len(rows)
