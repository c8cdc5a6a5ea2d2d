"""The questions, on files small enough to know the answers by heart."""

# ruff: noqa: S108 (names that kernels give to cells, not files)
from __future__ import annotations

import importlib.util
import io
import json
import pickle

import pytest

from ipygpumem.core.errors import DeviceError, OptionError, SnapshotError
from ipygpumem.snapshot import KEYS, Snapshot, diff, sample, to_frame
from ipygpumem.snapshot.export.encode import decode
from ipygpumem.snapshot.export.event_table import COLUMNS, write_csv
from ipygpumem.snapshot.model.stacks import is_user_file
from ipygpumem.snapshot.queries.overview import overview
from snapshot import files
from snapshot.entries import block, event, segment

MIB = 1 << 20
CELL = "/tmp/ipykernel_7/99.py"
OTHER = "/tmp/ipykernel_7/55.py"
TORCH = {"filename": "/usr/lib/python3.12/site-packages/torch/nn/functional.py", "line": 7, "name": "linear"}


def frame(file, line, name):
    return {"filename": file, "line": line, "name": name}


def freed(address, size, time):
    return [event("free_requested", address, size, time), event("free_completed", address, size, time + 1)]


def labels(groups):
    return {group.label: (group.bytes, group.count) for group in groups}


@pytest.fixture
def small():
    """Two runs of one cell, a step that leaks, and a block from before."""
    model = [TORCH, frame("/home/user/model.py", 3, "forward"), frame(CELL, 2, "<module>")]
    trace = [
        event("segment_alloc", 0x10000, 20 * MIB, 100, model),
        event(
            "alloc", 0x10000, 4 * MIB, 101, model, compile_context="Torch-Compiled Region: 0/0", user_metadata="acts"
        ),
        event("alloc", 0x10000 + 4 * MIB, 1000, 102, [frame(CELL, 5, "<module>")], stream=7),
        *freed(0x10000, 4 * MIB, 103),
        event("snapshot", 0, 0, 150),
        event("alloc", 0x10000, 3 * MIB, 201, model, pool_id=(0, 1)),
        event("alloc", 0x10000 + 8 * MIB, 500, 202, [frame(OTHER, 1, "<module>")]),
        *freed(0x10000 + 8 * MIB, 500, 203),
        event("alloc", 0x10000 + 9 * MIB, 100, 204),
    ]
    blocks = [
        block(0x10000, 3 * MIB, 3 * MIB, frames=model),
        block(0x10000 + 3 * MIB, MIB, 5, "inactive"),
        block(0x10000 + 4 * MIB, 1024, 1000),
        block(0x10000 + 4 * MIB + 1024, 5 * MIB - 1024, 5, "inactive"),
        block(0x10000 + 9 * MIB, 512, 100),
        block(0x10000 + 9 * MIB + 512, 11 * MIB - 512, 5, "inactive"),
    ]
    old = segment(0x9000000, 2 * MIB, [block(0x9000000, 2 * MIB, 2 * MIB)], segment_type="small")
    cells = [
        {"number": 1, "filename": CELL, "start_us": 90, "end_us": 160, "success": True},
        {"number": 2, "filename": CELL, "start_us": 200, "end_us": 210, "success": None},
    ]
    regions = [("step", 100, 150), ("inner", 101, 102), ("step", 200, 210)]
    return Snapshot.load(
        {
            "segments": [segment(0x10000, 20 * MIB, blocks), old],
            "device_traces": [trace],
            "external_annotations": [
                {"name": name, "stage": stage, "device": 0, "time_us": time}
                for name, start, end in regions
                for stage, time in (("START", start), ("END", end))
            ],
            "source_code": {CELL: "import torch\nmodel(x)\n\n\ny = torch.ones(250)\n"},
            "ipygpumem": {"schema": 1, "torch": "2.11.0", "recording": {"dropped": [3]}, "cells": cells},
        }
    )


