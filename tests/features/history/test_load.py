"""Report files that are incomplete, unrelated or malicious."""

from __future__ import annotations

import json
import os
import sys
import tracemalloc

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fakes.sessions import cell
from ipygpumem import ReportError, SnapshotError, load_reports
from ipygpumem.features.history import load
from ipygpumem.features.history.model import MIME
from ipygpumem.features.history.reports import Reports
from ipygpumem.snapshot import Snapshot

LINES = [f"{cell(number).to_json()}\n" for number in (1, 2, 3)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.jsonl"


def error_message(path):
    with pytest.raises(ReportError) as exc_info:
        load_reports(path)
    text = str(exc_info.value)
    assert len(text.splitlines()) == 1
    return text.replace(f"{path}", "s.jsonl")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (LINES[1][:500], "the JSON data is incomplete"),
        (LINES[1][:500] + "\n", "the JSON data is incomplete"),
        ('{"schema": 1, "code": "x", "dev\n', "the JSON data is incomplete"),
        ('{"schema": 1, "code": "\\u12\n', "invalid JSON: Invalid"),
        ('{"schema": 1, "success": fal\n', "invalid JSON: Expecting value"),
        ('{"schema": 1\n', "the JSON data is incomplete"),
        ('{"schema": 1 "code": 2}\n', "invalid JSON: Expecting ',' delimiter"),
        (
            LINES[1].replace('"schema": 1', '"schema": 2'),
            "the data has schema version 2, but this version of ipygpumem supports at most 1: upgrade ipygpumem",
        ),
        (LINES[1].replace('"seconds": 2.31', '"seconds": "long"'), "seconds is a string, not a number"),
        (LINES[1].replace('"seconds": 2.31', '"seconds": Infinity'), "invalid JSON: Infinity is not allowed"),
        (LINES[1].replace('"seconds": 2.31', '"seconds": 1e999'), "seconds is not a finite number"),
        (
            LINES[1].replace('"seconds": 2.31', f'"seconds": {"9" * 5000}'),
            "invalid JSON: Exceeds the limit (4300",
        ),
        ("[" * 100_000, "the JSON data is nested too deeply"),
        ('{"a":' * 100_000, "the JSON data is nested too deeply"),
        ("null\n", "the report is null, not an object"),
        ("import torch\n", "invalid JSON: Expecting value"),
        ('{"event": "loss", "value": 3}\n', "the data has no valid schema version, so it was not written by ipygpumem"),
    ],
)
def test_invalid_line_is_reported_with_its_number(path, line, reason):
    path.write_text(LINES[0] + line)
    message = error_message(path)
    assert message.startswith(f"s.jsonl: line 2: {reason}")
    lenient = load_reports(path, strict=False)
    assert [loaded_report.cell for loaded_report in lenient] == [1]
    assert [fault.replace(str(path), "s.jsonl") for fault in lenient.faults] == [message]


def test_valid_lines_are_read_despite_invalid_lines(path):
    path.write_text(LINES[0] + "half\n" + LINES[1] + "\n  \n" + LINES[2].rstrip())
    log = load_reports(path, strict=False)
    assert [loaded_report.cell for loaded_report in log] == [1, 2, 3]
    assert [fault.partition(": ")[2] for fault in log.faults] == ["line 2: invalid JSON: Expecting value"]


def test_number_of_messages_is_limited(path, monkeypatch):
    monkeypatch.setattr(load, "_MAX_FAULTS", 2)
    path.write_text("1\n" * 10)
    faults = load_reports(path, strict=False).faults
    assert [fault.partition(": ")[2][:6] for fault in faults] == ["line 1", "line 2", "line 3"]
    assert faults[-1].endswith("(further errors are not listed)")
    notebook = path.with_suffix(".ipynb")
    notebook.write_text(json.dumps({"nbformat": 4, "cells": [1] * 10}))
    assert len(load.read_notebook(notebook).faults) == 3


def test_binary_file(path):
    path.write_bytes(b"\x80\x04\x95\n")
    assert error_message(path) == "s.jsonl: line 1: the text is not valid UTF-8"


def test_byte_order_mark_is_accepted(path):
    path.write_bytes(b"\xef\xbb\xbf" + LINES[0].encode())
    assert len(load_reports(path)) == 1


def test_empty_file(path):
    path.touch()
    assert list(load_reports(path)) == []


