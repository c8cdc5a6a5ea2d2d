"""Shared snapshots contain neither source code nor directories; everything else is unchanged."""

from __future__ import annotations

import base64
import json
import re

import pytest

from ipygpumem import Snapshot
from ipygpumem.snapshot.export.redaction import align_start_times, strip_directories, without_private_data
from ipygpumem.snapshot.model.stacks import is_user_file
from snapshot import files
from snapshot.decoding import decode

CELL = "/scratch/ipykernel_77/123.py"
SECRET = "/home/alice/secret"


@pytest.fixture
def snapshot():
    root = files.raw("gpt_small")
    for event in root["device_traces"][0]:
        for frame in event.get("frames", ()):
            frame["filename"] = frame["filename"].replace("/home/user/project/train_gpt.py", CELL)
    times = [event["time_us"] for event in root["device_traces"][0]]
    root["ipygpumem"] = {
        "host": "alices-machine",
        "cells": [{"number": 3, "filename": CELL, "start_us": times[0], "end_us": times[-1], "success": True}],
    }
    root["source_code"] = {CELL: "\n".join(f"line {number}" for number in range(1, 40))}
    return Snapshot.load(root)


def test_nothing_to_remove(snapshot):
    assert without_private_data(snapshot) is snapshot


def test_without_source(snapshot):
    before = snapshot.by_line()
    assert before[0].source == "line 11"
    result = without_private_data(snapshot, source=False)
    assert result.sources == {}
    assert result.by_line()[0].source is None
    assert result.by_line()[0].label == before[0].label == "In[3]:11 forward"
    assert snapshot.by_line() == before, "the original is unchanged"
    assert "line 11" not in json.dumps(decode(result.encode())[0])


def test_without_paths(snapshot):
    result = without_private_data(snapshot, paths=False)
    header, _ = decode(result.encode())
    text = json.dumps(header, ensure_ascii=False)
    assert "/scratch/" not in text
    assert "/usr/lib" not in text
    assert "alices-machine" not in text
    assert result.own.host is None
    assert "…/ipykernel_77/123.py" in text
    original, shared = snapshot.by_line(), result.by_line()
    assert [(group.label, group.bytes, group.count, group.source) for group in original] == [
        (group.label, group.bytes, group.count, group.source) for group in shared
    ]
    assert result.live().by("cell")[0].label == "In[3]"
    for before, after in zip(snapshot.stacks.frames, result.stacks.frames, strict=True):
        assert is_user_file(before.file) == is_user_file(after.file)
        assert (before.line, before.name) == (after.line, after.name)


def test_without_paths_readings_and_curves_contain_only_numbers():
    metadata = {
        "readings": {
            "before": {
                "cuda:0": {"name": "alice", "used": 7, "why": "/home/alice", "more": {"alice": 1}, "process": None}
            },
            "after": {"cuda:0": {"used": 9, "allocated": "alice"}, "/home/alice": {"used": 1}},
            "alice": {},
        },
        "curves": {
            "device used": {"device": 0, "time_us": [1, 2], "bytes": [3, 4], "alice": "alice"},
            "outside PyTorch + other processes, cuda:0": {"device": 0, "time_us": [1], "bytes": [3]},
            "outside PyTorch": {"device": 0, "time_us": ["alice"], "bytes": [3]},
            "/home/alice": {"device": 0, "time_us": [1], "bytes": [3]},
        },
    }
    events = [{"action": "alloc", "addr": 512, "size": 512, "stream": 0, "time_us": 5, "frames": []}]
    result = without_private_data(
        Snapshot.load({"device_traces": [events], "segments": [], "ipygpumem": metadata}), paths=False
    )
    header, _ = decode(result.encode())
    assert "alice" not in json.dumps(header)
    assert header["readings"] == {"before": {"cuda:0": {"used": 7}}, "after": {"cuda:0": {"used": 9}}}
    assert header["curves"] == {
        "device used": {"device": 0, "time_us": [1, 2], "bytes": [3, 4]},
        "outside PyTorch + other processes, cuda:0": {"device": 0, "time_us": [1], "bytes": [3]},
    }