def test_the_peak_says_what_when_and_where(small):
    peak = small.peak()
    assert peak.to_dict() == {"requested": 6 * MIB + 1000, "event": 2, "time_us": 102}
    assert small.by_line() == peak.live.by("line")
    assert [(g.file, g.line, g.name, g.bytes, g.count, g.source) for g in small.by_line()] == [
        ("/home/user/model.py", 3, "forward", 4 * MIB, 1, None),
        (None, None, None, 2 * MIB, 1, None),
        (CELL, 5, "<module>", 1000, 1, "y = torch.ones(250)"),
    ]


def test_the_allocator_s_rounding_makes_the_sum_the_counter_s(small):
    groups = small.live().by("line", allocated=7 * MIB)
    assert sum(group.bytes for group in groups) == 7 * MIB
    assert (groups[-1].label, groups[-1].bytes) == ("(the allocator's rounding)", MIB - 1000)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("function", {"user/model.py forward": (3 * MIB, 1), "In[1] <module>": (1000, 1)}),
        ("cell", {"In[2]": (3 * MIB + 100, 2), "In[1]": (1000, 1), "(no cell)": (2 * MIB, 1)}),
        ("pool", {"private pool (0, 1)": (3 * MIB, 1), "(unknown)": (2 * MIB + 1100, 3)}),
        ("stream", {"default stream": (5 * MIB + 100, 3), "stream 0x7": (1000, 1)}),
        ("annotation", {"step": (3 * MIB + 100, 2), "inner": (1000, 1), "(outside of all)": (2 * MIB, 1)}),
        ("context", {"(none)": (5 * MIB + 1100, 4)}),
        (
            "size",
            {
                "up to 4 MiB": (3 * MIB, 1),
                "up to 2 MiB": (2 * MIB, 1),
                "up to 1 KiB": (1000, 1),
                "up to 128 B": (100, 1),
            },
        ),
        (
            "allocation",
            {"b10000_1": (3 * MIB, 1), "b9000000_0": (2 * MIB, 1), "b410000_0": (1000, 1), "b910000_0": (100, 1)},
        ),
    ],
)
def test_groups_at_the_end(small, key, expected):
    last = len(small.timeline().trace) - 1
    found = labels(small.live(last).by(key))
    assert expected.items() <= found.items()
    assert sum(total for total, _ in found.values()) == 5 * MIB + 1100


def test_context_and_metadata_of_the_first_run(small):
    live = small.live(1)
    assert labels(live.by("context"))["Torch-Compiled Region: 0/0"] == (4 * MIB, 1)
    assert labels(live.by("metadata"))["acts"] == (4 * MIB, 1)


