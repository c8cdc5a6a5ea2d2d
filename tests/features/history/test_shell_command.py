"""Sessions and notebooks on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from cli.commands import ROOT, run
from fakes.sessions import cell, session
from ipygpumem import cli
from ipygpumem.features.history.model import output_metadata
from ipygpumem.features.history.reports import Reports


@pytest.fixture
def log(tmp_path):
    def write(name, reports):
        reports_with_log = Reports()
        reports_with_log.log = tmp_path / name
        for item in reports:
            reports_with_log.append(item)
        return tmp_path / name

    return write


@pytest.fixture
def notebook(tmp_path):
    def write(name, reports):
        cells = [
            {
                "cell_type": "code",
                "id": item.cell_id,
                "source": item.code,
                "outputs": [{"metadata": output_metadata(item)}],
            }
            for item in reports
        ]
        (tmp_path / name).write_text(json.dumps({"cells": cells, "nbformat": 4}))
        return tmp_path / name

    return write


def test_history(capsys, log):
    path = log("s.jsonl", session(40))
    status, out, err = run(capsys, "history", path)
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0] == "s.jsonl: 40 measurements"
    assert lines[2].startswith("  In [11]  step(11)")
    assert lines[-1] == "page 1 of 2 (next page: --page 2)"
    worst = run(capsys, "history", path, "--by", "peak", "--top", "1")[1].splitlines()
    assert worst[2].startswith("  In [30]  step(30)")
    assert run(capsys, "history", path, "--page", "2")[1].splitlines()[2].startswith("  In [1]   step(1)")


def test_history_as_json(capsys, log):
    path = log("s.jsonl", session(40))
    output = json.loads(run(capsys, "history", path, "--json")[1])
    assert output["file"] == str(path)
    assert len(output["rows"]) == 40
    assert output["rows"][0]["peak"] == 47 << 20


def test_history_of_one_device(capsys, log):
    path = log("s.jsonl", [cell(1), cell(2, name="cuda:1")])
    for word in ("1", "cuda:1"):
        assert [
            row["cell"] for row in json.loads(run(capsys, "history", path, "--json", "--device", word)[1])["rows"]
        ] == [2]


def test_history_plot(capsys, log, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = log("s.jsonl", session(5))
    status, out, err = run(capsys, "history", path, "--plot", "o.png")
    assert (status, err) == (0, "")
    assert out.startswith("o.png: cuda:0: highest usage ")
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")
    assert run(capsys, "history", path, path, "--plot", "p.png") == (2, "", "ipygpumem: --plot accepts only one file\n")
    assert "does not exist" in run(capsys, "history", path, "--plot", "no/p.png")[2]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["o.png", "s.jsonl"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_plot_ignores_settings_in_the_current_directory(log, tmp_path):
    path = log("s.jsonl", session(2))
    os.mkfifo(tmp_path / "matplotlibrc")  # reading it would block
    command = [sys.executable, "-m", "ipygpumem", "history", path, "--plot", "o.png"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=60)
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")


def test_memory_for_rows_as_json(tmp_path, monkeypatch):
    """A file can contain an ID once that belongs to many rows. In JSON, it is six times as long in each of them."""
    devices = {f"{number:x}": {"ooms": 1} for number in range(2000)}
    data = {"application/vnd.ipygpumem+json": {"schema": 1, "devices": devices}}
    cells = [{"id": "\U0001f600" * 500, "source": "", "outputs": [{"metadata": data}]}]
    path = tmp_path / "run.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "cells": cells}))
    with Path(os.devnull).open("w") as null:
        monkeypatch.setattr(sys, "stdout", null)
        tracemalloc.start()
        try:
            assert cli.main(["history", "--json", str(path)]) == 0
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 5 << 20, "the rows in JSON are 12 MB long"


def test_invalid_lines_are_reported_and_the_rest_is_shown(capsys, log):
    path = log("s.jsonl", session(2))
    with path.open("a") as file:
        file.write('{"schema": 1, "half')
    status, out, err = run(capsys, "history", path, path.parent / "none.jsonl")
    assert status == 1
    assert out.startswith("s.jsonl: 2 measurements\n")
    assert err.splitlines() == [
        f"ipygpumem: skipped: {path}: line 3: the JSON data is incomplete",
        f"ipygpumem: {path.parent}/none.jsonl: No such file or directory",
    ]


def test_notebooks(capsys, notebook, tmp_path):
    path = notebook("run.ipynb", session(3))
    status, out, err = run(capsys, "notebook", path)
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "run.ipynb: 3 measurements"
    assert out.splitlines()[2].startswith("  In [1]  step(1)")
    (tmp_path / "bare.ipynb").write_text('{"cells": [], "nbformat": 4}')
    status, out, _ = run(capsys, "notebook", tmp_path / "bare.ipynb", path)
    assert status == 0
    assert out.splitlines()[:3] == [
        "bare.ipynb: no output contains measurements; execute the notebook with ipygpumem loaded",
        "",
        "run.ipynb: 3 measurements",
    ]
    (tmp_path / "x.ipynb").write_text("nonsense")
    assert run(capsys, "notebook", tmp_path / "x.ipynb") == (
        1, "", f"ipygpumem: {tmp_path}/x.ipynb: invalid JSON: Expecting value\n",
    )  # fmt: skip


def test_compare_a_notebook_with_a_log(capsys, notebook, log):
    before = notebook("run.ipynb", [cell(1, held=5), cell(2, held=6)])
    after = log("s.jsonl", [cell(1, held=5), cell(2, held=9)])
    status, out, err = run(capsys, "compare", before, after, "--by", "held")
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "s.jsonl compared with run.ipynb (rows in both: 2, different: 1)"
    assert out.splitlines()[2].startswith("  In [2]  step(2)  +9.0 MiB  +3.0 MiB")
    output = json.loads(run(capsys, "compare", before, after, "--json")[1])
    assert [item["change"]["held"] for item in output["cells"]] == [0, 3 << 20]
    assert run(capsys, "compare", before, "none.jsonl") == (1, "", "ipygpumem: none.jsonl: No such file or directory\n")


@pytest.mark.parametrize(
    "arguments", [["history"], ["history", "x", "--by", "color"], ["history", "x", "--top", "0"], ["compare", "x"]]
)
def test_invalid_arguments(capsys, arguments):
    with pytest.raises(SystemExit) as exit_info:
        run(capsys, *arguments)
    assert exit_info.value.code == 2
