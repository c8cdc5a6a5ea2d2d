"""Invalid arguments, outputs that fail, and an environment with numpy only."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
import venv
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from cli.commands import GPT, OOM, ROOT, run, shell
from ipygpumem import cli
from ipygpumem.cli import parser
from ipygpumem.features.commands import output


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["summary"],
        ["peak", GPT, "--by", "color"],
        ["peak", GPT, "--top", "0"],
        ["peak", GPT, "--device", "7"],
        ["leaks", GPT, "--first", "99999999"],
        ["fragmentation", GPT, "--at", "noon"],
        ["fragmentation", GPT, "--at=--5"],
        ["peak", GPT, "--by=line", "--top=--"],
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
def test_invalid_arguments_exit_with_status_two(arguments, capsys):
    try:
        status = cli.main(arguments)
    except SystemExit as exit_error:
        status = exit_error.code
    assert status == 2
    assert capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full does not exist")
def test_error_of_full_or_closed_output(tmp_path):
    file = tmp_path / "empty.json"
    file.write_text('{"segments": []}')
    command = f"'{sys.executable}' -m ipygpumem summary {file}"
    assert shell(f"{command} > /dev/full") == (1, "", "ipygpumem: the output: No space left on device\n")
    assert shell(f"{command} >&-") == (1, "", "ipygpumem: the output cannot be written because stdout is closed\n")
    assert shell(f"{command} 2>&-")[0] == 0


def test_surrogates_in_names_are_replaced(capsys, tmp_path):
    file = tmp_path / "surrogate.json"
    frames = [{"filename": "/a.py", "line": 1, "name": "\ud800"}]
    file.write_text(json.dumps({"device_traces": [[{"action": "alloc", "addr": 512, "size": 1, "frames": frames}]]}))
    outputs = [shell(f"'{sys.executable}' -m ipygpumem events --csv {file}")]
    # capsys also encodes the output
    outputs += [run(capsys, command, file) for command in ("peak", "summary", "leaks")]
    for status, out, err in outputs:
        assert (status, err) == (0, "")
        assert "\\ud800" not in out
        assert "/a.py" in out


def test_line_break_in_file_name_is_replaced(capsys, tmp_path):
    file = tmp_path / "a\nb.json"
    status, _, err = run(capsys, "summary", file)
    assert (status, err) == (1, f"ipygpumem: {tmp_path}/a?b.json: No such file or directory\n")
    file.write_text('{"segments": 5}')
    assert run(capsys, "summary", file)[2] == "ipygpumem: a?b.json: segments is an int, not a list\n"
    file.write_text('{"segments": []}')
    assert run(capsys, "summary", file, file)[1].splitlines()[0] == f"{tmp_path}/a?b.json:"


def test_several_files_have_headings(capsys):
    for arguments in (["peak"], ["leaks"], ["fragmentation"]):
        out = run(capsys, *arguments, GPT, OOM)[1].splitlines()
        assert out[0] == f"{GPT}:"
        assert f"{OOM}:" in out
        assert f"{OOM}:" not in run(capsys, *arguments, OOM)[1].splitlines()
    rows = run(capsys, "events", "--csv", GPT, OOM)[1].splitlines()
    assert rows[0].startswith("snapshot,device,event,")
    assert sum(row.startswith("snapshot,") for row in rows) == 1
    assert rows[1].startswith(f"{GPT},0,0,")
    assert rows[-1].startswith(f"{OOM},0,6206,")
    assert json.loads(run(capsys, "events", "--json", GPT, OOM)[1].splitlines()[-1])["snapshot"] == OOM


def test_missing_memory_is_one_line(monkeypatch, capsys):
    arguments = Mock(run=Mock(side_effect=MemoryError))
    monkeypatch.setattr(parser, "parser", lambda: Mock(parse_args=lambda _: arguments))
    assert parser.main([]) != 0
    assert capsys.readouterr().err == "ipygpumem: not enough memory to run the command\n"


def test_interrupt_while_arguments_are_parsed(monkeypatch):
    monkeypatch.setattr(parser, "parser", Mock(side_effect=KeyboardInterrupt))
    assert parser.main(["demo"]) == output.INTERRUPTED


def test_errors_about_long_arguments_are_short(capsys):
    with pytest.raises(SystemExit):
        run(capsys, "summary", "x" * 5000, "--" + "y" * 5000)
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 1100
    _, _, error = run(capsys, "summary", "x" * 3000)
    assert len(error) <= 1100


def test_closed_pipe_is_not_an_error():
    command = f"'{sys.executable}' -m ipygpumem events '{OOM}' --csv | head -1"
    process = subprocess.run(
        ["/bin/bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("device,event")


def test_progress_is_shown_in_terminals_only(monkeypatch, capsys):
    monkeypatch.setattr(output, "_PROGRESS_SECONDS", 0.05)
    with output.progress("reading"):
        time.sleep(0.2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    end = time.monotonic() + 60
    with output.progress("reading \x1b[31mx"):
        while not sys.stderr.getvalue():
            assert time.monotonic() < end
            time.sleep(0.01)
    assert re.match(r"\r\x1b\[Kreading \?\[31mx \.\.\. \d+ s", sys.stderr.getvalue())
    assert sys.stderr.getvalue().endswith("\r\x1b[K")


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory):
    """Return the interpreter of an environment with numpy but without torch, IPython and NVML."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    home = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (home / name).exists():
            (site / name).symlink_to(home / name)
    (site / "ipygpumem").symlink_to(ROOT / "ipygpumem")
    return folder / "bin" / "python"


RUN_COMMANDS = """
import contextlib, io, json, sys
import ipygpumem.cli

imported = sorted({"torch", "IPython", "pynvml"} & set(sys.modules))
results = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = ipygpumem.cli.main(arguments)
    results.append([status, out.getvalue(), err.getvalue()])
print(json.dumps([imported, results]))
"""


def test_commands_run_without_torch(bare_python, capsys):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    options = {"capture_output": True, "text": True, "env": environment, "cwd": bare_python.parent}
    commands = [
        ["summary", GPT],
        ["peak", GPT, "--by", "stack"],
        ["leaks", OOM],
        ["fragmentation", OOM, "--at", "oom"],
        ["diff", GPT, OOM],
    ]
    arguments = [bare_python, "-I", "-c", RUN_COMMANDS, json.dumps([*commands, ["demo"]])]
    imported, (*results, demo) = json.loads(subprocess.run(arguments, check=True, **options).stdout)
    assert imported == []
    for command, result in zip(commands, results, strict=True):
        assert result == [0, run(capsys, *command)[1], ""]
    assert demo[1].count("GPU 0: peak 1.8 GiB") == 2
    process = subprocess.run([bare_python, "-I", "-m", "ipygpumem", "env"], check=True, **options)
    assert "torch is not installed" in process.stdout
