"""Entries read in batches have the same values as with Python's unpickler."""

from __future__ import annotations

import copy
import pickle
import pickletools
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpumem.core.errors import SnapshotError
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import ACTIONS
from ipygpumem.snapshot.reader import entry_batches, pickle_reader
from ipygpumem.snapshot.reader.entry_batches import NotColumnarError
from ipygpumem.snapshot.reader.load import ReadLimits
from ipygpumem.snapshot.reader.pickle_reader import PickleReader

OPTIONAL_TEXTS = {"compile_context", "user_metadata"}
FRAMES = [{"filename": f"/home/user/f{n}.py", "line": n * 100, "name": "f" * n} for n in range(1, 5)]
widths = st.integers(0, 47).flatmap(lambda bits: st.integers(0, 1 << bits))
texts = st.sampled_from(["", "N/A", "short", "a longer text of metadata", "äöü", "x" * 300, "\ud800"])


@pytest.fixture(autouse=True)
def batches_from_the_first_byte(monkeypatch):
    monkeypatch.setattr(pickle_reader, "_MIN_BATCH", 0)


def runs(data):
    """Return the runs that the reader finds in a pickle; none if the pickle is not columnar."""
    reader = PickleReader(data, ReadLimits())
    try:
        reader.read()
    except NotColumnarError:
        return []
    return reader.runs


def optional(table, number):
    return None if number < 0 else table[number]


def stack(snapshot, number):
    return None if number < 0 else tuple((f.file, f.line, f.name) for f in snapshot.stacks.stack(number))


def messages(raw):
    """Return the error messages for a pickle and for the dict in it; an empty string if there is no error."""
    errors = []
    for source in (pickle.dumps(raw, 4), raw):
        try:
            Snapshot.load(source)
            errors.append("")
        except SnapshotError as error:
            errors.append(str(error))
    return errors


def rows(snapshot, device):
    return trace_rows(snapshot, snapshot.timelines[device].trace)


def trace_rows(snapshot, trace):
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


@settings(max_examples=60)
@given(
    st.lists(entries, max_size=30), st.lists(st.integers(0, 29), max_size=10), st.booleans(), st.sampled_from([2, 4, 5])
)
def test_random_entries(trace, shared, fresh_texts, protocol):
    for number in shared:  # entries that share lists and texts
        if number + 1 < len(trace):
            trace[number + 1].update({k: v for k, v in trace[number].items() if k in {"frames", "user_metadata"}})
    if fresh_texts:  # equal texts that are different objects
        trace = [
            {k: v + "" if isinstance(v, str) and k != "action" else v for k, v in entry.items()} for entry in trace
        ]
    raw = {"segments": [], "device_traces": [trace, copy.deepcopy(trace)]}
    snapshot = Snapshot.load(pickle.dumps(raw, protocol))
    for device in (0, 1):
        assert rows(snapshot, device) == expected(trace)


def steady(count, **fields):
    return [
        {
            "action": "alloc",
            "addr": 512 * n,
            "size": 1 << n % 40,
            "stream": 0,
            "time_us": n,
            "frames": FRAMES[: n % 3],
            **fields,
        }
        for n in range(count)
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"compile_context": "N/A"},
        {"compile_context": None, "user_metadata": None},
        {"pool_id": (0, 3)},
        {"forward_frames": ["a", "b"]},
        {"unknown": 7},
        {"unknown": 1 << 200},
        {"unknown": -1.5},
        {"unknown": None},
        {"unknown": True},
        {"unknown": (7, 1 << 40)},
        {"unknown": ()},
        {"category": "activation"},
        {"internal_metadata": [1, 2]},
    ],
    ids=str,
)
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("optimized", [False, True])
def test_entries_with_the_same_keys_are_read_in_batches(fields, fresh, optimized):
    if fields == {"internal_metadata": [1, 2]}:
        fields, fresh = {"internal_metadata": ["a"]}, False
    trace = [{**entry, **({k: copied(v) for k, v in fields.items()} if fresh else fields)} for entry in steady(400)]
    data = pickle.dumps({"segments": [], "device_traces": [trace]}, 4)
    data = pickletools.optimize(data) if optimized else data
    assert sum(map(len, runs(data))) > 300
    assert rows(Snapshot.load(data), 0) == expected(trace)


