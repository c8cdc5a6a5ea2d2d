"""File formats, and keys of future PyTorch versions."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys

import pytest

from ipygpumem.core.errors import SnapshotError
from ipygpumem.snapshot import Snapshot
from snapshot import files
from snapshot.entries import event, frame, group_totals


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_json_encodings(encoding):
    raw = {"device_traces": [[event("alloc", 512, 5, 1, [frame("/ä.py", 1, "ö")])]]}
    snapshot = Snapshot.load(json.dumps(raw, ensure_ascii=False).encode(encoding))
    assert snapshot.by_line()[0].file == "/ä.py"


@pytest.mark.parametrize("protocol", [0, 1])
def test_old_pickle_protocols(protocol):
    with pytest.raises(SnapshotError, match="a pickle with protocol 0 or 1"):
        Snapshot.load(pickle.dumps({"device_traces": [], "segments": []}, protocol))


def test_values_of_future_versions():
    metadata = {"step": 3, "name": "x" * 200, "deep": [1]}
    trace = [event("alloc", 512, 1, 5, user_metadata=metadata) | {"stream": -2}]
    trace += [{"action": "annotate", "time_us": 6}, {"action": "snapshot", "time_us": 7}]
    stages = [("x", "INSTANT", 0), ("y", "START", None), ("z", "START", 0)]
    raw = {
        "device_traces": [trace],
        "external_annotations": [{"name": n, "stage": s, "device": d, "time_us": 1} for n, s, d in stages],
        "allocator_settings": {"huge": 10**5000, "fine": 5},
        "new": {1: 2, None: {3, 4}, 2.5: b"octets", "set": frozenset({5}), "more": bytearray(3), "huge": 1 << 5000},
    }
    for source in (raw, pickle.dumps(raw, 5)):
        snapshot = Snapshot.load(source)
        snapshot.encode()
        assert [(a.name, a.device) for a in snapshot.annotations()] == [("y", -1), ("z", 0)]
        assert group_totals(snapshot.live().by("metadata")) == {"step=3, name=" + "x" * 100: (1, 1)}
        assert group_totals(snapshot.live().by("stream")) == {"stream -0x2": (1, 1)}
        assert snapshot.settings["fine"] == 5


@pytest.mark.parametrize("convert", [lambda raw: raw, pickle.dumps, lambda raw: json.dumps(raw).encode()])
def test_addresses_of_xpus_are_refused(convert):
    address = 0xFF00_0000_0020_0000
    trace = {"segments": [], "device_traces": [[event("alloc", address, 1, 5)] * 30]}
    segments = {"segments": [{"address": address, "total_size": 512}]}
    for raw, key in ((trace, r"device_traces\[0\]\[0\]: addr"), (segments, r"segments\[0\]: address")):
        with pytest.raises(SnapshotError, match=f"{key} is out of range: addresses of 2.*63 or more, as on Intel XPUs"):
            Snapshot.load(convert(raw))


def test_host_traces():
    entry = {"action": "alloc", "addr": 4096, "size": 10, "stream": 0, "time_us": 1}
    raw = {"device_traces": [], "segments": []}
    assert [t.size.tolist() for t in Snapshot.load(raw | {"host_traces": [entry]}).host] == [[10]]
    assert [t.size.tolist() for t in Snapshot.load(raw | {"host_traces": [[entry], []]}).host] == [[10], []]
    for invalid, message in (["?"], "host_traces[0] is a str, not a dict"), ({}, "host_traces is a dict, not a list"):
        (trace,) = Snapshot.load(raw | {"host_traces": invalid}).host
        assert (len(trace), trace.error) == (0, message)


def test_tables_are_the_same_in_every_process():
    code = (
        "import hashlib, sys; from ipygpumem import Snapshot;"
        "print(hashlib.sha256(Snapshot.load(sys.argv[1]).encode()).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(files.path("gpt_small"))]
    other_process = subprocess.run(command, capture_output=True, check=True, timeout=200, text=True).stdout
    assert other_process.strip() == hashlib.sha256(files.snapshot("gpt_small").encode()).hexdigest()