def frames_with_canaries(kind):
    files = [
        f"/home/canary_{kind}_directory/canary_{kind}_file.py",
        f"/canary_{kind}_root/lib/python3.11/canary_{kind}_library/x.py",
        f"/canary_{kind}_root/torch/utils/canary_{kind}_utility/x.py",
        f"/canary_{kind}_root/torch/_canary_{kind}_private/x.py",
        f"/canary_{kind}_root/lib/python3.11/site-packages/canary_{kind}_package/x.py",
        f"/canary_{kind}_root/torchinductor_canary_{kind}_user/x.py",
    ]
    return [{"filename": file, "line": 1, "name": f"canary_{kind}_function"} for file in files]


def test_page_contains_only_documented_texts(tmp_path):
    cell = "/home/canary_cell_directory/canary_cell_file.py"
    event = {"addr": 512, "size": 512, "stream": 0, "time_us": 5, "canary_event_key": "canary_event_value"}
    texts = {"compile_context": "canary_compile_context", "user_metadata": "canary_user_metadata"}
    block = {"address": 512, "size": 512, "requested_size": 512, "state": "active_allocated"}
    segment = {"address": 512, "total_size": 1024, "segment_type": "large", "segment_pool_id": (0, 0), "device": 0}
    annotation = {"name": "canary_annotation", "device": 0, "canary_annotation_key": "canary_annotation_value"}
    root = {
        "device_traces": [
            [
                {**event, "action": "alloc", "frames": frames_with_canaries("event"), **texts},
                {**event, "action": "canary_action", "frames": []},
            ]
        ],
        "segments": [
            {
                **segment,
                "frames": frames_with_canaries("segment"),
                "blocks": [{**block, "frames": frames_with_canaries("block"), "canary_block_key": 1}],
                "canary_segment_key": "canary_segment_value",
            }
        ],
        "host_traces": [[{**event, "action": "alloc", "frames": frames_with_canaries("host")}]],
        "external_annotations": [
            {**annotation, "stage": "START", "time_us": 1},
            {**annotation, "stage": "END", "time_us": 9},
        ],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "canary_setting",
            "roundup_power2_divisions": {"canary_setting_key": 1},
            "max_split_size": 7,
            "/canary_setting_directory": 7,
            "canary_setting_name": 7,
        },
        "source_code": {cell: "canary_source", "/canary_source_directory/x.py": "canary_source"},
        "ipygpumem": {
            "version": "canary_version",
            "torch": "canary_torch",
            "host": "canary_host",
            "recording": {"own": True, "stacks": "canary_stacks", "context": "canary_context"},
            "cells": [{"number": 3, "filename": cell, "start_us": 1, "end_us": 9, "success": True, "canary_key": 1}],
            "numbers": {cell: 3, "/canary_number_directory/x.py": 4},
            "devices": [{"index": 0, "name": "canary_device", "uuid": "canary_uuid", "total": 1 << 20}],
            "readings": {
                "before": {"cuda:0": {"name": "canary_reading", "used": 1}, "canary_reading_device": {"used": 1}}
            },
            "curves": {"canary_curve": {"device": 0, "time_us": [1], "bytes": [1]}},
            "canary_own_key": "canary_own_value",
        },
        "canary_root_key": "canary_root_value",
    }
    file = tmp_path / "canary_snapshot.json"
    file.write_text(json.dumps(root))
    snapshot = Snapshot.load(file)
    page = snapshot.to_html(tmp_path / "page.html", source=False, paths=False).read_text()
    (data,) = re.findall(r'class="ipygpumem-data" data-name="snapshot">([^<]*)<', page)
    header, _ = decode(base64.b64decode(data))
    assert not re.search("torch|host|version", "".join(re.findall(r"canary_\w+", snapshot.view(paths=False).text)))
    names = ("file", "function", "package")
    kinds = ("event", "segment", "block", "host")
    assert set(re.findall(r"canary_\w+", page + json.dumps(header))) == {
        *(f"canary_{kind}_{name}" for kind in kinds for name in names),
        "canary_action",
        "canary_annotation",
        "canary_cell_file",
        "canary_compile_context",
        "canary_device",
        "canary_user_metadata",
    }
    assert header["settings"] == {"max_split_size": 7}
    assert header["sources"] == {}
    for name in (
        "functions",
        "source files",
        "installed packages",
        "devices",
        "actions",
        "annotations",
        "user metadata",
    ):
        assert name in " ".join(Snapshot.to_html.__doc__.split())


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (f"{SECRET}/train.py", "train.py"),
        (r"C:\Users\alice\train.py", "train.py"),
        (f"{SECRET}/torch/train.py", "train.py"),
        (f"{SECRET}/torch/alices_model/layers.py", "layers.py"),
        (f"{SECRET}/.venv/lib/python3.12/site-packages/torch/nn/linear.py", "…/site-packages/torch/nn/linear.py"),
        (r"C:\Users\alice\Lib\site-packages\torch\nn\functional.py", r"…\site-packages\torch\nn\functional.py"),
        (f"{SECRET}/lib/python3.11/threading.py", "…/lib/python3.11/threading.py"),
        (f"{SECRET}/pytorch/torch/nn/modules/linear.py", "…/torch/nn/linear.py"),
        (f"{SECRET}/torch/utils/alice/x.py", "…/torch/utils/x.py"),
        (f"{SECRET}/torch/_alice/x.py", "…/lib/python3/x.py"),
        (f"{SECRET}/lib/python3.11/alice/x.py", "…/lib/python3.11/x.py"),
        (f"{SECRET}/lib/python3.11/alice/site-packages/numpy/x.py", "…/site-packages/numpy/x.py"),
        (f"{SECRET}/lib/python3.11/site-packages/../../alice/x.py", "…/lib/python3.11/x.py"),
        (r"c:\Users\alice\miniconda3\lib\alice\x.py", "…/lib/python3/x.py"),
        (f"{SECRET}/pytorch/aten/src/ATen/Context.cpp", "Context.cpp"),
        ("/scratch/torchinductor_alice/ab/cabc.py", "…/.triton/cabc.py"),
        (f"{SECRET}/.triton/cache/xyz/k.py", "…/.triton/k.py"),
        ("/scratch/ipykernel_12/345.py", "…/ipykernel_12/345.py"),
        ("<ipython-input-3-0123456789ab>", "<ipython-input-3-0123456789ab>"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ("<eval_with_key>.17", "<eval_with_key>.17"),
        ("??", "??"),
        ("", ""),
    ],
)
def test_file_names(file, name):
    short = strip_directories([file])[file]
    assert short == name
    assert "alice" not in short
    assert is_user_file(short) == is_user_file(file)