def test_chunks_that_several_threads_read(monkeypatch):
    names = [f"annotation {n}" for n in (*range(40), *range(20))]
    trace = [
        {**entry, "user_metadata": names[n % 60] + "", "pool_id": (0, n % 7)} for n, entry in enumerate(steady(3000))
    ]
    data = pickle.dumps({"segments": [], "device_traces": [trace]}, 4)
    read, first_chunks = entry_batches._read_chunk, []

    def read_chunk(file, keys, first):
        if first <= min(first_chunks, default=first):  # the first chunk is finished last
            first_chunks.append(first)
            time.sleep(0.05)
        return read(file, keys, first)

    monkeypatch.setattr(entry_batches, "_read_chunk", read_chunk)
    monkeypatch.setattr(entry_batches, "_CHUNK", 1 << 12)
    files = []
    for threads in (1, 4, 4):
        monkeypatch.setattr(entry_batches, "_MAX_THREADS", threads)
        first_chunks.clear()
        snapshot = Snapshot.load(data)
        assert rows(snapshot, 0) == expected(trace)
        files.append(snapshot.encode())
    assert files == [files[0]] * 3
    assert sum(map(len, runs(data))) > 2000


def test_chunks_without_threads(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(entry_batches, "_CHUNK", 1 << 12)
    monkeypatch.setattr(threading.Thread, "start", start)
    trace = steady(1000)
    assert rows(Snapshot.load(pickle.dumps({"segments": [], "device_traces": [trace]}, 4)), 0) == expected(trace)


def copied(value):
    return "".join(list(value)) if type(value) is str else type(value)(list(value)) if type(value) is list else value


def test_unknown_values_of_different_kinds():
    shared = steady(3000, user_metadata="begin")
    for n, entry in enumerate(shared):  # references to values in other entries, after values that are not memoized
        entry["frames"] = shared[n - n % 5]["frames"]
        entry["user_metadata"] = shared[n - 5]["user_metadata"] if n % 15 > 5 else f"m{n}"
    kinds = [
        None,
        True,
        7,
        -3,
        1 << 40,
        1 << 90,
        2.5,
        "a",
        "a longer text",
        (),
        (1, 2),
        (1, 1 << 40),
        [],
        ["x"],
        ["x", "y"],
    ]
    trace = [{"unknown": copied(kinds[n % 15]), **entry, "size": n} for n, entry in enumerate(shared)]
    raw = {"segments": [], "device_traces": [trace]}
    for data in (pickle.dumps(raw, 4), pickletools.optimize(pickle.dumps(raw, 4))):
        assert sum(map(len, runs(data))) > 2900
        assert rows(Snapshot.load(data), 0) == expected(trace)


@pytest.mark.parametrize("key", ["my_tool", "host_traces"])
@pytest.mark.parametrize(
    "invalid",
    [{"frames": ["a.py:3 f"]}, {"user_metadata": ["a"]}, {"pool_id": (1, -(1 << 63))}, {"frames": [{"line": "3"}]}],
    ids=str,
)
def test_values_under_unknown_keys_are_not_checked(key, invalid):
    entries_with_values = [{**entry, "pool_id": (0, 0), "user_metadata": "", **invalid} for entry in steady(200)]
    trace = [{**entry, "pool_id": (0, 0), "user_metadata": ""} for entry in steady(200)]
    raw = {"segments": [], "device_traces": [trace], key: entries_with_values}
    data = pickle.dumps(raw, 4)
    assert sum(map(len, runs(data))) > (300 if key == "host_traces" else 100)
    assert all_values(data) == all_values(raw)
    assert Snapshot.load(data).encode() == Snapshot.load(raw).encode() or key == "host_traces"
    assert ["a.py", "m"] not in Snapshot.load(data).stacks.frames


def test_frame_that_is_being_left_by_an_exception_has_no_line():
    frame = {"filename": "a.py", "line": (1 << 64) - 1, "name": "f"}
    event = {"action": "alloc", "addr": 1 << 40, "size": 512, "stream": 0, "time_us": 1, "frames": [frame]}
    snapshot = Snapshot.load({"segments": [], "device_traces": [[event]]})
    assert [f.line for f in snapshot.stacks.stack(0)] == [0]


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"size": "x"}, "size is a str, not an integer"),
        ({"size": None}, "size is None, not an integer"),
        ({"size": True}, "size is a bool, not an integer"),
        ({"size": -7}, "size is out of range"),
        ({"addr": -7 << 40}, "addr is out of range"),
        ({"time_us": -7 << 40}, "time_us is out of range"),
        ({"device_free": -7 << 30}, "device_free is out of range"),
        ({"time_us": 1 << 70}, "time_us is out of range"),
        ({"user_metadata": 5}, "user_metadata is an int, not a string"),
        ({"frames": "f"}, "frames is a str, not a list"),
        ({"frames": [{"filename": 5}]}, "frames: filename is an int, not a string"),
        ({"frames": ["N/A"]}, "frames is a str, not a dict"),
        ({"pool_id": (1,)}, "pool_id has 1 items, not two"),
        ({"pool_id": (1, 1 << 64)}, "pool_id is out of range"),
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [200, 299])
def test_message_names_the_event(invalid, message, first):
    trace = steady(300, pool_id=(0, 0), user_metadata="N/A", device_free=5)
    trace = [entry if n < first else {**entry, **invalid} for n, entry in enumerate(trace)]
    raw = {"segments": [], "device_traces": [[], trace]}
    for source in (pickle.dumps(raw, 4), raw):
        with pytest.raises(SnapshotError, match=rf"^snapshot: device_traces\[1\]\[\d+\]: {message}") as exc_info:
            Snapshot.load(source)
        number = int(str(exc_info.value).split("[")[2].split("]")[0])
        # a later event if it refers to the value of the invalid event
        assert number == first or (first < number <= first + 2 and not isinstance(next(iter(invalid.values())), int))


