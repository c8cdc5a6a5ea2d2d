"""Files that run code, exhaust memory, take exponential time, or are not snapshots."""

from __future__ import annotations

import itertools
import pickle
import struct

PROTO = b"\x80\x04"


class Reduced:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def nested_tuple_key(depth):
    """Return a dict whose key is a tuple of nested tuples, each contained twice: hashing takes 2**depth steps."""
    return (
        PROTO
        + b"}("
        + b")"
        + b"\x94h"
        + bytes([0])
        + b"\x86"
        + b"".join(b"\x94h" + bytes([n]) + b"\x86" for n in range(1, depth))
        + b"K\x01u."
    )


def billion_laughs(depth=40):
    """Return nested lists that each contain the next list ten times, which are small until they are traversed."""
    body = b"]\x94(K\x01e"
    for level in range(depth):
        body += b"0]\x94(" + b"".join(b"h" + bytes([level]) for _ in range(10)) + b"e"
    return PROTO + body + b"."


def recursive_dict():
    return PROTO + b"}\x94(\x8c\x08segmentsh\x00\x8c\x0ddevice_tracesh\x00u."


def snapshot_of(trace):
    return {"segments": [], "device_traces": trace}


CODE = {
    "os.system": pickle.dumps(Reduced(__import__("os").system, "echo hacked > /tmp/hacked"), 4),
    "eval in protocol 0": b"c__builtin__\neval\n(S'1/0'\ntR.",
    "eval in protocol 2": b"\x80\x02c__builtin__\neval\nX\x03\x00\x00\x001/0\x85R.",
    "eval inside a snapshot": pickle.dumps(snapshot_of([[{"action": Reduced(eval, "1/0")}]]), 4),
    "a torch global": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n.",
    "a torch global, protocol 4": PROTO + b"\x8c\x0ctorch._utils\x8c\x12_rebuild_tensor_v2\x93.",
    "stack_global from the memo": PROTO + b"\x8c\x02os\x94\x8c\x06system\x94h\x00h\x01\x93.",
    "nested reduce": PROTO
    + b"\x8c\x08builtins\x8c\x07getattr\x93\x8c\x08builtins\x8c\x04eval\x93\x8c\x08__call__\x86R.",
    "inst": b"\x80\x02(ios\nsystem\n.",
    "obj": b"\x80\x02(cos\nsystem\no.",
    "newobj": b"\x80\x02cos\nsystem\n)\x81.",
    "newobj_ex": PROTO + b"\x8c\x02os\x8c\x06system\x93)}\x92.",
    "build": PROTO + b"}}b.",
    "ext1": b"\x80\x02\x82\x01.",
    "ext2": b"\x80\x02\x83\x01\x00.",
    "ext4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "persistent id": b"\x80\x02Pone\n.",
    "binary persistent id": b"\x80\x02K\x01Q.",
    "next buffer": b"\x80\x05\x97.",
    "readonly buffer": b"\x80\x05K\x01\x98.",
}

_WRAP = (1 << 64) - 1
_PRIMES = 11400714785074694791, 14029467366897019727, 2870177450012600261


def _rotated(value, bits):
    return ((value << bits) | (value >> (64 - bits))) & _WRAP