def test_different_files_keep_different_names():
    names = strip_directories(["/a/x.py", "/b/x.py", "/c/x.py", "/a/x.py", "/a/y", "/b/y"])
    assert names == {"/a/x.py": "x.py", "/b/x.py": "x~2.py", "/c/x.py": "x~3.py", "/a/y": "y", "/b/y": "y~2"}


def snapshot_starting_at(start):
    cells = [] if start is None else [{"number": 1, "filename": "", "start_us": start, "end_us": start + 9}]
    events = [{"action": "alloc", "addr": 512, "size": 512, "stream": 0, "time_us": 5_000_700, "frames": []}]
    return Snapshot.load({"device_traces": [events], "segments": [], "ipygpumem": {"schema": 1, "cells": cells}})


def test_times_start_with_each_measurement():
    first, second = snapshot_starting_at(5_000_000), snapshot_starting_at(5_000_600)
    aligned = align_start_times([first, second])
    assert [decode(snapshot.encode())[0]["devices"][0].get("zero_us") for snapshot in aligned] == [5_000_000, 5_000_600]
    assert first.zero_us is None and second.zero_us is None, "the originals are unchanged"


@pytest.mark.parametrize("starts", [[5_000_000], [5_000_000, None], [None, None]])
def test_times_are_unchanged_without_two_starts(starts):
    result = [snapshot_starting_at(start) for start in starts]
    assert align_start_times(result) == result
    assert "zero_us" not in decode(result[0].encode())[0]["devices"][0]