@pytest.mark.parametrize("location", ["action", "compile_context", "user_metadata", "filename", "name"])
def test_numbers_of_any_size_are_not_texts(location):
    huge = {location: 1 << 2000}
    frames = [{"filename": "a.py", "line": 1, "name": "f"} | (huge if location in {"filename", "name"} else {})]
    entry = {**steady(1)[0], "frames": frames} | (huge if location not in {"filename", "name"} else {})
    raw = {"segments": [], "device_traces": [[entry]]}
    with pytest.raises(SnapshotError, match=rf"{location} is an integer of more than 128 bits, not a string"):
        Snapshot.load(pickle.dumps(raw, 4))
    with pytest.raises(SnapshotError, match=rf"{location} is an int, not a string"):
        Snapshot.load(raw)
    numbers = {"user_metadata": {"a": 1 << 20_000, "b": 2}, "unknown": {1 << 20_000: 1}}
    raw = {"segments": [], "device_traces": [[steady(1)[0] | numbers]]}
    for source in (raw, pickle.dumps(raw, 4)):
        assert Snapshot.load(source).texts == ("alloc", "b=2")


def test_invalid_host_events_are_noted():
    entries = [steady(700), [{**entry, "size": "x" if n == 650 else 1} for n, entry in enumerate(steady(700))]]
    raw = {"segments": [], "device_traces": [steady(20)], "host_traces": entries}
    for source in (raw, pickle.dumps(raw, 4)):
        snapshot = Snapshot.load(source)
        assert list(map(len, snapshot.host)) == [700, 0]
        note = "pinned memory events were skipped: host_traces[1][650]: size is a str, not an integer"
        assert note in str(snapshot)