def test_blocks_without_a_stack_say_why(small):
    found = labels(small.live(len(small.timeline().trace) - 1).by("line"))
    assert found["(older than the recording, without a stack)"] == (2 * MIB, 1)
    assert found["(no Python on that thread, such as a backward pass)"] == (100, 1)
    stacks = small.live(len(small.timeline().trace) - 1).by("stack")
    assert labels(stacks)["(older than the recording, without a stack)"] == (2 * MIB, 1)
    assert [frame.name for frame in stacks[0].frames] == ["linear", "forward", "<module>"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", files.NAMES)
def test_every_grouping_of_real_files_adds_up(name, key):
    live = Snapshot.load(files.path(name)).live()
    groups = live.by(key)
    assert sum(group.bytes for group in groups) == live.bytes
    assert sum(group.count for group in groups) == len(live)
    assert [group.bytes for group in groups] == sorted((group.bytes for group in groups), reverse=True)


def test_a_cell_is_found_by_file_where_there_are_no_times():
    trace = [
        {"action": "alloc", "addr": 512, "size": 5, "frames": [frame("<ipython-input-3-0a1b2c3d4e5f>", 1, "<module>")]}
    ]
    snapshot = Snapshot.load({"device_traces": [trace]})
    assert labels(snapshot.live().by("cell")) == {"In[3]": (5, 1)}
    trace[0]["frames"] = [frame(CELL, 1, "<module>")]
    assert labels(Snapshot.load({"device_traces": [trace]}).live().by("cell")) == {"cell 99": (5, 1)}


def test_an_outer_cell_goes_on_after_any_number_of_inner_ones():
    cells = [{"number": 1, "filename": CELL, "start_us": 0, "end_us": 999}]
    cells += [{"number": n, "filename": OTHER, "start_us": 10 * n, "end_us": 10 * n + 1} for n in range(2, 40)]
    trace = [event("alloc", 512, 1, 500), event("alloc", 1024, 2, 391, [frame(CELL, 1, "f")])]
    trace += [event("alloc", 1536, 4, 390), event("alloc", 2048, 8, 2000)]
    snapshot = Snapshot.load({"device_traces": [trace], "ipygpumem": {"cells": cells}})
    assert labels(snapshot.live().by("cell")) == {"In[1]": (3, 2), "In[39]": (4, 1), "(no cell)": (8, 1)}


def test_the_time_tells_which_run_of_a_cell_a_line_is_of():
    cells = [{"number": n, "filename": CELL, "start_us": 10 * n, "end_us": 10 * n + 9} for n in range(1, 9)]
    there = [frame(CELL, 7, "f")]
    trace = [event("alloc", 512, 1, 31, there), event("alloc", 1024, 2, 55, [frame(CELL, 8, "f")])]
    trace += [event("alloc", 2048, 4, 56, there)]
    snapshot = Snapshot.load({"device_traces": [trace], "ipygpumem": {"cells": cells}})
    assert labels(snapshot.live().by("line")) == {"In[3] or In[5]:7 f": (5, 2), "In[5]:8 f": (2, 1)}
    assert labels(snapshot.live(0).by("stack")) == {"In[3]:7 f": (1, 1)}
    trace[0]["time_us"] = trace[1]["time_us"] = trace[2]["time_us"] = 500
    snapshot = Snapshot.load({"device_traces": [trace], "ipygpumem": {"cells": cells}})
    assert labels(snapshot.live().by("line")) == {"In[1] … In[8]:7 f": (5, 2), "In[1] … In[8]:8 f": (2, 1)}


def test_a_region_that_began_before_recording_does_not_hold_what_has_no_time():
    ends = [{"name": "old", "stage": "END", "device": 0, "time_us": 9}]
    segments = [segment(1 << 30, 4096, [block(1 << 30, 512, 5)])]
    trace = [event("alloc", 512, 1, 5)]
    snapshot = Snapshot.load({"device_traces": [trace], "segments": segments, "external_annotations": ends})
    assert labels(snapshot.live().by("annotation")) == {"old": (1, 1), "(outside of all)": (5, 1)}


def test_curves_at_a_time(small):
    assert [small.allocated(time) for time in (0, 100, 101, 102, 104)] == [
        2 * MIB,
        2 * MIB,
        6 * MIB,
        6 * MIB + 1000,
        2 * MIB + 1000,
    ]
    assert (small.reserved(99), small.reserved(100, 0)) == (2 * MIB, 22 * MIB)
    with pytest.raises(OptionError, match="no times"):
        Snapshot.load({"device_traces": [[{"action": "alloc", "addr": 512, "size": 1}]]}).allocated(5)


def test_diff_takes_snapshots_for_their_peaks(small):
    other = Snapshot.load({"device_traces": [[event("alloc", 512, 5, 1)]]})
    for key in ("line", "stack"):
        assert diff(small, other, key) == diff(small.live(), other.live(), key)
    assert (diff(small, other).before, diff(small, other).after) == (6 * MIB + 1000, 5)


def test_regions_of_a_device(small):
    assert len(small.annotations()) == len(small.annotations(0)) == 3
    assert small.annotations(1) == ()


@pytest.mark.parametrize("moment", [1.5, 1.0, True, float("nan"), "1", [1]])
def test_an_event_is_a_whole_number(small, moment):
    for ask in (small.live, small.state_at, small.fragmentation, small.leaks):
        with pytest.raises(OptionError, match="is not an event"):
            ask(moment)
    assert small.live(small.timeline().trace.action.argmax()).bytes


def test_questions_that_mean_nothing_are_refused(small):
    for ask in (small.leaks, small.churn, small.short_lived, small.device_calls):
        with pytest.raises(OptionError, match="is before its first: 5 to 2"):
            ask(5, 2)
    with pytest.raises(OptionError, match="is before its start"):
        small.window(9, 8)
    with pytest.raises(OptionError, match="no annotated region 'nope' on device 0: choose from inner, step"):
        small.growth("nope")
    with pytest.raises(OptionError, match="cannot group by 'zzz'"):
        small.churn(3, 3, key="zzz")


def test_what_a_later_torch_may_write_is_read():
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
        assert labels(snapshot.live().by("metadata")) == {"step=3, name=" + "x" * 100: (1, 1)}
        assert labels(snapshot.live().by("stream")) == {"stream -0x2": (1, 1)}
        assert snapshot.settings["fine"] == 5


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_json_in_every_encoding(encoding):
    raw = {"device_traces": [[event("alloc", 512, 5, 1, [frame("/ä.py", 1, "ö")])]]}
    snapshot = Snapshot.load(json.dumps(raw, ensure_ascii=False).encode(encoding))
    assert snapshot.by_line()[0].file == "/ä.py"


@pytest.mark.parametrize("protocol", [0, 1])
def test_old_protocols_are_named(protocol):
    with pytest.raises(SnapshotError, match="a pickle of protocol 0 or 1"):
        Snapshot.load(pickle.dumps({"device_traces": [], "segments": []}, protocol))


def test_without_times_nothing_is_called_short_lived():
    trace = [{"action": action, "addr": 512, "size": 9 * MIB} for action in ("alloc", "free_completed")]
    with pytest.raises(OptionError, match="no times"):
        Snapshot.load({"device_traces": [trace]}).short_lived()


def test_without_segments_the_rounded_bytes_at_the_end_are_unknown():
    trace = [event("alloc", 512, 5, 1)]
    assert overview(Snapshot.load({"device_traces": [trace]}), 0).end_rounded is None
    assert overview(Snapshot.load({"device_traces": [trace], "segments": []}), 0).end_rounded == 0


@pytest.mark.parametrize("on", [True, False])
def test_what_is_on_already_is_no_advice(on):
    raw = {**files.raw("oom_fragmented"), "allocator_settings": {"expandable_segments": on}}
    (oom,) = Snapshot.load(raw).ooms()
    assert ("expandable_segments:True" in oom.reason[-1]) is not on
    assert oom.reason[-1].endswith(".")


def test_of_two_cells_in_one_microsecond_the_stack_decides():
    cells = [
        {"number": 1, "filename": CELL, "start_us": 0, "end_us": 5},
        {"number": 2, "filename": OTHER, "start_us": 5, "end_us": 9},
    ]
    trace = [event("alloc", 512, 1, 5, [frame(CELL, 1, "f")]), event("alloc", 1024, 2, 5, [frame(OTHER, 1, "f")])]
    snapshot = Snapshot.load({"device_traces": [trace], "ipygpumem": {"cells": cells}})
    assert labels(snapshot.live().by("cell")) == {"In[1]": (1, 1), "In[2]": (2, 1)}


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/user/train.py", True),
        ("/tmp/ipykernel_1/2.py", True),
        ("<ipython-input-1-0a1b2c3d4e5f>", True),
        ("<timed exec>", True),
        ("C:\\Users\\me\\train.py", True),
        ("??", False),
        ("", False),
        ("/opt/conda/lib/python3.12/site-packages/torch/nn/functional.py", False),
        ("/usr/lib/python3/dist-packages/x.py", False),
        ("/opt/conda/lib/python3.12/contextlib.py", False),
        ("/workspace/pytorch/torch/nn/functional.py", False),
        ("<frozen runpy>", False),
        ("<eval_with_key>.3", False),
        ("/tmp/torchinductor_me/ab/cab.py", False),
        ("CUDACachingAllocator.cpp", False),
    ],
)
def test_whose_code_a_file_is(file, own):
    assert is_user_file(file) is own


