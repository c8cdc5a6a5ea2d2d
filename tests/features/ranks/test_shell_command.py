"""Tests of ``ipygpumem ranks DIRECTORY``."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes.sessions import cell
from ipygpumem import measure
from ipygpumem.cli import main
from ipygpumem.features.ranks import command
from ipygpumem.features.ranks.model import DeviceInfo, RankInfo, RankResult

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture
def run(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    for rank in range(3):
        device = DeviceInfo("cuda:0", f"GPU-{rank}234567-89", "H200", 1 << 37)
        info = RankInfo(rank, 3, "node", 100 + rank, "0.1.0", (device,))
        result = RankResult("", "done", info, cell(None, held=10, peak=100 * (rank + 1)))
        (directory / f"rank_0000{rank}.json").write_text(json.dumps(result.to_dict()))
    for rank in range(3):
        source = "gpt_small" if rank < 2 else "resnet50"
        (directory / f"rank_0000{rank}.pickle.xz").write_bytes((DATA / f"{source}.pickle.xz").read_bytes())
    return directory


def test_tables(run, capsys):
    assert main(["ranks", str(run)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("3 ranks on ")
    assert "rank 2 deviates most; rank 0 is the most typical" in out
    assert "peak (requested)  " in out


def test_sort_and_limit(run, capsys):
    assert main(["ranks", str(run), "--by", "peak", "--top", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("  2  cuda:0 2234567-  ") and "not shown: 2 more rows" in lines


def test_json(run, capsys):
    assert main(["ranks", str(run), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert list(output["members"]) == ["0", "1", "2"] and output["difference"]["odd"] == "2"
    assert output["members"]["2"]["report"]["devices"]["cuda:0"]["peak"] == 300 << 20


def test_image_and_page(run, tmp_path, capsys):
    image, page = tmp_path / "x.png", tmp_path / "x.html"
    assert main(["ranks", str(run), "--plot", str(image), "--html", str(page)]) == 0
    assert image.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    names = re.findall('class="ipygpumem-data" data-name="([^"]*)"', text)
    assert [name[:10] for name in names] == ["rank_00000", "rank_00002", "rank_00001"], (
        "typical ranks, outliers, other differences"
    )
    assert "x.html: " in capsys.readouterr().out


def test_invalid_files_are_reported(run, capsys):
    (run / "rank_00001.json").write_text('{"schema": 1,')
    assert main(["ranks", str(run)]) == 1
    out, err = capsys.readouterr()
    assert err == "ipygpumem: skipped: rank_00001.json: the JSON data is incomplete\n"
    assert "no report from rank 1" in out and "  2  cuda:0" in out


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        (["nowhere"], (1, "ipygpumem: nowhere: No such file or directory")),
        (["empty"], (1, "ipygpumem: empty: the directory contains no reports or snapshots of ranks")),
        (["run", "--html", "no/x.html"], (2, "does not exist")),
        (["run", "--plot", "no/x.png"], (2, "does not exist")),
        (["bare", "--html", "x.html"], (2, "at least two ranks with snapshots are required")),
        (["bare", "--plot", "x.png"], (2, "no rank has a snapshot")),
    ],
)
def test_errors(run, monkeypatch, capsys, arguments, outcome):
    tmp_path = run.parent
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with measure(rank_reports=tmp_path / "bare", rank=0):
        pass
    status, message = outcome
    assert main(["ranks", *arguments]) == status
    assert message in capsys.readouterr().err


def test_wrong_extensions(run, tmp_path, capsys):
    for option, name, ending in (("--plot", "x.txt", ".png"), ("--html", "x.png", ".html or .htm")):
        assert main(["ranks", str(run), option, str(tmp_path / name)]) != 0
        output = capsys.readouterr()
        assert output.out == "" and f"'{name}' is not a valid name" in output.err
        assert f"it must end in {ending}" in output.err


def test_page_shows_eight_of_nine(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "_WORKERS", 1)
    event = {"action": "alloc", "addr": 512, "size": 512, "time_us": 1}
    for number in range(9):
        (tmp_path / f"rank_{number}.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [[event]]}, 4))
    assert main(["ranks", str(tmp_path), "--html", str(tmp_path / "x.html")]) == 0
    assert "; the page contains 8 of 9 ranks\n" in capsys.readouterr().out
    assert (tmp_path / "x.html").read_text().count('class="ipygpumem-data"') == 8


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_interrupt_while_worker_processes_read(tmp_path):
    """Ctrl+C is sent to the command and its worker processes, as by a terminal."""
    content = (DATA / "gpt_small.pickle.xz").read_bytes()
    for rank in range(60):
        (tmp_path / f"rank_{rank:05d}.pickle.xz").write_bytes(content)
    code = f"import sys; from ipygpumem.cli import main; sys.exit(main(['ranks', {str(tmp_path)!r}]))"
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", code], **options) as process:
        threads = Path(f"/proc/{process.pid}/task")
        try:
            while process.poll() is None and not any(path.read_text() for path in threads.glob("*/children")):
                time.sleep(0.01)
            time.sleep(0.5)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, out, err) == (130, b"", b"")
