"""Words, file names and names in files are printed without control characters, each message on one line."""

from __future__ import annotations

import csv
import io
import json
import os

import pytest

from cli.commands import GPT, run
from core.test_text import unsafe_characters

UNSAFE = "a\x1b[2J\u202e\u2028\u2066\x9b\x07b"


@pytest.mark.parametrize(
    "arguments",
    [
        ["html", GPT, "-o", f"missing/{UNSAFE}.html"],
        ["html", GPT, "--theme", UNSAFE],
        ["html", UNSAFE],
        ["view", UNSAFE],
        ["view", UNSAFE, UNSAFE],
        ["history", UNSAFE],
        ["history", UNSAFE, "--plot", f"missing/{UNSAFE}.png"],
        ["compare", UNSAFE, UNSAFE],
        ["notebook", UNSAFE],
        ["ranks", UNSAFE],
        ["ranks", UNSAFE, "--plot", f"missing/{UNSAFE}.png"],
        ["ranks", UNSAFE, "--html", f"missing/{UNSAFE}.html"],
        ["fragmentation", GPT, "--at", UNSAFE],
        ["fragmentation", GPT, "--need", UNSAFE],
        ["diff", GPT, UNSAFE],
        ["diff", GPT, GPT, "--at", UNSAFE, "1"],
        ["peak", GPT, "--by", UNSAFE],
        ["peak", GPT, "-n", UNSAFE],
        ["peak", GPT, f"--{UNSAFE}"],
        ["events", GPT, "--device", UNSAFE],
        ["summary", UNSAFE],
        ["summary", GPT, UNSAFE],
        [UNSAFE],
    ],
)
def test_words(arguments, capsys):
    try:
        status, out, err = run(capsys, *arguments)
    except SystemExit as exit_error:
        status, (out, err) = exit_error.code, capsys.readouterr()
    assert status in {1, 2}
    assert err
    assert unsafe_characters(out + err) == []
    assert err.splitlines()[-1].startswith("ipygpumem")


@pytest.fixture
def files(tmp_path):
    """Two snapshots whose names and contents are unsafe."""
    paths = []
    for name in (f"={UNSAFE}", f"@{UNSAFE}"):
        frames = [{"filename": f"/{UNSAFE}.py", "line": 1, "name": UNSAFE}]
        event = {"action": "alloc", "addr": 512, "size": 1 << 20, "frames": frames, "user_metadata": f"={UNSAFE}"}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"device_traces": [[event]], "segments": []}), encoding="utf-8")
        paths.append(path)
    return paths


@pytest.mark.parametrize("command", ["summary", "peak", "peak --by stack", "leaks", "fragmentation", "events --csv"])
def test_names_in_files(command, files, capsys):
    status, out, err = run(capsys, *command.split(), *files)
    assert (status, err) == (0, "")
    assert out
    assert unsafe_characters(out) == []


def test_snapshot_column_of_events(files, capsys, monkeypatch):
    monkeypatch.chdir(files[0].parent)
    _, out, _ = run(capsys, "events", "--csv", *(path.name for path in files))
    header, *rows = csv.reader(io.StringIO(out))
    assert len(rows) == 2
    assert header[0] == "snapshot"
    assert [row[0][:3] for row in rows] == ["'=a", "'@a"]
    assert all(len(row) == len(header) for row in rows)


def test_output_name(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "html", GPT, "-o", f"{UNSAFE}.html")
    assert (status, err) == (0, "")
    assert [os.fsdecode(path.name) for path in tmp_path.iterdir()] == [f"{UNSAFE}.html"]
    assert unsafe_characters(out) == []
    assert len(out.splitlines()) == 1
