"""Small files that are expensive to read unless the work is limited: repeated objects, long texts, odd numbers.

Each generator takes a random number generator and a size, which is the approximate length of the file in bytes.
"""

from __future__ import annotations

import gzip
import lzma
import pickle
from itertools import islice, product

from snapshot.malicious_files import (
    entries_at_slow_positions,
    frames_with_slow_indices,
    overlapping_inline_strings,
    slow_integers,
    slow_lines,
)

HEAD = b"\x80\x04"
FRAME = {"filename": "a.py", "line": 1, "name": "f"}


def snapshot(events=(), **keys):
    return {"segments": [], "device_traces": [list(events)], **keys}


def event(number=0, **keys):
    return {"action": "alloc", "addr": 512 * number, "size": 1, "stream": 0, "time_us": number, **keys}


def block(number=0, **keys):
    return {"address": 512 * number, "size": 512, "state": "active_allocated", "frames": [FRAME], **keys}


def segment(number=0, **keys):
    return {"address": 512 * number, "total_size": 512, "frames": [FRAME], "blocks": [], **keys}


def long_text(rng, size):
    """Return a text of half the size. Some consist of letters that JSON escapes, of spaces or of path separators."""
    return rng.choice(["x", "\x01", "\U0001f600", "/", " x", "\\", "a.b/1", "\n", "=1"]) * (size // 2)


def repeated_text(rng, size):  # noqa: C901, PLR0911 (one branch for each place)
    """Return a snapshot in which one long text is used as often as possible."""
    text, count = long_text(rng, size), size // 40
    place = rng.randrange(13)
    if place < 4:
        frame = {"filename": "a.py", "name": "f", ("filename", "name", "name", "filename")[place]: text}
        frames = [{**frame, "line": n + 1} for n in range(count)]
        if place % 2:
            return snapshot([event(0, frames=frames)])
        return snapshot([event(n, frames=[frame]) for n, frame in enumerate(frames)])
    if place == 4:
        stages = ({"name": text, "stage": rng.choice(["START", "END"]), "time_us": n} for n in range(count))
        return snapshot([event()], external_annotations=list(stages))
    if place == 5:
        return snapshot([event()], source_code={str(n): text for n in range(count)})
    if place == 6:
        return snapshot([event()], allocator_settings={str(n): text for n in range(count)})
    if place == 7:
        cells = [{"filename": text, "start_us": n, "end_us": n} for n in range(count)]
        return snapshot([event()], ipygpumem={"cells": cells})
    if place == 8:
        return snapshot([event(n, user_metadata=text, compile_context=text) for n in range(count)])
    if place == 9:
        return snapshot([event(n, user_metadata={str(k): text for k in range(n % 30)}) for n in range(count)])
    if place == 10:
        devices = [{"index": n, "name": text} for n in range(count)]
        return snapshot([event()], ipygpumem={"devices": devices})
    if place == 11:
        frames = [{"filename": "a.py", "line": 1, "name": str(n)} for n in range(count)]
        events = [event(n, frames=[frame]) for n, frame in enumerate(frames)]
        return snapshot(events, source_code={"a.py": f" {text}"})
    other = "".join(list(text))  # equal, but another object
    texts = [text if n % 2 else other for n in range(count)]
    return snapshot([event(0, frames=[{"filename": text, "line": 1, "name": "f"} for text in texts])])


def repeated_list(rng, size):  # noqa: C901, PLR0911 (one branch for each place)
    """Return a snapshot in which one long list is used as often as possible."""
    count = size // 8
    frames = [FRAME] * min(count, 65_000)
    numbers = list(range(count))
    place = rng.randrange(12)
    if place == 0:
        blocks = [block(n, frames=frames) for n in range(count // 4)]
        return snapshot(segments=[segment(total_size=512 * len(blocks), blocks=blocks)])
    if place == 1:
        return snapshot(segments=[segment(n, frames=frames) for n in range(count // 4)])
    if place == 2:
        return snapshot([event(n, frames=frames) for n in range(count // 4)])
    if place == 3:
        return {"device_traces": [[event(n, frames=frames)] for n in range(min(count // 8, 1024))]}
    if place == 4:
        return snapshot(host_traces=[[event(n, frames=[*frames, 1])] for n in range(9)] * (count // 9))
    if place == 5:
        broken = [*frames[:60_000], None]
        return snapshot(host_traces=[[event(n, frames=broken)] for n in range(count // 8)])
    if place == 6:
        history = [{"real_size": 1, "frames": frames}] * count
        blocks = [{"size": 1, "state": "inactive", "history": history} for _ in range(count // 8)]
        return snapshot(segments=[segment(total_size=1 << 20, blocks=blocks)])
    if place == 7:
        curve = {"device": 0, "time_us": numbers, "bytes": rng.choice([numbers, list(numbers)])}
        return snapshot([event()], ipygpumem={"curves": {str(n): dict(curve) for n in range(count // 8)}})
    if place == 8:
        readings = {f"cuda:{n}": dict.fromkeys(map(str, numbers[: count // 2]), 1) for n in range(1)}
        many = {f"cuda:{n}": readings["cuda:0"] for n in range(count // 8)}
        return snapshot([event()], ipygpumem={"readings": {"before": many, "after": many}})
    if place == 9:
        metadata = dict.fromkeys(map(str, numbers), ())
        traces = [[event(n, user_metadata=metadata)] for n in range(min(count // 8, 1024))]
        return {"device_traces": traces}
    if place == 10:
        return snapshot(host_traces=[[] for _ in range(count)])
    return snapshot([event(n, pool_id=numbers) for n in range(count // 8)])


def repeated_item(rng, size):
    """Return a snapshot with few distinct events, segments, blocks, annotations or cells, each repeated."""
    count = size // 3
    distinct = max(1, int(count * rng.random() ** 2 / 8))
    place = rng.randrange(6)

    def repeated(item):
        return ([item(n) for n in range(distinct)] * (count // distinct + 1))[:count]

    if place == 0:
        return snapshot(repeated(event), host_segments=repeated(lambda n: {"address": n, "size": 512}))
    if place == 1:
        return snapshot(segments=repeated(segment))
    if place == 2:
        return snapshot(segments=[segment(total_size=1 << 40, blocks=repeated(block))])
    if place == 3:
        stages = repeated(lambda n: {"name": "a", "stage": rng.choice(["START", "END"]), "time_us": n})
        return snapshot([event()], external_annotations=stages)
    if place == 4:
        return snapshot([event()], ipygpumem={"cells": repeated(lambda n: {"start_us": n, "end_us": n + 9})})
    return snapshot([event()], ipygpumem={"devices": repeated(lambda n: {"index": n, "total": 1, "name": "a"})})


def devices(rng, size):
    """Return a snapshot of many devices, with many cells, annotations or texts."""
    count = rng.choice([2, 100, 128, 1024])
    events = [event(n, user_metadata=str(n)) for n in range(size // 100)]
    cells = [{"start_us": n, "end_us": n + rng.randrange(3)} for n in range(size // 60)]
    stages = [{"name": "a", "stage": "START", "time_us": n, "device": n % count} for n in range(size // 60)]
    traces = [[event(time_us=1 << 40)] for _ in range(count)]
    traces[rng.randrange(count)] = events
    return snapshot(device_traces=traces, external_annotations=stages, ipygpumem={"cells": cells})


def nested(rng, size):
    """Return a snapshot with nested, wide or cyclic lists where plain values are expected."""
    value = rng.choice([1, b"x", "x", float("nan"), float("inf"), 1 << 100, 10**5000, None, True])
    for _ in range(min(rng.choice([3, 30, 200]), size // 30)):
        value = [value] * 10 if rng.random() < 0.7 else {"device": 0, "time_us": value, "bytes": [value] * 9}
    if rng.random() < 0.3:
        cycle = [value]
        value = [cycle, cycle]
        cycle.append(rng.choice([cycle, value]))
    reading = {"used": value, "total": value}
    curve = {"device": rng.choice([0, value]), "time_us": rng.choice([[1], value]), "bytes": [value]}
    own = {"readings": {"before": {"cuda:0": reading}, "after": value}, "curves": {"a": curve, "b": value}}
    if rng.random() < 0.3:
        own[rng.choice(["cells", "devices", "readings", "curves", "numbers", "recording"])] = value
    return snapshot([event()], ipygpumem=own, allocator_settings={"a": value, "b": rng.choice([1.5, -float("inf")])})


def many_numbers(rng, size):
    """Return a pickle of numbers, texts, references or empty lists."""
    parts = [b"M\xff\xff", b"K\x01", b"N", b"G?\xf0\0\0\0\0\0\0", b"\x8a\x02\xff\x7f", b"]", b")", b"}", b"\x8c\x01a"]
    item = b"".join(rng.choices(parts, k=rng.choice([1, 1, 2, 5])))
    return HEAD + b"}\x8c\x08segments](" + item * (size // len(item)) + b"es."


def device_names(rng, size):
    """Return a snapshot with one dict of counters for many device names, with digits of many scripts."""
    counters = dict.fromkeys(["used", "total", "allocated", "reserved"], 1 << 61)
    digits = [chr(code) for code in range(1 << 17) if chr(code).isdecimal()]
    names = rng.choice([map(str, range(999)), map("".join, product(digits, repeat=3)), (f"{n:03}" for n in range(999))])
    devices = dict.fromkeys(islice(names, size // 12), counters)
    return snapshot([event()], ipygpumem={"readings": {"before": devices, "after": devices}})


def addresses(rng, size):
    """Return a snapshot of allocations whose blocks could end at many addresses at which other memory is allocated."""
    distinct = max(1, min(size // 40, rng.choice([100, 1000, 20_000])))
    pairs = [("alloc", "free_completed") for _ in range(size // 80)]
    places = [512 + rng.randrange(distinct) for _ in pairs]
    named = zip(places, pairs, strict=True)
    events = [{"action": name, "addr": place, "size": 1 << 21} for place, names in named for name in names]
    return snapshot(events, segments=[segment(total_size=1 << 29, segment_type="large")])


def keys(rng, size):
    """Return a pickle in which the same dict is changed again and again, or two equal long texts are its keys."""
    if rng.random() < 0.5:
        entries = b"".join(b"\x8c\x05%05dN" % n for n in range(size // 20))
        change = rng.choice([b"(u", b"(\x8c\x01aNu", b"\x8c\x01aNs"])
        return HEAD + b"}(\x8c\x06actionN" + entries + b"u" + change * (size // 2 // len(change)) + b"."
    text = b"X" + (size // 4).to_bytes(4, "little") + b"x" * (size // 4) + b"\x94"
    return HEAD + b"]" + text + b"a" + text + b"a}(" + b"h\x00Nh\x01N" * (size // 12) + b"ua."


def streams(rng, size):
    """Return many compressed streams, which may be empty."""
    content = bytes(rng.choice([0, 0, 1, 30]))
    packed = lzma.compress(content) if rng.random() < 0.5 else gzip.compress(content)
    padding = bytes(4) if rng.random() < 0.3 else b""
    return (packed + padding) * (size // len(packed + padding) + 1)


def predictable_keys(rng, size):
    """Return a snapshot with numbers that make each access to a dict slow, or with overlapping entries."""
    bits = min((size // 20).bit_length(), 17)
    kind = rng.randrange(7)
    if kind == 0:
        return entries_at_slow_positions(min(bits, 16), max(size, 1 << 12), size // 20)
    if kind == 1:
        return frames_with_slow_indices(min(bits, 15), min(size, 60_000))
    if kind == 2:
        return overlapping_inline_strings(size + 1000)
    if kind > 4:  # some allocations with user metadata, or some failed allocations with the free memory of the device
        rows, slow = slow_integers(min(bits, 15))
        events = [event(n, time_us=0, action="alloc" if kind > 5 else "oom") for n in range(slow + 1)]
        for row in rows:
            events[row]["device_free"] = 1
        notes = (event(row, time_us=0, action="annotate", user_metadata="a") for row in rows)
        return snapshot([*events, *(notes if kind > 5 else ())])
    if rng.random() < 0.5:
        lines, slow = slow_lines(bits)
        frames = [{"filename": "", "line": line, "name": ""} for line in [*lines, *[slow] * len(lines)]]
        return snapshot([event(n, frames=frames[n::8]) for n in range(8)])
    addresses, slow = slow_integers(bits)
    places = [event(addr=address, action="segment_alloc") for address in addresses]
    return snapshot([event(), *places, *(event(addr=slow, action="segment_free") for _ in addresses)])


def shared_by_stacks(rng, size):
    """Return a snapshot with many stacks or devices that share a long name or a deep stack of cells."""
    if rng.random() < 0.5:
        own = {**FRAME, rng.choice(["filename", "name"]): long_text(rng, size)}
        return snapshot([event(n, frames=[{**FRAME, "line": n, "filename": "a.cpp"}, own]) for n in range(size // 80)])
    frames = [{"filename": f"/ipykernel_1/{n}.py", "line": 1, "name": "f"} for n in range(min(size // 100, 65_000))]
    cells = [{"filename": frame["filename"], "start_us": 0, "end_us": 1 << 40} for frame in frames]
    return snapshot(device_traces=[[event(n, frames=frames)] for n in range(128)], ipygpumem={"cells": cells})


def sampled(rng, size):
    """Return a snapshot with many cells or sampled curves."""
    cells = [{"number": n, "start_us": n % 9, "end_us": 9} for n in range(size // 30)]
    curves = {str(n): {"device": n % 128, "time_us": [n], "bytes": [n]} for n in range(rng.choice([9, size // 40]))}
    return snapshot([event(n) for n in range(9)], ipygpumem={"cells": cells, "curves": curves})


KINDS = [repeated_text, repeated_list, repeated_item, devices, nested, many_numbers, keys, streams]
KINDS += [predictable_keys, sampled, shared_by_stacks, device_names, addresses]


def generate(rng, size):
    """Return a random file. Some are compressed."""
    result = rng.choice(KINDS)(rng, size)
    data = result if isinstance(result, bytes) else pickle.dumps(result, 4)
    return gzip.compress(data, 1) if rng.random() < 0.1 else data
