"""Fuzz the reader of snapshots for as long as one likes: ``python tests/fuzz/fuzz_snapshot.py -runs=1000000 CORPUS``.

With atheris (coverage-guided) where it is installed, else with plain random mutation and the same arguments. Anything
but `SnapshotError` is a finding, and so is a file of which the lanes read something else than the unpickler: each input
is read by one of the three ways of the lanes (rows of a matrix, step by step, only where there are many of a kind), and
what an unpickler without any class can read is compared with the dict.
"""

from __future__ import annotations

import argparse
import io
import pickle
import pickletools
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from ipygpumem.core.errors import SnapshotError
from ipygpumem.snapshot import Limits, Snapshot
from ipygpumem.snapshot.reader import batch_reader, pickle_reader
from snapshot import malicious_files
from snapshot.simulator import Simulator

LIMITS = Limits(size=1 << 22, ratio=4)
OPCODES = b"}](utesaKMJ\x8a\x8chj\x94\x95)\x85\x86\x87NG\x88\x89qr.XB0cRb\x93\x81\x82PQ"


WAYS = [(0, 1), (0, 2), (0, 32), (0, 1 << 40), (1 << 14, 32), (1 << 40, 32)]
"""From how many bytes on lanes are looked for, and from how many entries of a length on they are rows of a matrix."""
LONGEST = 6000
FRAME = b"\x95"

# How often what happened, so that nobody believes in a fuzzer that reaches nothing
counts = {"read": 0, "compared": 0, "rows": 0, "steps": 0}


def count(name, where, key):
    """Count how many entries go one way through the lanes."""
    method = getattr(where, name)

    def counted(self, rows, *rest):
        before = int(rows.good.sum())
        method(self, rows, *rest)
        counts[key] += int(rows.good.sum()) - before

    setattr(where, name, counted)


count("_matrix", batch_reader.Reader, "rows")
count("_steps", batch_reader.Reader, "steps")


