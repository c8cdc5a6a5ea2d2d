"""Words and their faults, outputs that fail, machines that have next to nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

import numpy as np
import pytest

from cli.commands import GPT, OOM, ROOT, run, shell
from ipygpumem import cli
from ipygpumem.cli import progress


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["summary"],
        ["peak", GPT, "--by", "colour"],
        ["peak", GPT, "--top", "0"],
        ["peak", GPT, "--device", "7"],
        ["leaks", GPT, "--first", "99999999"],
        ["fragmentation", GPT, "--at", "noon"],
        ["fragmentation", GPT, "--at=--5"],
        ["fragmentation", GPT, "--at", "²"],
        ["fragmentation", GPT, "--at", "9" * 5000],
        ["fragmentation", GPT, "--need", "much"],
        ["fragmentation", GPT, "--need", "9" * 400],
        ["fragmentation", GPT, "--need=-5MiB"],
        ["fragmentation", GPT, "--need", "0"],
        ["diff", GPT, OOM, "--at", "1", "99999999"],
        ["events", GPT, "--csv", "--parquet"],
    ],
)
def test_bad_words_are_status_two(words, capsys):
    try:
        status = cli.main(words)
    except SystemExit as left:
        status = left.code
    assert status == 2
    assert capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_is_full_or_closed_is_one_line():
    command = f"'{sys.executable}' -m ipygpumem summary '{OOM}'"
    assert shell(f"{command} > /dev/full") == (1, "", "ipygpumem: the output: No space left on device\n")
    assert shell(f"{command} >&-") == (1, "", "ipygpumem: the standard output is closed\n")
    assert shell(f"{command} 2>&-")[0] == 0


def test_half_a_character_in_a_name_is_written_all_the_same(tmp_path):
    file = tmp_path / "half.json"
    frames = [{"filename": "/a.py", "line": 1, "name": "\ud800"}]
    file.write_text(json.dumps({"device_traces": [[{"action": "alloc", "addr": 512, "size": 1, "frames": frames}]]}))
    for words in ("events --csv", "peak", "summary", "leaks"):
        status, out, err = shell(f"'{sys.executable}' -m ipygpumem {words} {file}")
        assert (status, err) == (0, "")
        assert ("\\ud800" in out) == ("csv" in words)  # text for people leaves it out


def test_a_name_of_two_lines_is_told_in_one(capsys, tmp_path):
    file = tmp_path / "a\nb.json"
    status, _, err = run(capsys, "summary", file)
    assert (status, err) == (1, f"ipygpumem: {tmp_path}/a?b.json: No such file or directory\n")
    file.write_text('{"segments": 5}')
    assert run(capsys, "summary", file)[2] == "ipygpumem: a?b.json: segments is an int, not a list\n"


def test_of_several_files_each_is_named(capsys):
    for words in (["peak"], ["leaks"], ["fragmentation"]):
        out = run(capsys, *words, GPT, OOM)[1].splitlines()
        assert out[0] == f"{GPT}:"
        assert f"{OOM}:" in out
        assert f"{OOM}:" not in run(capsys, *words, OOM)[1].splitlines()
    rows = run(capsys, "events", "--csv", GPT, OOM)[1].splitlines()
    assert rows[0].startswith("snapshot,device,event,")
    assert sum(row.startswith("snapshot,") for row in rows) == 1
    assert rows[1].startswith(f"{GPT},0,0,")
    assert rows[-1].startswith(f"{OOM},0,6206,")
    assert json.loads(run(capsys, "events", "--json", GPT, OOM)[1].splitlines()[-1])["snapshot"] == OOM


def test_a_reader_that_leaves_early_is_no_fault():
    command = f"'{sys.executable}' -m ipygpumem events '{OOM}' --csv | head -1"
    done = subprocess.run(
        ["/bin/bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("device,event")


def test_progress_is_told_to_a_terminal_only(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_PATIENCE", 0.05)
    with progress.progress("reading"):
        time.sleep(0.2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.progress("reading x"):
        time.sleep(0.2)
    shown = capsys.readouterr().err
    assert shown.startswith("\r\x1b[Kreading x ... 0 s")
    assert shown.endswith("\r\x1b[K")


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """An environment with Python and numpy only: no torch, no IPython, no NVML."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    home = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (home / name).exists():
            (site / name).symlink_to(home / name)
    (site / "ipygpumem").symlink_to(ROOT / "ipygpumem")
    return folder / "bin" / "python"


def bare_run(bare, *words, code=None):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [str(bare), "-I", *(["-c", code] if code else ["-m", "ipygpumem", *words])]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=bare.parent)


def test_everything_runs_without_torch(bare, capsys):
    missing = bare_run(bare, code="import torch")
    assert "No module named 'torch'" in missing.stderr
    for words in (
        ["summary", GPT],
        ["peak", GPT, "--by", "stack"],
        ["leaks", OOM],
        ["fragmentation", OOM, "--at", "oom"],
        ["diff", GPT, OOM],
    ):
        done = bare_run(bare, *words)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert done.stdout == run(capsys, *words)[1]
    assert bare_run(bare, "demo").stdout.count("GPU 0: peak 1.8 GiB") == 2
    done = bare_run(bare, "env")
    assert done.returncode == 0
    assert "torch is not installed" in done.stdout


def test_the_room_imports_neither_torch_nor_ipython(bare):
    code = "import sys, ipygpumem.cli; print(sorted({'torch', 'IPython', 'pynvml', 'pickle'} & set(sys.modules)))"
    assert bare_run(bare, code=code).stdout.strip() in {"[]", "['pickle']"}  # numpy brings pickle
