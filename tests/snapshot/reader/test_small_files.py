"""Time and memory are proportional to the size of the file, even if it refers to one object in many places."""

from __future__ import annotations

import json
import lzma
import pickle
import resource
import subprocess
import sys
import time
import tracemalloc
import zlib

import pytest

from ipygpumem.core.errors import SnapshotFormatError, SnapshotLimitError
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.export.redaction import strip_directories
from ipygpumem.snapshot.model import stacks
from snapshot import files
from snapshot.decoding import decode

GIB = 1 << 30
MAX_SECONDS = 8  # without the limits, each of these files takes at least ten times as long


def event(number=0, **keys):
    return {"action": "alloc", "addr": 512 * number, "size": 1, "time_us": number + 1, **keys}


def frame(line=1, file="a.py", name="f"):
    return {"filename": file, "line": line, "name": name}


def snapshot_of(*events, **keys):
    return {"segments": [], "device_traces": [list(events)], **keys}


def header_of(raw):
    """Return the header of an encoded snapshot and its length in bytes; NaN, which JSON excludes, is an error."""
    data = Snapshot.load(pickle.dumps(raw, 4)).encode()
    text = zlib.decompress(data[12 : 12 + int.from_bytes(data[8:12], "little")])
    return json.loads(text, parse_constant=pytest.fail), len(text)


def test_address_space_of_two_gibibytes():
    code = "import sys; from ipygpumem.snapshot import Snapshot; print(len(Snapshot.load(sys.argv[1]).encode()))"
    completed = subprocess.run(
        [sys.executable, "-c", code, str(files.path("gpt_small"))],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 * GIB, 2 * GIB)),
        env={"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert int(completed.stdout) > 10_000


def ten_times(value, depth):
    for _ in range(depth):
        value = [value] * 10
    return value


def cycle():
    value = [1]
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value", [ten_times(5, 5), ten_times(5, 90), cycle(), b"octets", {"a": {"b": cycle()}}, float("nan"), -float("inf")]
)
def test_values_in_readings_and_curves_that_json_cannot_express(value):
    readings = {"before": {"cuda:0": {"used": value, "total": 7}, "/home": value}, "after": value}
    curves = {
        "device used": {"device": 0, "time_us": [1], "bytes": [2], "more": value},
        "outside PyTorch": {"device": 0, "time_us": [1], "bytes": [value]},
        "a": {"device": value, "time_us": [1], "bytes": [1]},
        "b": value,
    }
    header, size = header_of(snapshot_of(event(), ipygpumem={"readings": readings, "curves": curves}))
    assert header["readings"] == {"before": {"cuda:0": {"total": 7}}, "after": {}}
    assert header["curves"] == {"device used": {"device": 0, "time_us": [1], "bytes": [2]}}
    assert size < 10_000


def test_device_names_of_readings():
    valid = [*(f"cuda:{number}" for number in range(128)), *map(str, range(128))]
    invalid = ["00", "cuda:007", "\u0663", "cuda:\U0001d7d8", "128", "cuda:999", "1_0", "+1", " 1", "cuda:", ""]
    counters = {"used": 1}
    names = dict.fromkeys([*valid, *invalid], counters)
    own = Snapshot.load(snapshot_of(event(), ipygpumem={"readings": {"before": names, "after": names}})).own
    assert [list(own.readings[when]) for when in ("before", "after")] == [valid, valid]


def test_versions_of_pytorch():
    versions = {"2.11.0+cu128": (2, 11), "2.5": (2, 5), "2.\u0663": (2,), "1_0.3": (3,), "9" * 5000: None, "": None}
    for text, version in versions.items():
        assert Snapshot.load(snapshot_of(event(), ipygpumem={"torch": text})).own.torch_version == version


def test_settings_that_json_cannot_express():
    settings = {"a": float("nan"), "b": float("inf"), "c": 1.5}
    header, _ = header_of(snapshot_of(event(), allocator_settings=settings))
    assert header["settings"] == {"a": "nan", "b": "inf", "c": 1.5}


