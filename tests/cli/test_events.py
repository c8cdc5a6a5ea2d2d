"""The command ``ipygpumem events``."""

from __future__ import annotations

import importlib.util
import json
import pickle

import pytest

from cli.commands import OOM, run
from ipygpumem import OptionError, Snapshot
from ipygpumem.cli import snapshots
from ipygpumem.snapshot.export.event_table import write_parquet


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


def test_parquet_of_a_long_text_in_many_events(tmp_path, monkeypatch):
    """Each text is converted and stored once."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    event = {
        "action": "alloc",
        "addr": 0,
        "size": 1,
        "stream": 0,
        "time_us": 0,
        "frames": [],
        "user_metadata": "x" * 100_000,
    }
    snapshot = Snapshot.load(pickle.dumps({"segments": [], "device_traces": [[event] * 1000]}))
    pool = arrow.proxy_memory_pool(arrow.system_memory_pool())
    previous = arrow.default_memory_pool()
    arrow.set_memory_pool(pool)
    try:
        write_parquet(snapshot, tmp_path / "x.parquet")
    finally:
        arrow.set_memory_pool(previous)
    assert pool.max_memory() < 10_000_000
    texts = parquet.read_table(tmp_path / "x.parquet")["user_metadata"]
    assert (texts.type, len(texts), texts[999].as_py()) == (arrow.string(), 1000, "x" * 100_000)

    def fail(*_, **__):
        raise arrow.ArrowMemoryError("malloc of size 1 failed")

    monkeypatch.setattr(parquet, "write_table", fail)
    with pytest.raises(OptionError, match=r"x\.parquet was not written: not enough memory; use CSV instead"):
        write_parquet(snapshot, tmp_path / "x.parquet")
