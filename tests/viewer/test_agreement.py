"""The viewer's model and the Python columns give the same answers to the same questions."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ipygpumem.snapshot import Snapshot, diff
from ipygpumem.snapshot.queries.fragmentation import fragmentation
from ipygpumem.snapshot.queries.group_keys import label_rows
from snapshot.files import NAMES, path
from snapshot.simulator import Simulator

ASK = Path(__file__).parents[2] / "ipygpumem" / "viewer" / "js" / "test" / "query.mjs"
KEYS = ("line", "function", "file", "cell", "stack", "annotation", "pool", "stream", "context", "metadata", "size")

pytestmark = pytest.mark.node


def ask(folder, snapshots, questions):
    files = []
    for number, snapshot in enumerate(snapshots):
        files.append(folder / f"{number}.gpm")
        files[-1].write_bytes(snapshot.encode())
    done = subprocess.run(
        [shutil.which("node"), ASK, *files],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def made(seed):
    """Expandable segments, private pools, two streams, two devices, blocks that wait, a ring buffer that lost some."""
    dice = random.Random(seed)
    simulator = Simulator(devices=2)
    simulator.run(
        (dice.randrange(13), dice.randrange(16), dice.randrange(1, 6 << 20), dice.randrange(3)) for _ in range(600)
    )
    return Snapshot.load(simulator.snapshot(kept=dice.choice([None, 250])))


@pytest.fixture(scope="module", params=[*NAMES, 1, 2, 3])
def real(request):
    return made(request.param) if isinstance(request.param, int) else Snapshot.load(path(request.param))


def moments(timeline, count=6):
    last = len(timeline.trace) - 1
    dice = random.Random(len(timeline.trace))
    return [-1, last, timeline.requested.peak()[0], *(dice.randrange(last) for _ in range(count))]


def groups_of(answer):
    return [(one["label"], one["bytes"], one["count"]) for one in answer["groups"]]


def test_peaks_and_counts(real, tmp_path):
    (found,) = ask(tmp_path, [real], [])["files"]
    assert len(found["devices"]) == len(real.timelines)
    for mine, timeline in zip(found["devices"], real.timelines, strict=True):
        event, requested = timeline.requested.peak()
        assert (mine["peak"]["event"], mine["peak"]["bytes"]) == (event, requested)
        assert mine["events"] == len(timeline.trace)
        assert mine["allocations"] == len(timeline.allocations)
        assert mine["reserved"] == timeline.reserved.peak()[1]


def test_live_sets_by_every_key(real, tmp_path):
    timeline = real.timeline()
    asked = [(event, key) for event in moments(timeline) for key in KEYS]
    questions = [
        ["live", {"device": timeline.device, "event": event, "range": None, "key": key, "most": 10**6}]
        for event, key in asked
    ]
    answers = ask(tmp_path, [real], questions)["answers"]
    for (event, key), answer in zip(asked, answers, strict=True):
        wanted = [(one.label, one.bytes, one.count) for one in real.live(event, timeline.device).by(key)]
        assert sorted(groups_of(answer)) == sorted(wanted), (event, key)
        assert [one[1] for one in groups_of(answer)] == sorted((one[1] for one in wanted), reverse=True)


def test_allocations_by_name(real, tmp_path):
    timeline = real.timeline()
    allocations = timeline.allocations
    event = timeline.requested.peak()[0]
    rows = allocations.live(event).tolist()
    question = ["live", {"device": timeline.device, "event": event, "range": None, "key": "allocation", "most": 10**6}]
    (answer,) = ask(tmp_path, [real], [question])["answers"]
    wanted = {allocations.name(row): int(allocations.size[row]) for row in rows}
    assert {one["label"]: one["bytes"] for one in answer["groups"]} == wanted


def test_states(real, tmp_path):
    timeline = real.timeline()
    events = moments(timeline)
    questions = [["state", {"device": timeline.device, "event": event, "mode": "line"}] for event in events]
    for event, mine in zip(events, ask(tmp_path, [real], questions)["answers"], strict=True):
        state = real.state_at(event, timeline.device)
        assert [(one["segment"]["address"], one["segment"]["size"]) for one in mine["segments"]] == [
            (one["address"], one["size"]) for one in state.segments
        ]
        blocks = [block for one in mine["segments"] for block in one["blocks"]] + mine["outside"]
        assert sorted((one["address"], one["requested"], one["pending"]) for one in blocks) == sorted(
            (int(one["address"]), int(one["requested"]), bool(one["pending"])) for one in state.blocks
        )
        free = fragmentation(real, state)
        for name in ("reserved", "requested", "free", "largest", "pieces", "empty", "partly", "private", "derived"):
            assert mine[name] == getattr(free, name), (event, name)


@pytest.mark.parametrize("key", ["line", "stack", "size"])
def test_differences(tmp_path, key):
    one, other = (Snapshot.load(path(name)) for name in ("gpt_small", "gpt_cpp"))
    before, after = (
        {"source": number, "device": 0, "event": snapshot.timeline(0).requested.peak()[0]}
        for number, snapshot in enumerate((one, other))
    )
    question = ["diff", {"before": before, "after": after, "key": key, "most": 10**6}]
    (mine,) = ask(tmp_path, [one, other], [question])["answers"]
    wanted = diff(one, other, key)
    assert (mine["before"], mine["after"]) == (wanted.before, wanted.after)
    assert sorted((c["before"], c["after"], c["countBefore"], c["countAfter"]) for c in mine["changes"]) == sorted(
        (c.before, c.after, c.count_before, c.count_after) for c in wanted.changes
    )


def test_search(real, tmp_path):
    timeline = real.timeline()
    trace, allocations = timeline.trace, timeline.allocations
    row = len(allocations) // 2
    questions = [
        ["search", {"device": timeline.device, "text": text}]
        for text in ("forward", ">10 MiB", allocations.name(row), "oom", "no such text anywhere")
    ]
    text, large, name, oom, none = ask(tmp_path, [real], questions)["answers"]
    stacks = [any("forward" in str(frame).lower() for frame in real.stacks.stack(n)) for n in range(len(real.stacks))]
    assert text["events"] == sum(stack >= 0 and stacks[stack] for stack in trace.stack.tolist())
    assert large["events"] == int((trace.size > 10 << 20).sum())
    assert large["allocations"] == int((allocations.size > 10 << 20).sum())
    assert name["allocations"] == 1
    assert oom["events"] == len(trace.events(7))
    assert (none["events"], none["allocations"], none["first"]) == (0, 0, -1)


@pytest.mark.parametrize("seed", range(4))
def test_pools_that_the_events_do_not_tell(tmp_path, seed):
    """The segment that held a block tells its pool, also where segments were given back; never a wrong one."""
    dice = random.Random(seed)
    simulator = Simulator(devices=1)
    simulator.run(
        (dice.randrange(13), dice.randrange(16), dice.randrange(1, 6 << 20), dice.randrange(3)) for _ in range(900)
    )
    full = simulator.snapshot()
    told = Snapshot.load(full)
    bare = {**full, "device_traces": [[dict(one) for one in trace] for trace in full["device_traces"]]}
    for one in bare["device_traces"][0]:
        one.pop("pool_id", None)
    untold = Snapshot.load(bare)
    rows = np.arange(len(told.timeline(0).allocations))
    labels, which = label_rows(told, told.timeline(0), rows, "pool")
    mine, where = label_rows(untold, untold.timeline(0), rows, "pool")
    pairs = [(mine[b], labels[a]) for a, b in zip(which.tolist(), where.tolist(), strict=True)]
    assert all(found in {"(unknown)", truth} for found, truth in pairs)
    assert any(found != "(unknown)" for found, _ in pairs)
    events = moments(untold.timeline(0))
    questions = [["live", {"event": event, "range": None, "key": "pool", "most": 99}] for event in events]
    for event, answer in zip(events, ask(tmp_path, [untold], questions)["answers"], strict=True):
        wanted = [(one.label, one.bytes, one.count) for one in untold.live(event, 0).by("pool")]
        assert sorted(groups_of(answer)) == sorted(wanted), event


def test_the_pool_of_a_block_in_a_segment_that_stays_while_others_go(tmp_path):
    mib = 1 << 20
    event = {"stream": 0, "frames": []}

    def one(action, addr, size, time):
        return {**event, "action": action, "addr": addr, "size": size, "time_us": time}

    trace = [
        one("segment_alloc", 0x10000000, 20 * mib, 1),
        one("alloc", 0x10000000, mib, 2),
        one("free_completed", 0x10000000, mib, 3),
        one("segment_alloc", 0x90000000, 20 * mib, 4),
        one("segment_free", 0x90000000, 20 * mib, 5),
        one("alloc", 0x10000000, 2 * mib, 6),
        one("free_completed", 0x10000000, 2 * mib, 7),
    ]
    segment = {"device": 0, "address": 0x10000000, "total_size": 20 * mib, "stream": 0, "segment_type": "large"}
    segment |= {"segment_pool_id": (0, 3), "is_expandable": False, "frames": [], "blocks": []}
    snapshot = Snapshot.load({"segments": [segment], "device_traces": [trace]})
    assert [one.label for one in snapshot.live(1).by("pool")] == ["private pool (0, 3)"]
    (answer,) = ask(tmp_path, [snapshot], [["allocation", {"row": 1}]])["answers"]
    assert answer["pool"] == "private pool (0, 3)"
