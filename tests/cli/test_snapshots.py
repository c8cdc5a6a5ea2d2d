"""Commands on snapshots."""

from __future__ import annotations

import json

import pytest

from cli.commands import GPT, OOM, run
from ipygpumem.snapshot import KEYS, Snapshot


def test_summary(capsys):
    status, out, err = run(capsys, "summary", GPT)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "GPU 0: peak 1.8 GiB requested, at event 285, 6.6 ms after the first event",
        "   721.2 MiB  40%  project/train_gpt.py:11 forward  (108 blocks)",
        "   593.9 MiB  33%  (older than the recording, without a stack)  (447 blocks)",
        "   240.2 MiB  13%  project/train_gpt.py:10 forward  (48 blocks)",
        "  8,088 events; at the end 593.9 MiB requested, 600.9 MiB after rounding up; 1.9 GiB reserved (peak 1.9 GiB)",
        (
            "  fragmentation: peak reserved memory exceeds peak allocated memory by at least 114.6 MiB (6%); "
            "see ipygpumem whatif gpt_small.pickle.xz"
        ),
        (
            "  note: 447 blocks (593.9 MiB) are older than the first event; "
            "the file does not say whether events were dropped"
        ),
        "gpt_small.pickle.xz",
    ]
    assert len(out.splitlines()) <= 24


def test_summary_as_json(capsys):
    status, out, _ = run(capsys, "summary", "--json", OOM)
    assert status == 0
    result = json.loads(out)
    assert result["file"] == OOM
    first = result["devices"][0]
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
def test_peak(capsys, key):
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
        "GPU 0: 606.9 MiB in 449 blocks allocated in the range of events and alive at its end",
        "   352.6 MiB  58%  project/experiment.py:27 step  (296 blocks)",
        "   254.3 MiB  42%  in 4 other groups",
    ]
    result = json.loads(run(capsys, "leaks", OOM, "--first", "3000", "--last", "5000", "--json")[1])
    assert result["devices"][0]["bytes"] == Snapshot.load(OOM).leaks(3000, 5000).bytes


def test_fragmentation(capsys):
    status, out, _ = run(capsys, "fragmentation", OOM, "--at", "oom")
    assert status == 0
    assert out.splitlines()[:3] == [
        "GPU 0: out of memory at event 5,998, 32.0 MiB requested",
        "  32.0 MiB was requested.",
        "  PyTorch had 102.5 MiB free in 40 blocks, the largest 7.0 MiB: none was large enough.",
    ]
    assert "no allocation failed" in run(capsys, "fragmentation", GPT, "--at", "oom")[1]
    assert json.loads(run(capsys, "fragmentation", OOM, "--at", "oom", "--json")[1])["ooms"][0]["asked"] == 32 << 20
    result = json.loads(run(capsys, "fragmentation", OOM, "--at", "3000", "--need", "30MiB", "--json")[1])
    assert result["devices"][0]["fit"]["segment"] == 30 << 20


def test_diff(capsys):
    status, out, _ = run(capsys, "diff", GPT, OOM, "--json", "--by", "function")
    result = json.loads(out)
    assert status == 0
    assert sum(change["bytes"] for change in result["changes"]) == result["after"] - result["before"]
    status, out, _ = run(capsys, "diff", OOM, OOM, "--at", "1000", "5000", "--top", "1")
    assert status == 0
    assert out.startswith("+")


def test_several_files_of_which_two_are_invalid(capsys, tmp_path):
    unsafe = tmp_path / "unsafe.pickle"
    unsafe.write_bytes(b"\x80\x04cos\nsystem\n.")
    status, out, err = run(capsys, "summary", GPT, unsafe, tmp_path / "none.pickle", OOM)
    assert status == 1
    assert out.count("GPU 0: peak") == 2
    assert err.splitlines() == [
        f"ipygpumem: {unsafe}: opcode GLOBAL would run code or load a class (at byte 2)",
        f"ipygpumem: {tmp_path}/none.pickle: No such file or directory",
    ]
    assert run(capsys, "diff", GPT, unsafe)[0] == 1


def test_file_without_devices(capsys, tmp_path):
    file = tmp_path / "none.json"
    file.write_text('{"segments": []}')
    for command in ("summary", "peak", "leaks", "fragmentation"):
        assert run(capsys, command, file)[1].endswith("none.json: no device used memory\n")


def test_singular(capsys, tmp_path):
    file = tmp_path / "one.json"
    blocks = [{"address": 512, "size": 2097152, "state": "inactive"}]
    file.write_text(json.dumps({"segments": [{"address": 512, "total_size": 2097152, "blocks": blocks}]}))
    assert "in 1 block, the largest 2.0 MiB" in run(capsys, "fragmentation", file)[1]


def test_missing_event_in_one_of_two_files(capsys):
    status, out, err = run(capsys, "fragmentation", GPT, OOM, "--at", "7000")
    assert status == 2
    assert f"{GPT}:" in out and OOM not in out
    assert err == f"ipygpumem: {OOM}: device 0 has no event 7000: it has 6,207 events\n"


def test_events_of_two_devices(capsys, tmp_path):
    alloc = {"action": "alloc", "addr": 512, "size": 8, "stream": 0, "time_us": 1}
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"segments": [], "device_traces": [[alloc] * 1, [alloc, {**alloc, "addr": 1024}]]}))
    status, out, err = run(capsys, "fragmentation", path, "--at", "1")
    assert (status, err) == (0, "")
    assert out.startswith("GPU 1 after event 1:")
    assert run(capsys, "fragmentation", path, "--at", "9")[2] == "ipygpumem: device 0 has no event 9: it has 1 event\n"
