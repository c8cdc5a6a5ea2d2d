"""The command line, run as people run it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import venv
import webbrowser
from pathlib import Path

import numpy as np
import pytest

from ipygpumem import cli, progress
from ipygpumem.snapshot import KEYS, Snapshot
from snapshot import files

ROOT = Path(__file__).parents[1]
GPT = str(files.SMALL / "gpt_small.pickle.xz")
OOM = str(files.SMALL / "oom_fragmented.pickle.xz")


def run(capsys, *words):
    status = cli.main(list(map(str, words)))
    out, err = capsys.readouterr()
    return status, out, err


def test_summary_begins_with_the_answer(capsys):
    status, out, err = run(capsys, "summary", GPT)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "GPU 0: peak 1.8 GiB requested, at event 285, 6.6 ms after the first",
        "   721.2 MiB  40 %  project/train_gpt.py:11 forward  (108 blocks)",
        "   593.9 MiB  33 %  (older than the recording, without a stack)  (447 blocks)",
        "   240.2 MiB  13 %  project/train_gpt.py:10 forward  (48 blocks)",
        "  8,088 events; at the end 593.9 MiB requested, 600.9 MiB rounded; reserved 1.9 GiB, at most 1.9 GiB",
        "  note: 447 blocks (593.9 MiB) are older than the first event; whether events were dropped is not told",
        "gpt_small.pickle.xz",
    ]
    assert len(out.splitlines()) <= 24


def test_summary_as_json_has_the_promised_form(capsys):
    status, out, _ = run(capsys, "summary", "--json", OOM)
    assert status == 0
    facts = json.loads(out)
    assert facts["file"] == OOM
    first = facts["devices"][0]
    assert {
        "device": 0,
        "events": 6207,
        "peak": {"requested": 1678200832, "event": 5997, "time_us": 1795241851799160},
        "end": {"requested": 636407808, "rounded": 643747840},
        "reserved": {"end": 1793064960, "peak": 1799356416},
        "before_recording": 0,
        "dropped": None,
        "out_of_order": 0,
        "oom_events": 1,
    }.items() <= first.items()


@pytest.mark.parametrize("key", KEYS)
def test_peak_by_everything(capsys, key):
    status, out, _ = run(capsys, "peak", "--by", key, "--json", GPT)
    assert status == 0
    (device,) = json.loads(out)["devices"]
    assert sum(group["bytes"] for group in device["groups"]) == device["peak"]["requested"] == 1893068808
    assert {"file", "line", "name", "bytes", "count"} <= device["groups"][0].keys()
    status, out, _ = run(capsys, "peak", "--by", key, "--top", "2", GPT)
    assert status == 0
    assert len(out.splitlines()) <= 4


def test_leaks(capsys):
    status, out, _ = run(capsys, "leaks", OOM, "--top", "1")
    assert status == 0
    assert out.splitlines() == [
        "GPU 0: 606.9 MiB in 449 blocks allocated in the window and alive at its end",
        "   352.6 MiB  58 %  project/experiment.py:27 step  (296 blocks)",
        "   254.3 MiB  42 %  in 4 more",
    ]
    facts = json.loads(run(capsys, "leaks", OOM, "--first", "3000", "--last", "5000", "--json")[1])
    assert facts["devices"][0]["bytes"] == Snapshot.load(OOM).leaks(3000, 5000).bytes


def test_fragmentation(capsys):
    status, out, _ = run(capsys, "fragmentation", OOM, "--at", "oom")
    assert status == 0
    assert out.splitlines()[:3] == [
        "GPU 0: out of memory at event 5,998, 32.0 MiB asked for",
        "  32.0 MiB were asked for.",
        "  PyTorch held 109.5 MiB free in 47 pieces, the largest 7.0 MiB: none was large enough.",
    ]
    assert "no allocation failed" in run(capsys, "fragmentation", GPT, "--at", "oom")[1]
    assert json.loads(run(capsys, "fragmentation", OOM, "--at", "oom", "--json")[1])["ooms"][0]["asked"] == 32 << 20
    facts = json.loads(run(capsys, "fragmentation", OOM, "--at", "3000", "--need", "30MiB", "--json")[1])
    assert facts["devices"][0]["fit"]["segment"] == 30 << 20


def test_diff(capsys):
    status, out, _ = run(capsys, "diff", GPT, OOM, "--json", "--by", "function")
    facts = json.loads(out)
    assert status == 0
    assert sum(change["bytes"] for change in facts["changes"]) == facts["after"] - facts["before"]
    status, out, _ = run(capsys, "diff", OOM, OOM, "--at", "1000", "5000", "--top", "1")
    assert status == 0
    assert out.startswith("+")


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


def test_several_files_one_of_them_bad(capsys, tmp_path):
    bad = tmp_path / "bad.pickle"
    bad.write_bytes(b"\x80\x04cos\nsystem\n.")
    status, out, err = run(capsys, "summary", GPT, bad, tmp_path / "none.pickle", OOM)
    assert status == 1
    assert out.count("GPU 0: peak") == 2
    assert err.splitlines() == [
        f"ipygpumem: {bad}: the pickle wants to run code or load a class, GLOBAL (at byte 2)",
        f"ipygpumem: {tmp_path}/none.pickle: No such file or directory",
    ]
    assert run(capsys, "diff", GPT, bad)[0] == 1


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


def shell(command):
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    return done.returncode, done.stdout, done.stderr


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


def test_a_place_that_cannot_be_written_is_one_line(capsys, monkeypatch):
    def fail(*_):
        raise PermissionError(13, "Permission denied", "/there/x.parquet")

    monkeypatch.setattr(cli, "write_parquet", fail)
    assert run(capsys, "events", OOM, "--parquet") == (1, "", "ipygpumem: /there/x.parquet: Permission denied\n")


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


def test_a_file_without_devices_is_said_to_have_none(capsys, tmp_path):
    file = tmp_path / "none.json"
    file.write_text('{"segments": []}')
    for words in ("summary", "peak", "leaks", "fragmentation"):
        assert run(capsys, words, file)[1].endswith("none.json: no device used memory\n")


def test_one_piece_is_a_piece(capsys, tmp_path):
    file = tmp_path / "one.json"
    blocks = [{"address": 512, "size": 2097152, "state": "inactive"}]
    file.write_text(json.dumps({"segments": [{"address": 512, "total_size": 2097152, "blocks": blocks}]}))
    assert "in 1 piece, the largest 2.0 MiB" in run(capsys, "fragmentation", file)[1]


def test_env_tells_what_is_there(capsys):
    status, out, _ = run(capsys, "env", "--json")
    facts = json.loads(out)
    assert status == 0
    assert facts["packages"]["numpy"]
    assert facts["numbers"]["reading of snapshots"] == ["exact", "needs neither torch nor a GPU"]
    assert "reading of snapshots" in run(capsys, "env")[1]


def test_demo_runs_the_commands(capsys):
    status, out, _ = run(capsys, "demo")
    assert status == 0
    assert out.count("$ ipygpumem") == 3
    assert "GPU 0: peak 1.8 GiB" in out


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


def test_html_writes_one_file(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "html", GPT)
    assert (status, err) == (0, "")
    assert out.startswith("gpt_small.html: 0.")
    text = (tmp_path / "gpt_small.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "<title>gpt_small.pickle.xz</title>" in text
    status, out, _ = run(capsys, "html", GPT, OOM, "-o", "both.html", "--json", "--strip-paths", "--no-source")
    assert status == 0
    assert json.loads(out) == {
        "page": str(tmp_path / "both.html"),
        "bytes": (tmp_path / "both.html").stat().st_size,
    }
    assert "<title>gpt_small.pickle.xz and oom_fragmented.pickle.xz</title>" in (tmp_path / "both.html").read_text()


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        ([GPT, "-o", "no/x.html"], 2, "does not exist"),
        ([GPT, "-o", "."], 2, "is a folder: name a file in it"),
        (["missing.pickle"], 1, "missing.pickle: No such file or directory"),
        ([GPT, "missing.pickle"], 1, "missing.pickle: No such file or directory"),
    ],
)
def test_html_that_cannot_be_written(capsys, tmp_path, monkeypatch, words, status, complaint):  # noqa: PLR0917 (fixtures)
    monkeypatch.chdir(tmp_path)
    found, out, err = run(capsys, "html", *words)
    assert (found, out) == (status, "")
    assert complaint in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("opens", [True, False])
def test_view_opens_a_page(capsys, tmp_path, monkeypatch, opens):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.get", lambda: webbrowser.GenericBrowser(shutil.which("true" if opens else "false")))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status, out, _ = run(capsys, "view", GPT)
    (path,) = tmp_path.glob("ipygpumem-*/gpt_small.html")
    assert status == 0
    assert out.splitlines()[-1] == str(path)
    assert ("no browser can be opened from here" in out) is not opens
    status, out, _ = run(capsys, "view", GPT, "--json")
    assert json.loads(out)["opened"] is opens