def test_leaks_are_what_was_made_in_the_window_and_lives(small):
    last = len(small.timeline().trace) - 1
    assert small.leaks().bytes == 3 * MIB + 1100
    assert small.leaks(5, last).bytes == 3 * MIB + 100
    assert small.leaks(0, 3).bytes == 4 * MIB + 1000
    assert small.leaks(0, 4).bytes == 1000
    assert small.leaks(last, last).bytes == 0


def test_churn_counts_what_was_made(small):
    found = {one.label: one for one in small.churn()}
    model = found["user/model.py:3 forward"]
    assert (model.count, model.bytes, model.median_us) == (2, 7 * MIB, 3)
    assert model.byte_seconds == pytest.approx((4 * MIB * 3 + 3 * MIB * 3) / 1e6)
    assert sum(one.bytes for one in small.churn(key="allocation")) == sum(one.bytes for one in small.churn())


def test_short_lived_large_allocations(small):
    (row,) = small.short_lived(at_least=MIB, at_most_us=3)
    assert (row["size"], row["start"], row["end"], row["microseconds"]) == (4 * MIB, 1, 4, 3)
    assert not len(small.short_lived(at_least=MIB, at_most_us=2))


def test_growth_per_repetition_of_a_step(small):
    steps = small.growth("step")
    assert [(step.repetition, step.before, step.after, step.peak, step.growth) for step in steps] == [
        (0, 2 * MIB, 2 * MIB + 1000, 6 * MIB + 1000, 1000),
        (1, 2 * MIB + 1000, 5 * MIB + 1100, 5 * MIB + 1500, 3 * MIB + 100),
    ]