class Plain(pickle.Unpickler):
    """Python's own, without any class."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")


def check(data):
    """One input: read it, ask it what every reader asks first, and compare."""
    pickle_reader._MIN_BATCH, batch_reader._MIN_ROWS = WAYS[sum(data[-64:]) % len(WAYS)]
    try:
        snapshot = Snapshot.load(data, LIMITS)
    except SnapshotError as problem:
        snapshot, said = None, str(problem)
    if snapshot is not None:
        counts["read"] += 1
        str(snapshot)
        for timeline in snapshot.timelines:
            snapshot.by_line(timeline.device)
            snapshot.fragmentation(device=timeline.device)
        compare(data, snapshot, "")
    elif said.startswith("snapshot: "):  # read without complaint, so that Python's own has no bomb to fear
        compare(data, None, said)
    return snapshot is not None


def compare(data, snapshot, said):
    """Lanes against the unpickler; what is refused by either, by its sentence."""
    data = data[:2] + data[11:] if data[2:3] == FRAME else data
    if not data.startswith(b"\x80") or FRAME in data:  # which tells Python how much to read ahead: it may be damaged
        return
    try:
        raw = Plain(io.BytesIO(data)).load()
    except Exception:  # it looks at what nobody reads, too
        return
    try:
        plain = Snapshot.load(raw, LIMITS)
    except SnapshotError as problem:
        if snapshot is not None:
            raise AssertionError("read, though it is refused as a dict") from problem
        return
    if snapshot is None:
        raise AssertionError(f"refused, though it is fine as a dict: {said}")
    counts["compared"] += 1
    if facts(snapshot) != facts(plain):
        raise AssertionError("lanes read something else than the unpickler")


def facts(snapshot):
    """Everything that comes out of events and segments."""

    def stack(number):
        return snapshot.stacks.stack(number) if number >= 0 else None

    def named(table, numbers):
        return [table[number] if number >= 0 else None for number in numbers.tolist()]

    found = [snapshot.annotations(), snapshot.settings, repr(snapshot.own), snapshot.sources]
    for trace in [*(timeline.trace for timeline in snapshot.timelines), *snapshot.host]:
        columns = (trace.action, trace.address, trace.size, trace.stream, trace.time)
        found += [column.tolist() for column in columns]
        found += [named(snapshot.texts, trace.context), named(snapshot.texts, trace.metadata)]
        found += [named(snapshot.pools, trace.pool), [stack(number) for number in trace.stack.tolist()]]
        found += [trace.device_free, trace.out_of_order, trace.untimed, bool(trace.trouble)]
    segments, blocks = snapshot.segments, snapshot.blocks
    found += [segments.address.tolist(), segments.size.tolist(), named(snapshot.pools, segments.pool)]
    found += [blocks.address.tolist(), blocks.state.tolist(), [stack(number) for number in blocks.stack.tolist()]]
    return found


def seeds():
    """Snapshots of all kinds, with events enough for the lanes, and the hostile ones that are small."""
    rng = random.Random(7)
    found = []
    for devices in (1, 2):
        for with_pools in (False, True):
            simulator = Simulator(devices, with_pools)
            simulator.run([(rng.randrange(13), rng.randrange(16), rng.randrange(5 << 20), 1) for _ in range(25)])
            raw = simulator.snapshot()
            found += [pickle.dumps(raw, 4), pickle.dumps(raw, 2)]
    for more in (None, "text", "shared", "mixed", "several"):
        data = pickle.dumps(alike(rng, more), 4)
        found += [data, pickletools.optimize(data)] * 3
    every = {**malicious_files.CODE, **malicious_files.SIZE, **malicious_files.SLOW, **malicious_files.BROKEN}
    return found + [data for data in every.values() if 0 < len(data) < 4096]


def alike(rng, more):
    """A snapshot of 90 events that are alike, as torch and its tools write them."""
    frames = [{"filename": f"/home/user/f{n}.py", "line": n * 100, "name": f"f{n}"} for n in range(3)]
    stacks = [frames[:1], frames[1:], frames, []]
    events = []
    for n in range(90):
        event = {"action": rng.choice(["alloc", "free_completed"]), "addr": 512 << rng.randrange(30)}
        event |= {"size": rng.randrange(1 << rng.randrange(1, 24)), "stream": 0, "time_us": (1 << 50) + n}
        event |= {"frames": rng.choice(stacks), "pool_id": (0, n // 50)}
        if more == "text":
            event |= {"user_metadata": f"step {n % 7}", "category": rng.choice(["gradient", "unknown"])}
        elif more == "shared":
            event |= {"compile_context": "N/A", "user_metadata": "a" if n % 5 else "", "device_free": n}
        elif more == "mixed":
            event |= {"unknown": rng.choice([None, True, 5, -5, 1 << 40, 2.5, "a", (), (1, 2), ["x"], ["x", "y"]])}
        events.append(event)
    raw = {"segments": [], "device_traces": [events]}
    if more == "several":
        raw = {"zz": events[5:30], "device_traces": [events[:70], tuple(events[50:])], "host_traces": [events[3:40]]}
    return raw


VALUES = [b"K\x07", b"N", b"\x88", b"J\xff\xff\xff\xff", b"M\x01\x02", b"\x8a\x01\xf0", b"G@\x04" + bytes(6), b")"]
VALUES += [b"\x8c\x01a", b"\x8c\x01a\x94", b"\x8c\x00\x94", b"]", b"]\x94", b"K\x01K\x02\x86", b"K\x01K\x02\x86\x94"]


def alter(data, rng):
    """Change what an unpickler hardly ever minds: a reference, a number, a value for another, an entry twice."""
    octets = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = octets.find(rng.choice([b"h", b"K", b"}"]), rng.randrange(len(octets) + 1))
        if not 0 <= at < len(octets) - 1:
            continue
        if octets[at] == ord("}"):
            end = octets.find(b"}", at + 1)
            octets[at:at] = octets[at : max(at, end)]
        elif octets[at] == ord("K") or rng.random() < 0.3:
            octets[at : at + 2] = rng.choice(VALUES)
        else:
            octets[at + 1] = max(0, min(255, octets[at + 1] + rng.choice([-9, -2, -1, 1, 2, 9, 40])))
    return bytes(octets[: 2 * LONGEST])


def mutate(data, others, rng):  # noqa: C901 (one branch for each kind of damage)
    """Change a few bytes, cut, double, or join with another input."""
    octets = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(octets) + 1)
        choice = rng.randrange(8)
        if choice == 0 and at < len(octets):
            octets[at] = rng.randrange(256)
        elif choice == 1 and at < len(octets):
            octets[at] = rng.choice(OPCODES)
        elif choice == 2:
            octets[at:at] = bytes([rng.choice(OPCODES)])
        elif choice == 3:
            del octets[at : at + rng.randrange(1, 9)]
        elif choice == 4:
            end = at + rng.randrange(1, 60)
            octets[at:at] = octets[at:end]
        elif choice == 5:
            other = rng.choice(others)
            begin = rng.randrange(len(other))
            octets[at:at] = other[begin : begin + rng.randrange(1, 40)]
        elif choice == 6:
            # a short reference to the memo becomes a long one, to anywhere
            short = octets.find(b"h", at)
            if 0 <= short < len(octets) - 1:
                index = rng.choice([0, 1, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 16, (1 << 32) - 1])
                octets[short : short + 2] = b"j" + (index - rng.randrange(min(index, 9) + 1)).to_bytes(4, "little")
        elif at + 4 <= len(octets):
            octets[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x80", b"\xff\0\0\0"])
    return bytes(octets[:LONGEST])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-runs", type=int, default=0, help="how many inputs (0: for ever)")
    parser.add_argument("-seed", type=int, default=0)
    parser.add_argument("-max_total_time", type=float, default=float("inf"), metavar="SECONDS")
    words, rest = parser.parse_known_args()
    try:
        import atheris
    except ImportError:
        plain(words)
        return
    atheris.instrument_all()
    atheris.Setup(sys.argv, check)
    del rest
    atheris.Fuzz()


def plain(words):
    """Mutate, check, and keep what is read without complaint as a seed for more."""
    rng = random.Random(words.seed)
    pool = seeds()
    began = time.monotonic()
    runs = 0
    while (not words.runs or runs < words.runs) and time.monotonic() - began < words.max_total_time:
        data = rng.choice(pool)
        data = alter(data, rng) if rng.random() < 0.5 else mutate(data, pool, rng)
        try:
            fine = check(data)
        except Exception:
            crash = Path(tempfile.gettempdir(), f"crash-{words.seed}-{runs}.pickle")
            crash.write_bytes(data)
            sys.stderr.write(f"input {runs} fails: {crash}\n")
            raise
        runs += 1
        if fine and len(pool) < 500 and rng.random() < 0.01:
            pool.append(data)
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{runs:,} inputs in {seconds:.0f} s: SnapshotError or an answer. {counts['read']:,} were read as snapshots, "
        f"{counts['compared']:,} compared with the unpickler; {counts['rows']:,} entries came as rows of a matrix, "
        f"{counts['steps']:,} step by step\n"
    )


if __name__ == "__main__":
    main()
