"""Events as tables."""

from __future__ import annotations

import importlib.util
import json

import pytest

from cli.commands import OOM, run
from ipygpumem.cli import events


def test_events(capsys, tmp_path):
    status, out, _ = run(capsys, "events", OOM, "--csv")
    lines = out.splitlines()
    assert status == 0
    assert len(lines) == 6208
    assert lines[0].startswith("device,event,action,address,size,stream,time_us,requested_after,file,line,name")
    row = json.loads(run(capsys, "events", OOM, "--json")[1].splitlines()[1])
    assert (row["action"], row["size"], row["requested_after"], row["line"]) == ("alloc", 16777216, 16777216, 33)


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_without_pyarrow_says_so(capsys):
    status, _, err = run(capsys, "events", OOM, "--parquet")
    assert (status, err) == (2, "ipygpumem: Parquet files need pyarrow: pip install pyarrow\n")


def test_a_place_that_cannot_be_written_is_one_line(capsys, monkeypatch):
    def fail(*_):
        raise PermissionError(13, "Permission denied", "/there/x.parquet")

    monkeypatch.setattr(events, "write_parquet", fail)
    assert run(capsys, "events", OOM, "--parquet") == (1, "", "ipygpumem: /there/x.parquet: Permission denied\n")
