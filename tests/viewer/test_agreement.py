"""The JavaScript model of the viewer and the Python queries give the same results."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ipygpumem.snapshot import Snapshot, diff
from ipygpumem.snapshot.export.encode import encode
from ipygpumem.snapshot.export.encoded_replay import encode_replays
from ipygpumem.snapshot.queries.groups import group_rows, label_rows
from snapshot.files import NAMES, path
from snapshot.replay.test_older_memory import MIB, with_uncertain_blocks
from snapshot.simulator import Simulator

ASK = Path(__file__).parent / "js" / "query.mjs"
KEYS = ("line", "function", "file", "cell", "stack", "annotation", "pool", "stream", "context", "metadata", "size")
HOST_ACTIONS = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"}

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def query():
    """Run queries in the JavaScript model, in one process of Node for all tests."""
    with subprocess.Popen(
        [shutil.which("node"), ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as node:

        def run(folder, snapshots, questions, settings=None):
            files = []
            for number, snapshot in enumerate(snapshots):
                files.append(folder / f"{number}.gpm")
                files[-1].write_bytes(encode(snapshot, encode_replays(snapshot, settings) if settings else None))
            node.stdin.write(json.dumps([[str(file) for file in files], questions]) + "\n")
            node.stdin.flush()
            return json.loads(node.stdout.readline())

        yield run


def simulated(seed, devices=2, steps=600):
    """Return a snapshot with expandable segments, private pools, several streams and pending frees."""
    generator = random.Random(seed)
    simulator = Simulator(devices=devices)
    simulator.run(
        (generator.randrange(13), generator.randrange(16), generator.randrange(1, 6 << 20), generator.randrange(3))
        for _ in range(steps)
    )
    return simulator.snapshot(ring_size=generator.choice([None, 250]) if devices > 1 else None)


@pytest.fixture(scope="module", params=[*NAMES, 1, 2, 3])
def real(request):
    return Snapshot.load(simulated(request.param) if isinstance(request.param, int) else path(request.param))


def sample_events(timeline, count=6):
    last = len(timeline.trace) - 1
    generator = random.Random(len(timeline.trace))
    return [-1, last, timeline.requested.peak()[0], *(generator.randrange(last) for _ in range(count))]


def groups_of(answer):
    return [(group["label"], group["bytes"], group["count"]) for group in answer["groups"]]


def test_peaks_and_counts(real, tmp_path, query):
    (file,) = query(tmp_path, [real], [])["files"]
    assert len(file["devices"]) == len(real.timelines)
    for device, timeline in zip(file["devices"], real.timelines, strict=True):
        event, requested = timeline.requested.peak()
        assert (device["peak"]["event"], device["peak"]["bytes"]) == (event, requested)
        assert device["events"] == len(timeline.trace)
        assert device["allocations"] == len(timeline.allocations)
        assert device["reserved"] == timeline.reserved.peak()[1]


def test_live_sets_by_every_key(real, tmp_path, query):
    timeline = real.timeline()
    arguments = [(event, key) for event in sample_events(timeline) for key in KEYS]
    questions = [
        ["live", {"device": timeline.device, "event": event, "range": None, "key": key, "limit": 10**6}]
        for event, key in arguments
    ]
    answers = query(tmp_path, [real], questions)["answers"]
    for (event, key), answer in zip(arguments, answers, strict=True):
        expected = [(group.label, group.bytes, group.count) for group in real.live(event, timeline.device).by(key)]
        assert sorted(groups_of(answer)) == sorted(expected), (event, key)
        sizes = [size for _, size, _ in expected]
        assert [size for _, size, _ in groups_of(answer)] == sorted(sizes, reverse=True)


def test_allocations_by_name(real, tmp_path, query):
    timeline = real.timeline()
    allocations = timeline.allocations
    event = timeline.requested.peak()[0]
    rows = allocations.live(event).tolist()
    question = ["live", {"device": timeline.device, "event": event, "range": None, "key": "allocation", "limit": 10**6}]
    (answer,) = query(tmp_path, [real], [question])["answers"]
    expected = {allocations.name(row): int(allocations.size[row]) for row in rows}
    assert {group["label"]: group["bytes"] for group in answer["groups"]} == expected


def test_states(real, tmp_path, query):
    timeline = real.timeline()
    events = sample_events(timeline)
    questions = [["state", {"device": timeline.device, "event": event, "mode": "line"}] for event in events]
    for event, answer in zip(events, query(tmp_path, [real], questions)["answers"], strict=True):
        state = real.state_at(event, timeline.device)
        segments = [item["segment"] for item in answer["segments"]]
        assert [(segment["address"], segment["size"]) for segment in segments] == [
            (segment["address"], segment["size"]) for segment in state.segments
        ]
        blocks = [block for item in answer["segments"] for block in item["blocks"]] + answer["outside"]
        assert sorted((block["address"], block["requested"], block["pending"]) for block in blocks) == sorted(
            (int(block["address"]), int(block["requested"]), bool(block["pending"])) for block in state.blocks
        )
        free = real.fragmentation(event, timeline.device)  # with the sizes of blocks from a replay if it is exact
        for name in ("reserved", "requested", "free", "largest", "pieces", "empty", "partly", "private", "derived"):
            assert answer[name] == getattr(free, name), (event, name)


@pytest.mark.parametrize("settings", ["expandable_segments:True", "max_split_size_mb:32"])
def test_replayed_states(settings, tmp_path, query):
    names = ("oom_fragmented", "cuda_graphs", "two_streams_expandable", "cnn_steps")
    snapshots = [Snapshot.load(path(name)) for name in names]
    replays = [snapshot.replay(settings) for snapshot in snapshots]
    asked = [(file, event) for file, item in enumerate(snapshots) for event in sample_events(item.timeline())]
    questions = [["state", {"source": file, "event": event, "mode": "line", "replayed": True}] for file, event in asked]
    moments = [["moment", {"source": file, "event": event}] for file, event in asked]
    answers = query(tmp_path, snapshots, [*questions, *moments], settings)
    for (file, event), answer, moment in zip(
        asked, answers["answers"][: len(asked)], answers["answers"][len(asked) :], strict=True
    ):
        snapshot, replay = snapshots[file], replays[file]
        state = replay.state(event)
        segments = [item["segment"] for item in answer["segments"]]
        assert [(item["address"], item["size"], item["expandable"]) for item in segments] == [
            (item["address"], item["size"], item["expandable"]) for item in state.segments
        ], (names[file], event)
        assert not answer["outside"]
        order = np.argsort(snapshot.timeline().allocations.start, kind="stable")
        assert [
            (block["address"], block["requested"], block["rounded"], order[block["row"]], block["pending"])
            for item in answer["segments"]
            for block in item["blocks"]
        ] == [(*tuple(row)[:4], row["pending"]) for row in state.blocks], (names[file], event)
        assert answer["reserved"] == moment["replayed"] == replay.reserved.bytes[event + 1] == state.reserved
        assert f"Replayed with {settings}" in answer["sentences"][0]
        in_pool = {block["row"]: item["segment"] for item in answer["segments"] for block in item["blocks"]}
        recording = replay._run.recording
        for row, segment in in_pool.items():
            pool = recording.pools[recording.pool_of[order[row]]]
            assert (segment["stream"], segment["pool"]) == (pool.stream, pool.id)
    facts = [file["devices"][0]["replay"] for file in answers["files"]]
    assert [item["peak"] for item in facts] == [item.reserved_peak for item in replays]
    assert all((item["reason"] == "") == (replay.grade == "exact") for item, replay in zip(facts, replays, strict=True))


@pytest.mark.parametrize("replayed", [False, True])
def test_uncertain_sizes_of_older_blocks(replayed, tmp_path, query):
    """A free block may begin up to 1 MiB after the end of an older block, so that its size is an upper bound."""
    snapshot = with_uncertain_blocks()
    last = len(snapshot.timeline().trace) - 1
    questions = [["state", {"event": event, "mode": "line", "replayed": replayed}] for event in (0, 1, last)]
    answers = query(tmp_path, [snapshot], questions, "expandable_segments:True")["answers"]
    for answer, derived in zip(answers, (True, True, False), strict=True):
        blocks = {block["requested"]: block["exact"] for item in answer["segments"] for block in item["blocks"]}
        assert blocks == ({8 * MIB: False} if derived else {}) | ({} if answer["event"] == 0 else {60 * MIB: True})
        assert answer["derived"] == derived
        free = next(text for text in answer["sentences"] if " reserved is free" in text)
        assert free.startswith("Up to ") == derived


def test_texts_attached_to_allocations(tmp_path, query):
    raw = simulated(4, devices=1)
    (trace,) = raw["device_traces"]
    generator = random.Random(4)
    addresses = sorted({event["addr"] for event in trace if event["action"] == "alloc"})
    for place in sorted(generator.choices(range(len(trace)), k=800), reverse=True):
        text = generator.choice(["", "saved for backward", "layer 3", "x" * 300])
        address = generator.choice(addresses)
        trace.insert(place, {**trace[place], "action": "annotate", "addr": address, "user_metadata": text})
    snapshot = Snapshot.load(raw)
    events = [*sample_events(snapshot.timeline()), len(trace) // 2]
    questions = [["live", {"event": event, "range": None, "key": "metadata", "limit": 10**6}] for event in events]
    answers = query(tmp_path, [snapshot], [*questions, ["search", {"text": "saved for"}]])["answers"]
    labels = set()
    for event, answer in zip(events, answers[:-1], strict=True):
        expected = [(group.label, group.bytes, group.count) for group in snapshot.live(event).by("metadata")]
        assert sorted(groups_of(answer)) == sorted(expected), event
        labels.update(label for label, *_ in expected)
    assert any("saved for backward; " in label for label in labels)
    rows = np.arange(len(snapshot.timeline().allocations))
    names, numbers = label_rows(snapshot, snapshot.timeline(), rows, "metadata")
    assert answers[-1]["allocations"] == sum("saved for" in names[number] for number in numbers)
    (answer,) = query(tmp_path, [snapshot], [["allocation", {"row": answers[-1]["row"]}]])["answers"]
    assert "saved for backward" in [annotation["text"] for annotation in answer["annotations"]]


def test_pinned_memory(tmp_path, query):
    raw = simulated(6, devices=1)
    raw["host_traces"] = [event for event in raw["device_traces"][0] if event["action"] in HOST_ACTIONS]
    size = {"size": 1 << 30, "segment_pool_id": (0, 0), "frames": []}
    raw["host_segments"] = [{"address": 1 << 60, "allocated": True, "active": True, **size}]
    snapshot = Snapshot.load(raw)
    timeline = snapshot.host_timeline
    event, requested = timeline.requested.peak()
    question = {"device": 1, "range": None, "limit": 10**6}
    questions = [["live", {**question, "event": event, "key": key}] for key in ("stream", "size")]
    response = query(tmp_path, [snapshot], questions)
    host = response["files"][0]["devices"][1]
    assert (host["index"], host["name"], host["peak"]["bytes"]) == (-1, "pinned host memory", requested)
    assert host["reserved"] == timeline.reserved.peak()[1]
    rows = timeline.allocations.live(event)
    for (_, arguments), answer in zip(questions, response["answers"], strict=True):
        expected = [(g.label, g.bytes, g.count) for g in group_rows(snapshot, timeline, rows, arguments["key"])]
        assert sorted(groups_of(answer)) == sorted(expected)


@pytest.mark.parametrize("key", ["line", "stack", "size"])
def test_differences(tmp_path, key, query):
    snapshots = [Snapshot.load(path(name)) for name in ("gpt_small", "gpt_cpp")]
    before, after = (
        {"source": number, "device": 0, "event": snapshot.timeline(0).requested.peak()[0]}
        for number, snapshot in enumerate(snapshots)
    )
    question = ["diff", {"before": before, "after": after, "key": key, "limit": 10**6}]
    (answer,) = query(tmp_path, snapshots, [question])["answers"]
    expected = diff(*snapshots, key)
    assert (answer["before"], answer["after"]) == (expected.before, expected.after)
    assert sorted((c["before"], c["after"], c["countBefore"], c["countAfter"]) for c in answer["changes"]) == sorted(
        (c.before, c.after, c.count_before, c.count_after) for c in expected.changes
    )


def test_search(real, tmp_path, query):
    timeline = real.timeline()
    trace, allocations = timeline.trace, timeline.allocations
    row = len(allocations) // 2
    questions = [
        ["search", {"device": timeline.device, "text": text}]
        for text in ("forward", ">10 MiB", allocations.name(row), "oom", "no such text anywhere")
    ]
    text, large, name, oom, missing = query(tmp_path, [real], questions)["answers"]
    stacks = [
        any("forward" in str(frame).lower() for frame in real.stacks.stack(n)) for n in range(len(real.stacks.leaf))
    ]
    assert text["events"] == sum(stack >= 0 and stacks[stack] for stack in trace.stack.tolist())
    assert large["events"] == int((trace.size > 10 << 20).sum())
    assert large["allocations"] == int((allocations.size > 10 << 20).sum())
    assert name["allocations"] == 1
    assert oom["events"] == len(trace.events(7))
    assert (missing["events"], missing["allocations"], missing["first"]) == (0, 0, -1)


@pytest.mark.parametrize("seed", range(4))
def test_pools_are_inferred_from_segments(tmp_path, seed, query):
    """Without pool ids in its events, the pool of a block is that of its segment, or unknown, but never a wrong one."""
    complete = simulated(seed, devices=1, steps=900)
    traces = [[{**event} for event in trace] for trace in complete["device_traces"]]
    for event in traces[0]:
        event.pop("pool_id", None)
    original, inferred = Snapshot.load(complete), Snapshot.load({**complete, "device_traces": traces})
    rows = np.arange(len(original.timeline(0).allocations))
    labels, codes = label_rows(original, original.timeline(0), rows, "pool")
    inferred_labels, inferred_codes = label_rows(inferred, inferred.timeline(0), rows, "pool")
    pairs = [
        (inferred_labels[code], labels[expected])
        for expected, code in zip(codes.tolist(), inferred_codes.tolist(), strict=True)
    ]
    assert all(label in {"(unknown)", expected} for label, expected in pairs)
    assert any(label != "(unknown)" for label, _ in pairs)
    events = sample_events(inferred.timeline(0))
    questions = [["live", {"event": event, "range": None, "key": "pool", "limit": 99}] for event in events]
    for event, answer in zip(events, query(tmp_path, [inferred], questions)["answers"], strict=True):
        expected = [(group.label, group.bytes, group.count) for group in inferred.live(event, 0).by("pool")]
        assert sorted(groups_of(answer)) == sorted(expected), event


def test_pool_of_block_whose_segment_outlives_another(tmp_path, query):
    mib = 1 << 20
    events = [
        ("segment_alloc", 0x10000000, 20 * mib),
        ("alloc", 0x10000000, mib),
        ("free_completed", 0x10000000, mib),
        ("segment_alloc", 0x90000000, 20 * mib),
        ("segment_free", 0x90000000, 20 * mib),
        ("alloc", 0x10000000, 2 * mib),
        ("free_completed", 0x10000000, 2 * mib),
    ]
    trace = [
        {"action": action, "addr": address, "size": size, "time_us": time, "stream": 0, "frames": []}
        for time, (action, address, size) in enumerate(events)
    ]
    segment = {"device": 0, "address": 0x10000000, "total_size": 20 * mib, "stream": 0, "segment_type": "large"}
    segment |= {"segment_pool_id": (0, 3), "is_expandable": False, "frames": [], "blocks": []}
    snapshot = Snapshot.load({"segments": [segment], "device_traces": [trace]})
    assert [group.label for group in snapshot.live(1).by("pool")] == ["private pool (0, 3)"]
    (answer,) = query(tmp_path, [snapshot], [["allocation", {"row": 1}]])["answers"]
    assert answer["pool"] == "private pool (0, 3)"