def overlapping_entries(size, keys=254, templates=8):
    """Return a pickle with an event for each of several tuples of keys, and ``size`` bytes that resemble such events.

    The bytes are strings inside strings, so that each byte belongs to dozens of possible events.
    """

    def reference(index):
        return b"h" + bytes([index])

    names = b"".join(map(text, [b"action", *(b"k%d" % number for number in range(keys - 2))]))
    rest = b"".join(reference(index) + b"N" for index in range(1, keys - 1))
    events = [
        b"}(" + reference(0) + b"\x8c\x08snapshot" + rest + text(b"x%d" % number) + b"Nu" for number in range(templates)
    ]
    count = 40
    opened = [b"}(" + reference(0) + b"\x8c" + bytes([6 * (count - 1 - number)]) for number in range(count)]
    block = b"".join(opened) + rest + b"h\x00Nu"
    bytes_ = block * (size // len(block))
    traces = b"\x8c\x0ddevice_traces](](" + b"".join(events) + b"ee"
    return (
        PROTO
        + b"}(\x8c\x01q]("
        + names
        + b"e"
        + traces
        + b"\x8c\x01zB"
        + len(bytes_).to_bytes(4, "little")
        + bytes_
        + b"u."
    )


def slow_integers(bits):
    """Return ``(integers, slow)``: if the integers are keys of a dict, each access to ``slow`` passes 90% of them."""
    return slow_keys(bits, lambda number: number)


def slow_lines(bits):
    """Return ``(lines, slow)`` as `slow_integers` for tuples of an empty string, a line and an empty string."""
    return slow_keys(bits, lambda line: hash(("", line, "")) % (1 << 64))


def slow_keys(bits, hash_of):
    """Return ``(integers, slow)`` as `slow_integers` for keys whose hashes ``hash_of`` returns."""
    size = 1 << bits
    chain = [1]
    while len(chain) < size * 2 // 3 - 8:  # a dict of this size is not enlarged
        chain.append((5 * chain[-1] + 1) % size)
    position = {number: place for place, number in enumerate(chain)}
    integers, last = {}, 0
    while len(integers) < len(chain):
        last += 1
        if (place := hash_of(last) % size) in position:
            integers.setdefault(place, last)

    def passes(number):
        rest, count = hash_of(number), 0
        place = rest % size
        while rest and place in position:
            rest >>= 5
            place = (5 * place + rest + 1) % size
            count += 1
        return count + len(chain) - position[place] if place in position else count

    slow = next(number for number in itertools.count(last + 1) if passes(number) > 0.9 * len(chain))
    return [integers[place] for place in chain], slow


def text(value):
    return b"\x8c" + bytes([len(value)]) + value + b"\x94"


def entries_at_slow_positions(bits, size, dicts):
    """Return a pickle with ``size`` bytes that contain events at positions that make a dict by position slow.

    ``dicts`` empty dicts follow, each of which might begin an event.
    """
    head = PROTO + b"}\x94(" + text(b"segments") + b"]\x94" + text(b"device_traces") + b"]\x94]\x94("
    head += b"}\x94(" + text(b"action") + text(b"alloc") + text(b"addr") + b"K\x01" + text(b"size") + b"K\x01uea"
    head += text(b"x") + b"B" + size.to_bytes(4, "little")
    entry = b"}(h\x07h\x08h\x09K\x01h\x0aK\x01u"
    content, free = bytearray(size), bytearray(b"\x01" * size)
    for place in slow_integers(bits)[0]:
        for at in range((place - len(head)) % (1 << bits), size - len(entry), 1 << bits):
            if all(free[at - 1 : at + len(entry) + 1]):
                content[at : at + len(entry)] = entry
                free[at : at + len(entry)] = bytes(len(entry))
                break
    return head + bytes(content) + text(b"y") + b"(" + b"}" * dicts + b"t" + b"u."


def frames_with_slow_indices(bits, count):
    """Return a snapshot with frames of generated code whose indices make a dict by frame index slow.

    A stack of ``count`` frames repeats another frame, whose index is not a key of this dict.
    """
    indices, slow = slow_integers(bits)
    trace, generated = 'File "/home/u/a.py", line 3, in f', set(indices)
    frames = [{"filename": "/x.py", "line": line, "name": "g"} for line in range(slow + 1)]
    for index in generated:
        frames[index]["fx_original_trace"] = trace
    del frames[min(generated) + 1]  # the index of the frame in the trace
    event = {"action": "alloc", "addr": 512, "size": 1}
    stacks = [*(frames[n : n + 60_000] for n in range(0, len(frames), 60_000)), [frames[-1]] * count]
    return snapshot_of([[{**event, "frames": stack, "time_us": n} for n, stack in enumerate(stacks, 1)]])


def overlapping_inline_strings(size, templates=6):
    """Return a pickle in which a possible event with five strings of 245 bytes begins every 26 bytes.

    ``size`` bytes contain these events. They follow events with 5 to ``templates`` + 4 keys, the first five of which
    are the same.
    """
    names = [b"action", b"compile_context", b"user_metadata", b"frames", b"pool_id"]
    names += [b"x%d" % number for number in range(templates)]
    keys = [b"h" + bytes([4 + number]) for number in range(len(names))]
    head = PROTO + b"}\x94(" + text(b"segments") + b"]\x94" + text(b"k") + b"(" + b"".join(map(text, names)) + b"t"
    head += text(b"device_traces") + b"]]("
    for number in range(templates):
        values = b"".join(key + b"N" for key in keys[1 : 5 + number])
        head += 2 * (b"}(" + keys[0] + b"\x8c\x08snapshot" + values + b"u")
    length, period = 245, 26
    block = bytearray(period)
    for number, key in enumerate(keys[:5]):
        opcodes = (b"" if number else b"}(") + key + b"\x8c" + bytes([length])
        for place, octet in enumerate(opcodes, (2 + (4 + length) * number) if number else 0):
            assert not block[place % period]
            block[place % period] = octet
    unused = [place for place, octet in enumerate(block) if not octet]
    content = bytearray(bytes(block) * (size // period))
    for shift, place in enumerate(unused[:4]):
        digits = [128 + (n >> 6 * shift & 63) for n in range(len(content) // period)]
        content[place::period] = bytes(digits)
    return head + b"ea" + text(b"z") + b"B" + len(content).to_bytes(4, "little") + bytes(content) + b"u."


def colliding_pairs(count):
    """Yield pairs of numbers. The hashes of all pairs are equal; Python's hash of tuples (xxHash) can be inverted."""
    factor, lane_factor, seed = _PRIMES
    inverse = pow(lane_factor, -1, 1 << 64)
    target = _rotated(12345678901234567 * pow(factor, -1, 1 << 64) & _WRAP, 33)
    first = 0
    while count:
        first += 1
        sum_ = _rotated((seed + first * lane_factor) & _WRAP, 31) * factor & _WRAP
        second = (target - sum_) * inverse & _WRAP
        if second < (1 << 61) - 1:  # whose hash is the number itself
            count -= 1
            yield first, second


SIZE = {
    "memo index 2**28": PROTO + b"K\x01r" + struct.pack("<I", 1 << 28) + b".",
    "memo index 2**32 - 1": PROTO + b"K\x01r\xff\xff\xff\xff.",
    "a text of a gigabyte": PROTO + b"X" + struct.pack("<I", 1 << 30) + b"x.",
    "a text of 2**63 bytes": PROTO + b"\x8d" + struct.pack("<Q", 1 << 63) + b"x.",
    "a frame of 2**63 bytes": PROTO + b"\x95" + struct.pack("<Q", 1 << 63) + b"}.",
    "a number of two gigabytes": PROTO + b"\x8b" + struct.pack("<I", 1 << 31) + b"\x01.",
    "bytes of a gigabyte": PROTO + b"B" + struct.pack("<I", 1 << 30) + b"x.",
    "a bytearray of 2**62 bytes": b"\x80\x05\x96" + struct.pack("<Q", 1 << 62) + b"x.",
    "100,000 marks": PROTO + b"(" * 100_000 + b".",
    "100,000 lists": PROTO + b"]" * 100_000 + b"a" * 99_999 + b".",
    "100,000 memo entries": PROTO + b"}" + b"\x94" * 100_000 + b".",
    "100,000 tuples in each other": PROTO + b")" + b"\x85" * 100_000 + b".",
}

SLOW = {
    "hash bomb": nested_tuple_key(60),
    "hash bomb of 88 bytes": nested_tuple_key(20),
    "tuples 100,000 deep as a key": PROTO + b"})" + b"\x85" * 100_000 + b"K\x01s.",
    "billion laughs": billion_laughs(),
    "recursive dict": recursive_dict(),
    "a list in itself": PROTO + b"]\x94h\x00a.",
}

BROKEN = {
    "nothing": b"",
    "a dump that died": b"\x80",
    "only the protocol": PROTO,
    "text": b"hello, this is no snapshot",
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "torch.save": b"PK\x03\x04" + bytes(100),
    "another pickle": pickle.dumps([1, 2, 3], 4),
    "a number": pickle.dumps(5, 4),
    "a dict of something else": pickle.dumps({"model": {"weight": [1.0]}}, 4),
    "protocol 9": b"\x80\x09}.",
    "an unknown opcode": PROTO + b"\xff.",
    "no stop": PROTO + b"}",
    "an empty stack": PROTO + b".",
    "things left over": PROTO + b"}}.",
    "an open mark": PROTO + b"(}.",
    "append to nothing": PROTO + b"a.",
    "append to a dict": PROTO + b"}K\x01a.",
    "a dict of three": PROTO + b"}(K\x01K\x02K\x03u.",
    "a number as a key": PROTO + b"}K\x01K\x02s.",
    "a text that is not UTF-8": PROTO + b"\x8c\x01\xff.",
    "memo read before written": PROTO + b"h\x05.",
    "tuple of too few": PROTO + b"K\x01\x87.",
    "pop from nothing": PROTO + b"0.",
    "broken JSON": b'{"segments": [',
    "deep JSON": b"[" * 100_000,
    "JSON of something else": b'{"cells": []}',
    "JSON that is not a number": b'{"segments": [], "device_traces": [[{"action": "alloc", "addr": NaN, "size": 1}]]}',
    "a cut gz": b"\x1f\x8b\x08\x00\x00",
    "a broken gz": b"\x1f\x8b" + bytes(50),
    "a cut xz": b"\xfd7zXZ\x00\x00\x04",
    "a broken xz": b"\xfd7zXZ\x00" + bytes(50),
}