@pytest.mark.parametrize("text", ["N/A", "seven77", "a text of more than eight bytes", "äöü", "x" * 250])
def test_texts_that_are_repeated_in_each_entry(text):
    trace = [{**entry, "user_metadata": "".join(list(text))} for entry in steady(2500)]
    data = pickle.dumps({"segments": [], "device_traces": [trace]}, 4)
    assert sum(run.stop - run.first for run in runs(data)) > 2400
    assert rows(Snapshot.load(data), 0) == expected(trace)


def test_texts_that_differ_only_at_their_end():
    trace = [{**entry, "user_metadata": f"the same start {n % 7}"} for n, entry in enumerate(steady(300))]
    data = pickle.dumps({"segments": [], "device_traces": [trace]}, 4)
    assert sum(map(len, runs(data))) > 250
    assert rows(Snapshot.load(data), 0) == expected(trace)


def test_entries_with_unexpected_values_are_read_one_by_one():
    trace = [{**entry, "unknown": [1, 2.5, None, True, (1, 2, 3)]} for entry in steady(500)]
    data = pickle.dumps({"segments": [], "device_traces": [trace]}, 4)
    assert not runs(data)
    assert rows(Snapshot.load(data), 0) == expected(trace)


def test_entries_with_different_keys():
    trace = [entry for pair in zip(steady(600), steady(600, user_metadata="m" * 9), strict=True) for entry in pair]
    trace.append({"action": "oom", "device_free": 9, "size": 1, "stream": 0, "time_us": 600, "frames": []})
    snapshot = Snapshot.load(pickle.dumps({"segments": [], "device_traces": [trace]}, 4))
    assert rows(snapshot, 0)[:-1] == expected(sorted(trace[:-1], key=lambda entry: entry["time_us"]))
    assert snapshot.timelines[0].trace.device_free.to_dict() == {"1200": 9}


def test_bytes_of_an_entry_inside_a_text():
    trace = steady(50)
    inner = pickle.dumps({"segments": [], "device_traces": [trace]}, 4).decode("latin-1")
    raw = {"source_code": {"cell": inner}, "segments": [], "device_traces": [trace, steady(70)]}
    snapshot = Snapshot.load(pickle.dumps(raw, 4))
    assert [len(timeline.trace) for timeline in snapshot.timelines] == [50, 70]
    assert snapshot.sources["cell"] == inner


def test_stack_of_two_thousand_frames():
    deep = [FRAMES[n % 4] for n in range(2000)]
    trace = [{**entry, "frames": list(deep)} for entry in steady(20)]
    assert rows(Snapshot.load(pickle.dumps({"segments": [], "device_traces": [trace]}, 4)), 0) == expected(trace)


def test_entries_in_the_wrong_list_are_refused():
    trace = steady(400)
    for raw in (
        {"device_traces": [trace], "segments": steady(400)},
        {"device_traces": [trace], "external_annotations": steady(400)},
        {"device_traces": [trace, [steady(400)]]},
        {"device_traces": trace},
        {"device_traces": [trace], "ipygpumem": {"cells": steady(400)}},
        {"device_traces": [trace], "source_code": {"a": steady(400)}},
        (trace, {"device_traces": trace}),
        steady(400),
    ):
        errors = messages(raw)
        assert errors[0] == errors[1] != ""


def test_references_to_later_objects_are_refused():
    early, late_index = FRAMES[:1], FRAMES[1:]
    trace = [{**entry, "frames": early if n < 1500 else late_index} for n, entry in enumerate(steady(2500))]
    text = "x" * 300  # enough entries for memo indices of four bytes
    data = bytearray(pickle.dumps({"notes": list(map(str, range(300))), "text": text, "device_traces": [trace]}, 4))
    batches = runs(bytes(data))
    entries = batches[0].entries
    references = entries.values["frames"]
    first = int(batches[0].first)
    at = data.index(
        b"j" + int(references[first]).to_bytes(4, "little"), int(entries.start[first]), int(entries.end[first])
    )
    data[at + 1 : at + 5] = int(references[batches[-1].stop - 1]).to_bytes(4, "little")
    with pytest.raises(SnapshotError, match="read before it is written"):
        Snapshot.load(bytes(data))


