"""The command ``ipygpumem events``."""

from __future__ import annotations

import importlib.util
import json

import pytest

from cli.commands import OOM, run
from ipygpumem.cli import snapshots


def test_csv_and_json(capsys, tmp_path):
    status, out, _ = run(capsys, "events", OOM, "--csv")
    lines = out.splitlines()
    assert status == 0
    assert len(lines) == 6208
    assert lines[0].startswith("device,event,action,address,size,stream,time_us,requested_after,file,line,name")
    row = json.loads(run(capsys, "events", OOM, "--json")[1].splitlines()[1])
    assert (row["action"], row["size"], row["requested_after"], row["line"]) == ("alloc", 16777216, 16777216, 33)


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_needs_pyarrow(capsys):
    status, _, err = run(capsys, "events", OOM, "--parquet")
    assert (status, err) == (2, "ipygpumem: pyarrow is required for Parquet files: pip install pyarrow\n")


def test_error_of_file_that_cannot_be_written(capsys, monkeypatch):
    def fail(*_):
        raise PermissionError(13, "Permission denied", "/results/x.parquet")

    monkeypatch.setattr(snapshots, "write_parquet", fail)
    assert run(capsys, "events", OOM, "--parquet") == (1, "", "ipygpumem: /results/x.parquet: Permission denied\n")