def test_calls_to_the_driver_and_retries():
    trace = [
        event("segment_alloc", 512, 20 * MIB, 1),
        event("segment_free", 512, 20 * MIB, 2),
        event("segment_alloc", 1024, 30 * MIB, 3),
        event("segment_map", 1 << 40, 2 * MIB, 4),
        event("segment_unmap", 1 << 40, 2 * MIB, 5),
        {"action": "oom", "size": 5, "device_free": 1, "time_us": 6},
    ]
    calls = Snapshot.load({"device_traces": [trace], "segments": [segment(1024, 30 * MIB, [])]}).device_calls()
    assert calls.to_dict() == {
        "mallocs": 2,
        "malloc_bytes": 50 * MIB,
        "frees": 1,
        "free_bytes": 20 * MIB,
        "maps": 1,
        "map_bytes": 2 * MIB,
        "unmaps": 1,
        "unmap_bytes": 2 * MIB,
        "retries": 2,
        "ooms": 1,
    }


def test_fragmentation_at_the_end_is_the_file_s_own(small):
    memory = small.fragmentation(need=10 * MIB)
    assert not memory.derived
    assert (memory.reserved, memory.free, memory.pieces) == (22 * MIB, 17 * MIB - 1536, 3)
    assert (memory.largest, memory.empty, memory.partly) == (11 * MIB - 512, 0, 17 * MIB - 1536)
    assert (memory.fit.block, memory.fit.segment) == (11 * MIB - 512, 10 * MIB)
    assert small.fragmentation(need=12 * MIB).fit.block is None
    assert small.fragmentation(need=100).fit.block is None  # the small pool's only segment is full


def test_fragmentation_in_between_is_reckoned_and_says_so(small):
    memory = small.fragmentation(2)
    assert memory.derived
    assert memory.free == 22 * MIB - 6 * MIB - 1024
    assert memory.largest == 16 * MIB - 1024


def test_an_oom_is_explained():
    (oom,) = Snapshot.load(files.path("oom_fragmented")).ooms()
    assert (oom.event, oom.asked, oom.device_free) == (5998, 32 * MIB, 147527434240)
    assert oom.memory.largest == 7 * MIB
    limit = "a limit (torch.cuda.set_per_process_memory_fraction) may have prevented it."
    advice = "where only PyTorch can use them; expandable_segments:True avoids most of this."
    assert oom.reason == (
        "32.0 MiB were requested.",
        "PyTorch had 109.5 MiB free in 47 pieces, the largest 7.0 MiB: none was large enough.",
        f"A new segment needs 32.0 MiB, and the device had 137.4 GiB left: {limit}",
        f"109.5 MiB are in partly used segments, {advice}",
    )


