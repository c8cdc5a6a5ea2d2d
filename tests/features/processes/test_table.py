"""Tests of other processes in sentences, as rows of a device's table, and in a table of all processes."""

from __future__ import annotations

import dataclasses

from fakes.reports import report
from ipygpumem.core.other_process import OtherProcess, OtherProcessChange
from ipygpumem.core.tables import html_tables, text_tables
from ipygpumem.features.processes.model import DeviceProcesses
from ipygpumem.features.processes.table import other_process_sentence, processes_table, with_change_rows
from ipygpumem.features.report.short_report import ShortReport
from ipygpumem.features.report.table import report_tables

MIB, GIB = 1 << 20, 1 << 30
KERNEL = OtherProcess(4711, None, "python -m ipykernel_launcher", "own", "me", "kernel", "/home/me/train.ipynb")


def with_changes(*changes):
    return dataclasses.replace(report(), neighbours=changes)


def test_sentence_for_each_device_with_visible_changes():
    changed = with_changes(
        OtherProcessChange("cuda:0", KERNEL, 0, 3 * GIB, "began"),
        OtherProcessChange("cuda:0", OtherProcess(8, None), 2 * GIB, GIB),
        OtherProcessChange("cuda:0", OtherProcess(9, None), GIB, GIB + 1000),
        OtherProcessChange("cuda:1", OtherProcess(8, None, "sleep", "child"), GIB, 0, "ended"),
        OtherProcessChange("cuda:2", OtherProcess(8, None), GIB, GIB),
    )
    sentence = "cuda:0 other processes: pid 4711 (kernel of train.ipynb) started, +3.0 GiB · pid 8 -1.0 GiB"
    assert other_process_sentence("cuda:0", changed.neighbours) == sentence
    assert other_process_sentence("cuda:1", changed.neighbours) == (
        "cuda:1 other processes: pid 8 (sleep, child of this process) ended, -1.0 GiB"
    )
    assert other_process_sentence("cuda:2", changed.neighbours) == ""
    assert ShortReport(changed).text().splitlines()[1:] == [sentence]
    assert sentence in ShortReport(changed).html()


def test_further_processes_are_summed():
    changed = with_changes(
        *(OtherProcessChange("cuda:0", OtherProcess(i, None), 0, (9 - i) * GIB) for i in range(1, 7))
    )
    assert other_process_sentence("cuda:0", changed.neighbours) == (
        "cuda:0 other processes: pid 1 +8.0 GiB · pid 2 +7.0 GiB · pid 3 +6.0 GiB · 3 others: +12.0 GiB"
    )


def test_rows_are_below_row_of_all_other_processes():
    changed = with_changes(OtherProcessChange("cuda:0", KERNEL, 3 * GIB, 2 * GIB))
    device, host = with_change_rows(report_tables(changed), changed)
    labels = [row.label for row in device.rows]
    assert labels[labels.index("other processes") + 1] == "pid 4711 (kernel of train.ipynb)"
    assert host == report_tables(changed)[-1]


TABLE = """\
cuda:0 NVIDIA H200
                                     user        size
  pid 12    this process                      1.0 GiB  ██
  pid 4711  kernel of train.ipynb      me     3.0 GiB  █████  /usr/bin/python -m ipykernel_launcher
  pid 99    child, DataLoader worker   me   512.0 MiB  █      python
  pid 7     other user                ada     unknown         sleep
  not attributed to any process                      512.0 MiB  █      page tables, managed memory
used (nvidia-smi)                  6.0 GiB
a note"""


def test_table():
    neighbours = (
        dataclasses.replace(KERNEL, amount=3 * GIB, command="/usr/bin/python -m ipykernel_launcher"),
        OtherProcess(99, 512 * MIB, "python", "child", "me", "DataLoader worker"),
        OtherProcess(7, None, "sleep", "other", "ada"),
    )
    device = DeviceProcesses("cuda:0", GIB, 12, neighbours, 6 * GIB, 512 * MIB, "a note", "NVIDIA H200")
    lines = [" ".join(line.split()) for line in text_tables([processes_table(device)]).splitlines()]
    assert lines == [" ".join(line.split()) for line in TABLE.splitlines()]


def test_no_other_process():
    table = processes_table(DeviceProcesses("cuda:0", GIB, 12, (), GIB, 0))
    assert table.notes == ("no other process uses this device",)


def test_long_command_is_wrapped():
    long = OtherProcess(8, GIB, "app", "own", "me", command="app " + "--option value " * 12)
    html = html_tables([processes_table(DeviceProcesses("cuda:0", GIB, 7, (long,), 3 * GIB, 0))])
    assert "overflow-x:auto" in html
    cell = html[: html.index("--option value")].rpartition("<td")[2]
    assert "overflow-wrap:anywhere" in cell
    assert "nowrap" not in cell