def test_curves_with_the_same_list():
    times = list(range(1000))
    curves = {str(n): {"device": n // 8, "time_us": times, "bytes": list(times)} for n in range(66)}
    assert len(Snapshot.load(snapshot_of(event(), ipygpumem={"curves": curves})).own.curves) == 66
    curves["more"] = curves["5"]
    with pytest.raises(SnapshotLimitError, match="curves: the same list is repeated too often"):
        Snapshot.load(snapshot_of(event(), ipygpumem={"curves": curves}))


def test_number_of_curves_is_limited():
    def curves(count, device=0):
        return {str(n): {"device": device, "time_us": [1], "bytes": [1]} for n in range(count)}

    def load(curves):
        return Snapshot.load(snapshot_of(event(), ipygpumem={"curves": curves})).own.curves

    assert len(load(curves(16))) == 16
    with pytest.raises(SnapshotLimitError, match="device 0 has more than 16 curves"):
        load(curves(17))
    assert load(curves(100, device=-1)) == load(curves(100, device=1 << 20)) == {}


LONG = "x" * 100_000
REPEATED_TEXTS = {
    "function names": snapshot_of(event(frames=[frame(n, name=LONG) for n in range(100)])),
    "file names": snapshot_of(event(frames=[frame(n, file=LONG) for n in range(100)])),
    "annotations": snapshot_of(
        external_annotations=[{"name": LONG, "stage": "START", "time_us": n} for n in range(100)]
    ),
    "source code": snapshot_of(source_code={str(n): LONG for n in range(100)}),
    "settings": snapshot_of(allocator_settings={str(n): LONG for n in range(100)}),
    "cells": snapshot_of(ipygpumem={"cells": [{"filename": LONG, "start_us": n, "end_us": n} for n in range(100)]}),
    "devices": snapshot_of(ipygpumem={"devices": [{"index": n, "name": LONG} for n in range(100)]}),
    "metadata": snapshot_of(
        *(event(user_metadata=dict.fromkeys(map(str, range(n, 20 + n)), LONG)) for n in range(5000))
    ),
}


@pytest.mark.parametrize("name", REPEATED_TEXTS)
def test_long_repeated_texts(name):
    raw = REPEATED_TEXTS[name]
    if name == "annotations":  # stored once
        assert header_of(raw)[1] < 2 * len(LONG)
        return
    with pytest.raises(SnapshotLimitError, match="repeated too often"):
        Snapshot.load(pickle.dumps(raw, 4))


def test_equal_metadata_of_many_events():
    """A recording of a model has a dict for each event, but few different dicts."""
    metadata = [{str(key): f"layer {n} {key}".ljust(90, ".") for key in range(20)} for n in range(50)]
    raw = snapshot_of(*(event(user_metadata=dict(metadata[n % 50])) for n in range(6000)))
    snapshot = Snapshot.load(pickle.dumps(raw, 4))
    assert len({text for text in snapshot.texts if "layer" in text}) == 50


def test_names_are_stored_once(monkeypatch):
    calls = []
    is_user_file = stacks.is_user_file
    monkeypatch.setattr(stacks, "is_user_file", lambda file: calls.append(file) or is_user_file(file))
    text = "x" * 5000
    frames = [frame(n + 1, file=f"/home/{text}.py", name=text) for n in range(500)]
    raw = snapshot_of(*(event(n, frames=[frame]) for n, frame in enumerate(frames)))
    header, size = header_of(raw)
    assert size < 50_000
    assert len(header["strings"]) == len(calls) == 2


@pytest.mark.parametrize("place", ["blocks", "segments", "events", "devices"])
def test_long_stacks_with_many_references(place):
    frames = [frame(n % 9 + 1) for n in range(15_000)]
    count = 4000
    blocks = [{"address": 512 * n, "size": 512, "state": "active_allocated", "frames": frames} for n in range(count)]
    raw = {
        "blocks": {"segments": [{"address": 0, "total_size": 512 * count, "blocks": blocks}]},
        "segments": {"segments": [{"address": 512 * n, "total_size": 512, "frames": frames} for n in range(count)]},
        "events": {"device_traces": [[event(n, frames=frames) for n in range(count)]]},
        "devices": {"device_traces": [[event(n, frames=frames)] for n in range(128)]},
    }[place]
    data = pickle.dumps(raw, 4)
    start = time.process_time()
    str(Snapshot.load(data))
    assert time.process_time() - start < MAX_SECONDS


def test_frame_instead_of_a_stack():
    shared = frame()
    for raw in (snapshot_of(event(frames=[shared]), event(1, frames=shared)), snapshot_of(event(frames=[[shared]]))):
        with pytest.raises(SnapshotFormatError, match=r"frames is a (dict|list), not a (list|dict)$"):
            Snapshot.load(raw)


def test_long_list_of_requests_in_many_blocks():
    history = [{"real_size": 1, "frames": []} for _ in range(35_000)]
    blocks = [{"size": 1, "state": "inactive", "history": history} for _ in range(4000)]
    data = pickle.dumps({"segments": [{"address": 0, "total_size": 1 << 20, "blocks": blocks}]}, 4)
    start = time.process_time()
    Snapshot.load(data)
    assert time.process_time() - start < MAX_SECONDS


def test_changes_of_a_dict_with_many_keys():
    keys = b"".join(b"\x8c\x05%05dN" % n for n in range(40_000))
    start = time.process_time()
    with pytest.raises(SnapshotFormatError):
        Snapshot.load(b"\x80\x04}(\x8c\x06actionN" + keys + b"u" + b"(u" * 150_000 + b".")
    assert time.process_time() - start < MAX_SECONDS


def test_equal_long_keys():
    text = b"X" + (6 << 20).to_bytes(4, "little") + b"x" * (6 << 20) + b"\x94"
    start = time.process_time()
    with pytest.raises(SnapshotFormatError):
        Snapshot.load(b"\x80\x04]" + text + b"a" + text + b"a}(" + b"h\x00Nh\x01N" * 150_000 + b"ua.")
    assert time.process_time() - start < MAX_SECONDS


def test_host_traces_after_an_error():
    frames = [frame()] * 60_000 + [None]
    host = [[event(n, frames=list(frames) if not n else frames)] for n in range(3)]
    traces = Snapshot.load(snapshot_of(host_traces=host)).host
    assert [trace.error for trace in traces] == ["host_traces[0][0]: frames is None, not a dict"]
    (trace,) = Snapshot.load(snapshot_of(host_traces=[[] for _ in range(200)])).host
    assert trace.error == "host_traces has more than 128 lists"


def test_many_compressed_streams():
    data = pickle.dumps(snapshot_of(event(5)), 4)
    parts = [lzma.compress(data[at : at + 3], preset=0) + bytes(4 * (at % 2)) for at in range(0, len(data), 3)]
    packed = b"".join(parts) + bytes(8)
    assert Snapshot.load(packed).timelines[0].trace.address.tolist() == [2560]
    with pytest.raises(SnapshotFormatError, match="ends unexpectedly"):
        Snapshot.load(packed[:-12])
    start = time.process_time()
    with pytest.raises(SnapshotFormatError, match="empty"):
        Snapshot.load(lzma.compress(b"") * 120_000)
    assert time.process_time() - start < MAX_SECONDS


@pytest.mark.parametrize("number", [b"M\xff\xff", b"J\xff\xff\xff\x7f", b"\x8a\x02\xff\x7f", b"}" + b"N" * 5])
def test_numbers_and_dicts_count_as_objects(number):
    count = 180_000
    data = b"\x80\x04}(\x8c\x08segments]\x8c\x01x](" + number * count + b"eu."
    with pytest.raises(SnapshotLimitError, match="too many objects"):
        Snapshot.load(data)


def test_long_curves_are_read():
    count = 270_000
    curve = {
        "device": 0,
        "time_us": [(1 << 50) + n for n in range(count)],
        "bytes": [(1 << 30) + n for n in range(count)],
    }
    data = pickle.dumps(snapshot_of(event(), ipygpumem={"curves": {"device used": curve}}), 4)
    assert Snapshot.load(data).own.curves == {"device used": curve}


def test_repetitions_are_limited():
    assert len(Snapshot.load(snapshot_of(*[event()] * 65_537)).timelines[0].trace) == 65_537
    with pytest.raises(SnapshotLimitError, match="repeat the same 20,000 objects"):
        Snapshot.load(snapshot_of(*[event(n) for n in range(20_000)] * 5))


def test_memory_for_small_items():
    count = 2000
    frames = [frame(n) for n in range(200)]
    annotations = [{"name": "a", "stage": "START"} for _ in range(count)]
    names = [{"name": f"{n:x}", "stage": "START"} for n in range(count)]
    blocks = [{"size": 1, "state": "inactive"} for _ in range(count)]
    stacks = [{"action": "x", "frames": [frames[n % 200], frames[n // 200]]} for n in range(count)]
    frees = [{"action": "x", "device_free": n} for n in range(count)]
    source = " \u0100\n" * count
    str(Snapshot.load(snapshot_of(event(frames=[frame()]))))  # imports modules, whose memory is not measured
    for raw, limit in (
        ({"segments": [], "external_annotations": annotations}, 150),
        ({"segments": [], "external_annotations": names}, 250),
        ({"segments": [{"address": 0, "total_size": count, "blocks": blocks}]}, 250),
        (snapshot_of(*stacks), 700),
        (snapshot_of(*frees), 165),
        (snapshot_of(event(frames=[frame()]), source_code={"a.py": source}), 150),
    ):
        tracemalloc.start()
        try:
            str(Snapshot.load(raw))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < limit * count, (list(raw), peak / count)


def test_long_random_texts_are_not_compressed_with_the_highest_level(monkeypatch):
    levels = []
    compress = zlib.compress
    monkeypatch.setattr(zlib, "compress", lambda data, level: levels.append((len(data), level)) or compress(data, 1))
    Snapshot.load(snapshot_of(source_code={"a": "\x01" * 200_000})).encode()
    assert max(levels) == (max(levels)[0], 5)


def test_files_with_the_same_name():
    names = strip_directories([f"/{number}/a.py" for number in range(30_000)])
    assert names["/29999/a.py"] == "a~30000.py"
    assert len(set(names.values())) == 30_000


def test_line_of_source_code_shared_by_groups():
    frames = [frame(name=str(n)) for n in range(2)]
    raw = snapshot_of(*(event(n, frames=[f]) for n, f in enumerate(frames)), source_code={"a.py": "  x = 1 "})
    first, second = Snapshot.load(raw).by_line()
    assert first.source == "x = 1"
    assert first.source is second.source


def test_annotations_and_cells_are_decoded():
    annotations = [{"name": "step", "stage": stage, "time_us": n} for n, stage in enumerate(("START", "END"))]
    cells = [{"number": 3, "filename": "c.py", "start_us": 1, "end_us": 2, "success": True}]
    data = Snapshot.load(snapshot_of(external_annotations=annotations, ipygpumem={"cells": cells})).encode()
    header, _ = decode(data)
    assert header["cells"] == {name: [value] for name, value in cells[0].items()} | {"filename": [1]}
    assert header["strings"] == ["step", "c.py"]
