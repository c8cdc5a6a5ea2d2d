"""Tests of ``ipygpumem env`` and ``ipygpumem demo``."""

from __future__ import annotations

import json

from cli.commands import run


def test_env(capsys):
    status, out, _ = run(capsys, "env", "--json")
    facts = json.loads(out)
    assert status == 0
    assert facts["packages"]["numpy"]
    assert facts["accuracy"]["reading snapshots"] == ["exact", "requires neither torch nor a GPU"]
    assert "reading snapshots" in run(capsys, "env")[1]


def test_demo_runs_the_commands(capsys):
    status, out, _ = run(capsys, "demo")
    assert status == 0
    assert out.count("$ ipygpumem") == 3
    assert "GPU 0: peak 1.8 GiB" in out