@pytest.mark.parametrize("index", [1 << 31, (1 << 31) + 5, (1 << 32) - 16, (1 << 32) - 1])
@pytest.mark.parametrize("key", ["action", "frames", "pool_id"])
def test_memo_indices_beyond_int32_do_not_wrap_around(key, index):
    trace = [{**entry, "frames": FRAMES[:1], "pool_id": (0, n // 2000)} for n, entry in enumerate(steady(2500))]
    for entry in trace[1:2000]:
        entry |= {"pool_id": trace[0]["pool_id"], "frames": trace[0]["frames"]}
    data = pickle.dumps({"segments": [], "device_traces": [trace]}, 4)
    reader = PickleReader(data, ReadLimits())
    reader.read()
    run = reader.runs[0]
    entries, row = run.entries, run.first + 900
    # the key, followed by the reference to be changed
    key_and_reference = bytes([0x68, reader.memo.index(key), 0x68, int(entries.values[key][row])])
    at = data.index(key_and_reference, int(entries.start[row]), int(entries.end[row])) + 2
    with pytest.raises(SnapshotError, match=f"memo entry {index:,} is read before it is written"):
        Snapshot.load(data[:at] + b"j" + index.to_bytes(4, "little") + data[at + 2 :])


@pytest.mark.parametrize("text", ["", "1"])
@pytest.mark.parametrize("key", ["user_metadata", "internal_metadata", "compile_context", "action"])
def test_texts_of_a_batch_may_occur_anywhere(text, key):
    same_text = text or bytes(0).decode()
    trace = [{**entry, "internal_metadata": "begin", "user_metadata": "begin"} for entry in steady(600)]
    trace += [{**entry, "internal_metadata": "then", "user_metadata": "then"} | {key: text} for entry in steady(600)]
    trace += [{**entry, "internal_metadata": same_text, "user_metadata": same_text} for entry in steady(600)]
    trace.append(event := {**steady(1)[0], "frames": [{"filename": same_text, "line": 1, "name": same_text}]})
    raw = {
        "segments": [],
        "device_traces": [trace],
        "external_annotations": [{"name": same_text, "stage": "START", "device": 0, "time_us": 5}],
        "allocator_settings": {"PYTORCH_ALLOC_CONF": same_text},
        "source_code": {same_text: same_text},
    }
    data = pickle.dumps(raw, 4)
    assert sum(run.stop - run.first for run in runs(data)) > 1200
    snapshot, raw_snapshot = Snapshot.load(data), Snapshot.load(raw)
    assert rows(snapshot, 0) == rows(raw_snapshot, 0)
    assert [a.name for a in snapshot.annotations()] == [text]
    assert snapshot.settings == {"PYTORCH_ALLOC_CONF": text}
    assert snapshot.sources == {text: text}
    assert event["frames"][0]["name"] == text


def test_entries_that_refer_to_their_own_text():
    trace = [{**entry, "compile_context": "N/A", "user_metadata": "m"} for entry in steady(900)]
    trace += [{**entry, "compile_context": "", "user_metadata": ""} for entry in steady(900)]
    raw = {"segments": [], "device_traces": [trace]}
    assert rows(Snapshot.load(pickle.dumps(raw, 4)), 0) == rows(Snapshot.load(raw), 0)


def test_entry_in_place_of_a_text():
    trace = [{**entry, "user_metadata": "x"} for entry in steady(1500)]
    data = pickle.dumps({"segments": [], "device_traces": [trace], "source_code": {"a": "b"}}, 4)
    run = runs(data)[0]
    at = data.index(b"\x8c\x01b")
    long = b"j" + run.memo_index.to_bytes(4, "little")
    with pytest.raises(SnapshotError, match="source_code: a value is a dict, not a string"):
        Snapshot.load(data[:at] + long + data[at + 3 :])


def test_entry_with_two_memo_indices():
    data = pickle.dumps({"segments": [], "device_traces": [steady(2500)]}, 4)
    ends = [int(run.entries.end[run.stop - 1]) for run in runs(data)]
    end = next(end for end in ends if data[end : end + 1] == b"e")
    memoized = sum(code.name == "MEMOIZE" for code, _, at in pickletools.genops(data) if at < end)
    changed = data[:end] + b"\x94" + b"j" + memoized.to_bytes(4, "little") + data[end:]
    changed = changed[:2] + b"".join(parts_without_frames(changed))
    assert rows(Snapshot.load(changed), 0) == rows(Snapshot.load(pickle.loads(changed)), 0)
    assert len(rows(Snapshot.load(changed), 0)) == 2501


def parts_without_frames(data):
    """Yield the bytes of each opcode of a pickle, except the protocol and the frames, whose lengths may change."""
    places = [(code.name, at) for code, _, at in pickletools.genops(data)]
    for (name, at), (_, end) in zip(places, [*places[1:], ("", len(data))], strict=True):
        if name not in {"PROTO", "FRAME"}:
            yield data[at:end]


def test_lists_that_refer_to_later_objects_are_refused():
    trace = [{**entry, "frames": [FRAMES[0]]} for entry in steady(2500)]
    data = pickletools.optimize(pickle.dumps({"segments": [], "device_traces": [trace], "zz": [FRAMES[1]] * 2}, 4))
    (run,) = [run for run in runs(data) if run.first <= 1500 < run.stop]
    entries = run.entries
    entry_bytes = data[int(entries.start[1500]) : int(entries.end[1500])]
    at = int(entries.start[1500]) + entry_bytes.index(b"]h") + 1
    late_index = bytes([max(arg for code, arg, _ in pickletools.genops(data) if code.name == "BINGET")])
    changed = data[: at + 1] + late_index + data[at + 2 :]
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(changed)
    with pytest.raises(SnapshotError, match=r"memo entry \d+ is read before it is written \(at byte"):
        Snapshot.load(changed)


VARIANTS = {
    "a slice before": lambda x: {"zz": x[5:50], "device_traces": [x]},
    "a slice behind": lambda x: {"device_traces": [x, x[:500]]},
    "a slice of host events": lambda x: {"device_traces": [x], "host_traces": [x[3:90]]},
    "flat host events": lambda x: {"device_traces": [x], "host_traces": x[3:90]},
    "one list for both": lambda x: {"device_traces": [x], "host_traces": [x]},
    "a tuple behind a list": lambda x: {"device_traces": [x[:300], tuple(x[300:])]},
    "an unknown tuple": lambda x: {"zz": [[1], tuple(copy.deepcopy(x))], "device_traces": [x]},
    "pairs of events": lambda x: {"zz": [(a, b) for a, b in pairs(copy.deepcopy(x))], "device_traces": [x]},
    "triples with a list": lambda x: {"zz": [([1], a, b) for a, b in pairs(copy.deepcopy(x))], "device_traces": [x]},
    "dicts of one event": lambda x: {"zz": [{"one": a} for a in copy.deepcopy(x)], "device_traces": [x]},
    "lists of one event": lambda x: {"zz": [[a] for a in copy.deepcopy(x)], "device_traces": [x]},
    "events as frames": lambda x: {"device_traces": [x, [{**copy.deepcopy(a), "frames": x[:2]} for a in x[:9]]]},
    "a list of events as frames": lambda x: {
        "device_traces": [x, [{**a, "frames": x} for a in steady(3)], [{**a, "frames": x} for a in steady(99)]]
    },
    "frames of a batch": lambda x: {"device_traces": [[{**a, "frames": x[7:9]} for a in copy.deepcopy(x)] + x]},
    "annotations with an action": lambda x: {
        "device_traces": [x],
        "external_annotations": [
            {"action": "mark", "name": f"n{n % 7}", "stage": "START", "device": 0, "time_us": n} for n in range(600)
        ],
    },
    "a thousand keys and more": lambda x: (
        {"zz": [a | dict.fromkeys(map(str, range(1002)), 1) for a in x[:3]]} | {"device_traces": [x]}
    ),
}
READ_ONE_BY_ONE = {"one list for both", "a list of events as frames"}


def pairs(items):
    return zip(items[::2], items[1::2], strict=True)


def all_values(source):
    snapshot = Snapshot.load(source)
    traces = [*(timeline.trace for timeline in snapshot.timelines), *snapshot.host]
    return [trace_rows(snapshot, trace) for trace in traces], snapshot.annotations()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("optimized", [False, True])
def test_events_in_several_places(name, optimized):
    events = [{**entry, "user_metadata": f"m{n % 9}"} for n, entry in enumerate(steady(300))]
    raw = {"segments": []} | VARIANTS[name](events)
    data = pickle.dumps(raw, 4)
    data = pickletools.optimize(data) if optimized else data
    assert bool(runs(data)) == (name not in READ_ONE_BY_ONE)
    assert all_values(data) == all_values(raw)


def test_long_chains_of_references():
    events = steady(4000)
    for n, entry in enumerate(events):  # each refers to a text or a list in the previous entry
        entry |= {"frames": [FRAMES[n % 4]], "user_metadata": f"text {n}"}
        if n:
            entry |= {k: events[n - 1][k] for k in (["frames"] if n % 2 else ["user_metadata"])}
    raw = {"segments": [], "zz": events, "device_traces": [events[3501:3502]]}
    assert all_values(pickle.dumps(raw, 4)) == all_values(raw)


@pytest.mark.parametrize("change", ["entry, new items", "entry, one item", "list", "memo"])
def test_changes_of_entries_in_a_batch_are_read_one_by_one(change):
    raw = {"segments": [], "device_traces": [steady(700)]}
    data = pickle.dumps(raw | {"zz": 5}, 4)
    run = runs(data)[0]
    entry, frames = (b"j" + index.to_bytes(4, "little") for index in (run.memo_index, run.memo_index + 1))
    size = b"\x8c\x04size"
    changes = {
        "entry, new items": entry + b"(" + size + b"K\x07u",
        "entry, one item": entry + size + b"K\x07s",
        "list": frames + b"}a",
        "memo": b"N\x71\x05",
    }
    # the result of the change is the value of the last key
    changed = data[:2] + b"".join(parts_without_frames(data[:-4] + changes[change] + b"u."))
    assert not runs(changed)
    assert all_values(changed) == all_values(pickle.loads(changed))
    assert (all_values(changed) == all_values(raw)) == (change == "memo")


@settings(max_examples=100)
@given(st.data())
def test_damaged_entries(data):
    octets = bytearray(pickle.dumps({"segments": [], "device_traces": [steady(40, user_metadata="N/A")]}, 4))
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(2, len(octets) - 1))] = data.draw(st.integers(0, 255))
    try:
        Snapshot.load(bytes(octets)).by_line()
    except (SnapshotError, ValueError) as error:
        if not isinstance(error, SnapshotError) and "contains no data for any device" not in str(error):
            raise


def test_values_of_a_run():
    batches = runs(pickle.dumps({"segments": [], "device_traces": [steady(900)]}, 4))
    sizes_read = [size for run in batches for size in run.entries.values["size"][run.first : run.stop].tolist()]
    assert len(sizes_read) > 800
    sizes = [entry["size"] for entry in steady(900)]
    assert all(size in sizes for size in sizes_read)
