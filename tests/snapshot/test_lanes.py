"""Entries read side by side are the entries that Python's unpickler reads."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpumem.errors import SnapshotError
from ipygpumem.snapshot import Snapshot, machine
from ipygpumem.snapshot import rows as rows_module
from ipygpumem.snapshot.limits import Limits
from ipygpumem.snapshot.machine import Machine
from ipygpumem.snapshot.trace import ACTIONS

OPTIONAL_TEXTS = {"compile_context", "user_metadata"}
FRAMES = [{"filename": f"/home/user/f{n}.py", "line": n * 100, "name": "f" * n} for n in range(1, 5)]
widths = st.integers(0, 47).flatmap(lambda bits: st.integers(0, 1 << bits))
texts = st.sampled_from(["", "N/A", "short", "a longer text of metadata", "äöü", "x" * 300, "\ud800"])


@pytest.fixture(autouse=True, params=[1, 1 << 40], ids=["matrix", "steps"])
def lanes_from_the_first_byte(monkeypatch, request):
    monkeypatch.setattr(machine, "_BULK", 0)
    monkeypatch.setattr(rows_module, "_MANY", request.param)


def runs(data):
    reader = Machine(data, Limits())
    reader.read()
    return reader.runs


def optional(table, number):
    return None if number < 0 else table[number]


def stack(snapshot, number):
    return None if number < 0 else tuple((f.file, f.line, f.name) for f in snapshot.stacks.stack(number))


def rows(snapshot, device):
    """Every value of every event, as the file has it."""
    trace = snapshot.timelines[device].trace
    return [
        (
            ACTIONS[trace.action[row]],
            int(trace.address[row]),
            int(trace.size[row]),
            int(trace.stream[row]),
            int(trace.time[row]),
            optional(snapshot.texts, trace.context[row]),
            optional(snapshot.texts, trace.metadata[row]),
            optional(snapshot.pools, trace.pool[row]),
            None
            if trace.stack[row] < 0
            else tuple((f.file, f.line, f.name) for f in snapshot.stacks.stack(trace.stack[row])),
        )
        for row in range(len(trace))
    ]


def expected(entries):
    return [
        (
            entry["action"],
            entry["addr"],
            entry["size"],
            entry["stream"],
            entry["time_us"],
            entry.get("compile_context"),
            entry.get("user_metadata"),
            tuple(entry["pool_id"]) if "pool_id" in entry else None,
            tuple((f["filename"], f["line"], f["name"]) for f in entry["frames"]) if "frames" in entry else None,
        )
        for entry in entries
    ]


entries = st.fixed_dictionaries(
    {"action": st.sampled_from(ACTIONS[:9]), "addr": widths, "size": widths, "stream": widths, "time_us": st.just(5)},
    optional={
        "compile_context": texts,
        "user_metadata": texts,
        "pool_id": st.tuples(widths, widths),
        "frames": st.lists(st.sampled_from(FRAMES), max_size=4),
    },
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(entries, max_size=30), st.lists(st.integers(0, 29), max_size=10), st.booleans(), st.sampled_from([2, 4, 5])
)
def test_any_entries_are_read_as_python_reads_them(trace, shared, fresh_texts, protocol):
    for number in shared:  # lists and texts that several entries share
        if number + 1 < len(trace):
            trace[number + 1].update({k: v for k, v in trace[number].items() if k in {"frames", "user_metadata"}})
    if fresh_texts:  # equal texts that are different objects stand in each entry anew
        trace = [
            {k: v + "" if isinstance(v, str) and k != "action" else v for k, v in entry.items()} for entry in trace
        ]
    raw = {"segments": [], "device_traces": [trace, copy.deepcopy(trace)]}
    snapshot = Snapshot.load(pickle.dumps(raw, protocol))
    for device in (0, 1):
        assert rows(snapshot, device) == expected(trace)


def steady(count, **more):
    return [
        {
            "action": "alloc",
            "addr": 512 * n,
            "size": 1 << n % 40,
            "stream": 0,
            "time_us": n,
            "frames": FRAMES[: n % 3],
            **more,
        }
        for n in range(count)
    ]


@pytest.mark.parametrize(
    "more", [{}, {"compile_context": "N/A"}, {"pool_id": (0, 3)}, {"forward_frames": ["a", "b"]}, {"unknown_number": 7}]
)
def test_steady_entries_are_read_in_lanes(more):
    data = pickle.dumps({"segments": [], "device_traces": [steady(2500, **more)]}, 4)
    taken = sum(run.stop - run.first for run in runs(data))
    assert taken > 2400
    assert rows(Snapshot.load(data), 0) == expected(steady(2500, **more))


@pytest.mark.parametrize("text", ["N/A", "seven77", "a text of more than eight bytes", "äöü", "x" * 250])
def test_texts_that_stand_in_each_entry_anew_are_read_in_lanes(text):
    trace = [{**entry, "user_metadata": "".join(list(text))} for entry in steady(2500)]
    data = pickle.dumps({"segments": [], "device_traces": [trace]}, 4)
    assert sum(run.stop - run.first for run in runs(data)) > 2400
    assert rows(Snapshot.load(data), 0) == expected(trace)


def test_entries_with_keys_of_unforeseen_kind_are_read_all_the_same():
    trace = steady(500, unknown_text="x", unknown_list=[1, 2.5, None, True, (1, 2, 3)])
    data = pickle.dumps({"segments": [], "device_traces": [trace]}, 4)
    assert not runs(data)
    assert rows(Snapshot.load(data), 0) == expected(trace)


def test_entries_of_several_kinds_have_lanes_of_their_own():
    trace = [entry for pair in zip(steady(600), steady(600, user_metadata="m" * 9), strict=True) for entry in pair]
    trace.append({"action": "oom", "device_free": 9, "size": 1, "stream": 0, "time_us": 600, "frames": []})
    snapshot = Snapshot.load(pickle.dumps({"segments": [], "device_traces": [trace]}, 4))
    assert rows(snapshot, 0)[:-1] == expected(sorted(trace[:-1], key=lambda entry: entry["time_us"]))
    assert snapshot.timelines[0].trace.device_free == {1200: 9}


def test_what_looks_like_an_entry_inside_a_text_is_none():
    trace = steady(50)
    inner = pickle.dumps({"segments": [], "device_traces": [trace]}, 4).decode("latin-1")
    raw = {"source_code": {"cell": inner}, "segments": [], "device_traces": [trace, steady(70)]}
    snapshot = Snapshot.load(pickle.dumps(raw, 4))
    assert [len(timeline.trace) for timeline in snapshot.timelines] == [50, 70]
    assert snapshot.sources["cell"] == inner


def test_a_stack_of_two_thousand_frames_is_read():
    deep = [FRAMES[n % 4] for n in range(2000)]
    trace = [{**entry, "frames": list(deep)} for entry in steady(20)]
    assert rows(Snapshot.load(pickle.dumps({"segments": [], "device_traces": [trace]}, 4)), 0) == expected(trace)


def test_entries_that_stand_where_no_entry_belongs_are_refused():
    trace = steady(400)
    for raw in (
        {"device_traces": [trace], "segments": steady(400)},
        {"device_traces": [trace], "external_annotations": steady(400)},
        {"device_traces": [trace, [steady(400)]]},
        {"device_traces": [[{**entry, "frames": steady(2)} for entry in trace]]},
        (trace, {"device_traces": trace}),
    ):
        with pytest.raises(SnapshotError):
            Snapshot.load(pickle.dumps(raw, 4))


def test_an_entry_cannot_refer_to_what_comes_later():
    early, late = FRAMES[:1], FRAMES[1:]
    trace = [{**entry, "frames": early if n < 1500 else late} for n, entry in enumerate(steady(2500))]
    text = "x" * 300  # entries enough that the lists have indices of four bytes
    data = bytearray(pickle.dumps({"notes": list(map(str, range(300))), "text": text, "device_traces": [trace]}, 4))
    taken = runs(bytes(data))
    lanes = taken[0].lanes
    references = lanes.fields["frames"].value
    first = int(taken[0].first)
    at = data.index(b"j" + int(references[first]).to_bytes(4, "little"), int(lanes.start[first]), int(lanes.end[first]))
    data[at + 1 : at + 5] = int(references[taken[-1].stop - 1]).to_bytes(4, "little")
    with pytest.raises(SnapshotError, match="read before it is written"):
        Snapshot.load(bytes(data))


@pytest.mark.parametrize("index", [1 << 31, (1 << 31) + 5, (1 << 32) - 16, (1 << 32) - 1])
@pytest.mark.parametrize("key", ["action", "frames", "pool_id"])
def test_memo_indices_beyond_int32_do_not_wrap_around(key, index):
    trace = [{**entry, "frames": FRAMES[:1], "pool_id": (0, n // 2000)} for n, entry in enumerate(steady(2500))]
    for entry in trace[1:2000]:
        entry |= {"pool_id": trace[0]["pool_id"], "frames": trace[0]["frames"]}
    data = pickle.dumps({"segments": [], "device_traces": [trace]}, 4)
    reader = Machine(data, Limits())
    reader.read()
    run = reader.runs[0]
    lanes, row = run.lanes, run.first + 900
    # the key, and behind it the reference to be changed
    both = bytes([0x68, reader.memo.index(key), 0x68, int(lanes.fields[key].value[row])])
    at = data.index(both, int(lanes.start[row]), int(lanes.end[row])) + 2
    with pytest.raises(SnapshotError, match=f"memo entry {index:,} is read before it is written"):
        Snapshot.load(data[:at] + b"j" + index.to_bytes(4, "little") + data[at + 2 :])


def one():
    """The text "1" as Python makes it anew: one object for all."""
    return bytes([0x31]).decode()


@pytest.mark.parametrize("text", ["", "1"])
@pytest.mark.parametrize("key", ["user_metadata", "internal_metadata", "compile_context", "action"])
def test_a_text_that_begins_in_a_lane_may_stand_anywhere(text, key):
    again = text or bytes(0).decode()
    trace = [{**entry, "internal_metadata": "begin", "user_metadata": "begin"} for entry in steady(600)]
    trace += [{**entry, "internal_metadata": "then", "user_metadata": "then"} | {key: text} for entry in steady(600)]
    trace += [{**entry, "internal_metadata": again, "user_metadata": again} for entry in steady(600)]
    trace.append(event := {**steady(1)[0], "frames": [{"filename": again, "line": 1, "name": again}]})
    raw = {
        "segments": [],
        "device_traces": [trace],
        "external_annotations": [{"name": again, "stage": "START", "device": 0, "time_us": 5}],
        "allocator_settings": {"PYTORCH_ALLOC_CONF": again},
        "source_code": {again: again},
    }
    data = pickle.dumps(raw, 4)
    assert sum(run.stop - run.first for run in runs(data)) > 1200
    snapshot, plain = Snapshot.load(data), Snapshot.load(raw)
    assert rows(snapshot, 0) == rows(plain, 0)
    assert [a.name for a in snapshot.annotations()] == [text]
    assert snapshot.settings == {"PYTORCH_ALLOC_CONF": text}
    assert snapshot.sources == {text: text}
    assert event["frames"][0]["name"] == text


def test_an_entry_may_share_a_text_with_itself():
    trace = [{**entry, "compile_context": "N/A", "user_metadata": "m"} for entry in steady(900)]
    trace += [{**entry, "compile_context": "", "user_metadata": ""} for entry in steady(900)]
    raw = {"segments": [], "device_traces": [trace]}
    assert rows(Snapshot.load(pickle.dumps(raw, 4)), 0) == rows(Snapshot.load(raw), 0)


def test_a_lane_s_own_entry_is_no_text():
    trace = [{**entry, "user_metadata": "x"} for entry in steady(1500)]
    data = pickle.dumps({"segments": [], "device_traces": [trace], "source_code": {"a": "b"}}, 4)
    run = runs(data)[0]
    at = data.index(b"\x8c\x01b")
    long = b"j" + run.memo.to_bytes(4, "little")
    with pytest.raises(SnapshotError, match="source_code: a text is a Held, not a text"):
        Snapshot.load(data[:at] + long + data[at + 3 :])


def test_a_run_cannot_be_multiplied_through_the_memo():
    data = pickle.dumps({"device_traces": [steady(2500)]}, 4)
    ends = [int(run.lanes.end[run.stop - 1]) for run in runs(data)]
    end = next(end for end in ends if data[end : end + 1] == b"e")
    with pytest.raises(SnapshotError, match=r"put into the memo twice \(at byte"):
        Snapshot.load(data[:end] + b"\x94" + b"h\xff" * 1000 + data[end:])


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_entries_are_read_or_refused(data):
    octets = bytearray(pickle.dumps({"segments": [], "device_traces": [steady(40, user_metadata="N/A")]}, 4))
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(2, len(octets) - 1))] = data.draw(st.integers(0, 255))
    try:
        Snapshot.load(bytes(octets)).by_line()
    except (SnapshotError, ValueError) as problem:
        if not isinstance(problem, SnapshotError) and "holds no device" not in str(problem):
            raise


def test_a_run_knows_its_entries():
    taken = runs(pickle.dumps({"segments": [], "device_traces": [steady(900)]}, 4))
    read = [size for run in taken for size in run.lanes.fields["size"].value[run.first : run.stop].tolist()]
    assert len(read) > 800
    sizes = [entry["size"] for entry in steady(900)]
    assert all(size in sizes for size in read)