def test_a_free_piece_of_another_stream_is_no_help():
    oom = {"action": "oom", "size": 5 * MIB, "device_free": 0, "stream": 0, "time_us": 6}
    segments = [segment(1 << 30, 20 * MIB, [block(1 << 30, 20 * MIB, 9, "inactive")], stream=7)]
    (found,) = Snapshot.load({"device_traces": [[oom]], "segments": segments}).ooms()
    assert (found.memory.largest, found.memory.fit.block) == (20 * MIB, None)
    assert found.reason[1].startswith("PyTorch had a free piece of 20.0 MiB, but for another stream")


def test_state_at_names_blocks_and_segments(small):
    state = small.state_at(3)
    assert state.requested == 6 * MIB + 1000
    assert state.reserved == 22 * MIB
    assert [(b["address"], b["pending"], b["rounded"]) for b in state.to_dict()["blocks"]] == [
        (0x10000, True, -1),
        (0x10000 + 4 * MIB, False, 1024),
        (0x9000000, False, 2 * MIB),
    ]
    assert small.timeline().allocations.name(state.blocks["row"][0]) == "b10000_0"
    assert small.stacks.stack(int(state.segments["stack"][0]))[0].name == "linear"


def test_diff_aligns_lines_and_adds_up(small):
    found = diff(small.live(2), small.live(len(small.timeline().trace) - 1))
    assert (found.before, found.after) == (6 * MIB + 1000, 5 * MIB + 1100)
    assert [(change.label, change.bytes, change.count) for change in found.changes] == [
        ("user/model.py:3 forward", -MIB, 0),
        ("(no Python on that thread, such as a backward pass)", 100, 1),
    ]


def test_diff_of_two_files_knows_the_same_cell_of_another_kernel():
    def one(kernel, size):
        frames = [frame(f"/tmp/ipykernel_{kernel}/99.py", 1, "<module>")]
        return Snapshot.load({"device_traces": [[event("alloc", 512, size, 1, frames)]]})

    for key in ("line", "stack"):
        (change,) = diff(one(1, 10).live(), one(2, 25).live(), key).changes
        assert (change.before, change.after, change.bytes, change.count) == (10, 25, 15, 0)


@pytest.mark.parametrize("key", KEYS)
def test_diff_of_real_files_adds_up(key):
    a, b = (Snapshot.load(files.path(name)).live() for name in ("gpt_small", "gpt_cpp"))
    found = diff(a, b, key)
    assert sum(change.bytes for change in found.changes) == found.after - found.before == b.bytes - a.bytes
    assert sum(change.count for change in found.changes) == len(b) - len(a)


def test_annotations_are_paired_and_nested(small):
    assert [(a.name, a.start_us, a.end_us, a.depth, a.ambiguous) for a in small.annotations()] == [
        ("step", 100, 150, 0, False),
        ("inner", 101, 102, 1, False),
        ("step", 200, 210, 0, False),
    ]


def test_annotations_that_overlap_or_lack_an_end_say_so():
    steps = [("a", "START", 1), ("b", "START", 2), ("a", "END", 3), ("b", "END", 4), ("c", "END", 5), ("d", "START", 6)]
    entries = [{"name": n, "stage": s, "device": 0, "time_us": t} for n, s, t in steps]
    found = Snapshot.load({"device_traces": [], "external_annotations": entries}).annotations()
    assert [(a.name, a.start_us, a.end_us, a.ambiguous) for a in found] == [
        ("c", None, 5, False),
        ("a", 1, 3, True),
        ("b", 2, 4, True),
        ("d", 6, None, False),
    ]


def test_a_window_of_time_is_one_of_events(small):
    assert small.window(101, 103) == (0, 3)
    assert small.leaks(*small.window(200, 210)).bytes == 3 * MIB + 100


def test_events_as_csv(small):
    file = io.StringIO()
    write_csv(small, file)
    lines = file.getvalue().splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert (
        lines[2]
        == "0,1,alloc,65536,4194304,0,101,6291456,/home/user/model.py,3,forward,Torch-Compiled Region: 0/0,acts"
    )
    assert len(lines) == 12


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_events_as_a_frame(small):
    frame = small.frame()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["requested_after"].max() == small.peak().requested
    assert to_frame(small.by_line())["bytes"].sum() == small.peak().requested
    assert to_frame(small.allocated())["bytes"].tolist() == small.allocated().bytes.tolist()
    assert to_frame(small.state_at(3).blocks)["requested"].sum() == small.state_at(3).requested
    assert to_frame(small.device_calls())["mallocs"].tolist() == [1]
    with pytest.raises(OptionError, match="not a result"):
        to_frame(5)