def test_json_list_round_trip(path):
    reports = Reports([cell(1), cell(2)])
    reports.to_json(path)
    assert list(load_reports(path)) == list(reports)
    path.write_text("[1, 2]")
    assert error_message(path) == "s.jsonl: report 1: the report is an integer, not an object"
    path.write_text("[1, 2")
    assert error_message(path) == "s.jsonl: the JSON data is incomplete"
    Reports().to_json(path)
    assert list(load_reports(path)) == []


def test_paths_that_cannot_be_read(tmp_path):
    with pytest.raises(ReportError, match=r"none\.jsonl: No such file"):
        load_reports(tmp_path / "none.jsonl")
    with pytest.raises(ReportError, match=r"Is a directory|not a regular file"):
        load_reports(tmp_path)
    with pytest.raises(ReportError, match="not a valid file name"):
        load_reports("a\0b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReportError, match="not a regular file; pipes, devices and files in /proc cannot be read"):
        load_reports(tmp_path / "pipe")
    with pytest.raises(ReportError, match="not a regular file"):
        load_reports("/dev/zero")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has these files")
def test_files_of_the_kernel():
    """/proc/kmsg is a regular file, but reading it waits for messages of the kernel. Only root can open it."""
    for path, message in (("/proc/version", "not a regular file"), ("/proc/kmsg", "not a regular file|[\\w ]+$")):
        with pytest.raises(ReportError, match=f"^{path}: ({message})"):
            load_reports(path)
        with pytest.raises(SnapshotError, match=f"^{path}: ({message})"):
            Snapshot.load(path)


def test_size_limits(path, monkeypatch):
    monkeypatch.setattr(load, "_MAX_LINE_BYTES", len(LINES[0]) + 10)
    path.write_text(LINES[0] + "x" * 100_000)
    assert error_message(path).startswith("s.jsonl: line 2 is longer than ")
    monkeypatch.setattr(load, "_MAX_REPORTS", 2)
    path.write_text("".join(LINES))
    assert error_message(path) == "s.jsonl: the file contains more than 2 reports"
    monkeypatch.setattr(load, "_MAX_JSON_BYTES", 100)
    path.write_text(f"[{LINES[0]}]")
    assert error_message(path).startswith("s.jsonl: the file is larger than 0.0 MiB")


@settings(max_examples=100)
@given(st.data())
def test_damaged_files_are_read_or_reported(path, data):
    text = bytearray("".join(LINES).encode())
    at = data.draw(st.integers(0, len(text) - 1))
    kind = data.draw(st.sampled_from(["cut", "change", "drop"]))
    if kind == "cut":
        del text[at:]
    elif kind == "drop":
        del text[at : at + data.draw(st.integers(1, 50))]
    else:
        text[at] = data.draw(st.integers(0, 255))
        assume(text[:1] != b"[")  # a list, which is read as a whole
    path.write_bytes(bytes(text))
    log = load_reports(path, strict=False)
    assert len(log) >= 0
    assert len(log) + len(log.faults) <= 4
    for fault in log.faults:
        assert len(fault.splitlines()) == 1
    for loaded_report in log:
        json.loads(loaded_report.to_json())


@pytest.mark.parametrize("kind", ["log", "notebook"])
@pytest.mark.parametrize("name", ["code", "id"])
def test_long_texts_of_a_measurement_on_many_devices(tmp_path, kind, name):
    """The texts of a measurement are limited, because its rows for each of the devices repeat them."""
    text, devices = "\x07A" * 200_000, [f"cuda:{index}" for index in range(200)]
    if kind == "log":
        data = json.loads(cell(1, held=1 << 30).to_json())
        (device,) = data["devices"].values()
        data["devices"] = dict.fromkeys(devices, device)
        data |= {"code": text} if name == "code" else {"cell_id": text}
        path = tmp_path / "s.jsonl"
        path.write_text(f"{json.dumps(data)}\n")
    else:
        summary = {"schema": 1, "time": 1, "cell": 1, "devices": {key: {"held": 1 << 30} for key in devices}}
        outputs = [{"metadata": {MIME: summary}}]
        content = {"cell_type": "code", "id": "a", "source": "x", "outputs": outputs}
        content |= {"id": text} if name == "id" else {"source": text}
        path = tmp_path / "x.ipynb"
        path.write_text(json.dumps({"nbformat": 4, "cells": [content]}))
    tracemalloc.start()
    try:
        rows = load.read_rows(path).rows
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(rows) == len(devices)
    assert max(len(row.code) + len(row.cell_id or "") for row in rows) < 1000
    assert peak < 20 * path.stat().st_size + 2_000_000