@pytest.mark.skipif(importlib.util.find_spec("pandas") is not None, reason="pandas is installed")
def test_without_pandas_one_sentence_says_so(small):
    with pytest.raises(OptionError, match="data frames need pandas: pip install pandas"):
        small.frame()
    with pytest.raises(OptionError, match="data frames need pandas"):
        to_frame(small.by_line())


@pytest.mark.parametrize("name", files.NAMES)
def test_encoded_columns_are_the_same_columns(name):
    snapshot = Snapshot.load(files.path(name))
    header, columns = decode(snapshot.encode())
    trace, allocations = snapshot.timeline(0).trace, snapshot.timeline(0).allocations
    for field in ("action", "address", "size", "stream", "time", "stack", "context", "metadata", "pool"):
        assert columns[f"trace/0/{field}"].tolist() == getattr(trace, field).tolist()
    start = columns["allocations/0/start"]
    assert start.tolist() == sorted(allocations.start.tolist())
    ends = start + columns["allocations/0/asked_after"] + columns["allocations/0/freed_after"]
    assert sorted(zip(start, ends, strict=True)) == sorted(zip(allocations.start, allocations.end, strict=True))
    assert header["frames"][0] == [snapshot.stacks.frames[0].file, *header["frames"][0][1:]]
    assert columns["blocks/size"].tolist() == snapshot.blocks.size.tolist()


def test_host_traces_are_read():
    entry = {"action": "alloc", "addr": 4096, "size": 10, "stream": 0, "time_us": 1}
    raw = {"device_traces": [], "segments": []}
    assert [t.size.tolist() for t in Snapshot.load(raw | {"host_traces": [entry]}).host] == [[10]]
    assert [t.size.tolist() for t in Snapshot.load(raw | {"host_traces": [[entry], []]}).host] == [[10], []]
    for wrong, trouble in (["?"], "host_traces[0] is a str, not a dict"), ({}, "host_traces is a dict, not a list"):
        (trace,) = Snapshot.load(raw | {"host_traces": wrong}).host
        assert (len(trace), trace.trouble) == (0, trouble)


def test_the_summary_begins_with_the_answer(small):
    assert str(small).splitlines() == [
        "GPU 0: peak 6.0 MiB requested, at event 2, 0.0 ms after the first, in In[1]",
        "     4.0 MiB  67 %  user/model.py:3 forward  (1 block)",
        "     2.0 MiB  33 %  (older than the recording, without a stack)  (1 block)",
        "     0.0 MiB   0 %  In[1]:5 <module>: y = torch.ones(250)  (1 block)",
        "  11 events; at the end 5.0 MiB requested, 5.0 MiB rounded; reserved 22.0 MiB, at most 22.0 MiB",
        "  note: 1 block (2.0 MiB) is older than the first event",
        "  note: 3 allocations were dropped from the ring buffer before the first event",
        "snapshot, torch 2.11.0",
    ]


def test_the_sample_is_read_and_fits_a_screen():
    text = Snapshot.load(sample()).summary()
    assert text.startswith("GPU 0: peak 1.8 GiB requested, at event 285, 6.6 ms after the first\n")
    assert sample().stat().st_size <= 100_000
    assert len(text.splitlines()) <= 24


def test_bad_words_are_told(small):
    with pytest.raises(DeviceError, match="no device 3: it has 1 device"):
        small.peak(3)
    with pytest.raises(OptionError, match="no event 99: it has 11 events"):
        small.live(99)
    with pytest.raises(OptionError, match="cannot group by 'colour': choose from line, "):
        small.live().by("colour")
    with pytest.raises(DeviceError, match="contains no device"):
        Snapshot.load({"device_traces": []}).peak()
    with pytest.raises(SnapshotError, match="neither segments nor device_traces"):
        Snapshot.load({})
