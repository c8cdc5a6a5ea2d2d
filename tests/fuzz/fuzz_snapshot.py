"""Fuzz the snapshot reader: ``python tests/fuzz/fuzz_snapshot.py -runs=1000000 CORPUS``.

It uses atheris (coverage-guided) if it is installed, otherwise random mutations with the same arguments. Any exception
other than `SnapshotError` is a bug, and so is a file that the reader and Python's unpickler read differently. For the
comparison, the unpickler refuses all classes. Some inputs are files from `repetition`, which are small, but expensive
to read unless the work is limited. The time and memory of each input are measured (the memory on Linux only), and an
input that exceeds the limits of snapshot/FORMAT.md is a bug, too.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import pickletools
import random
import re
import sys
import tempfile
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from repetition import generate

from ipygpumem.core.errors import SnapshotError
from ipygpumem.snapshot import KEYS, ReadLimits, Snapshot
from ipygpumem.snapshot.reader import load, pickle_reader
from ipygpumem.viewer.write import PageData, page
from snapshot import malicious_files
from snapshot.simulator import Simulator

LIMITS = ReadLimits(size=1 << 22, ratio=4)
OPCODES = b"}](utesaKMJ\x8a\x8chj\x94\x95)\x85\x86\x87NG\x88\x89qr.XB0cRb\x93\x81\x82PQ"


MAX_LENGTH = 6000
FRAME = b"\x95"

PROGRESS = 10_000
REPETITION = 0.02  # share of the inputs
SIZES = (*[1000, 10_000, 10_000, 100_000] * 12, 1_000_000)

# statistics of the run
counts = {"read": 0, "compared": 0, "entries in batches": 0, "repetition": 0}
worst = {"seconds": 0.0, "bytes": 0}


read_pickle = pickle_reader.PickleReader.read


def read_and_count(self):
    """Read a pickle and count its entries that were read in batches."""
    root = read_pickle(self)
    counts["entries in batches"] += sum(map(len, self.runs))
    return root


pickle_reader.PickleReader.read = read_and_count
pickle_reader._MIN_BATCH = 0


class SafeUnpickler(pickle.Unpickler):
    """Python's unpickler, which refuses all classes."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")


def peak_memory():
    """Return the largest resident size of this process since the last reset, in bytes; 0 if it is unknown."""
    try:
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10
    except OSError:
        return 0


@contextmanager
def limited_work(data):
    """Check the limits of processor time and memory for an input."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    memory, start = peak_memory(), time.process_time()
    yield
    seconds, used = time.process_time() - start, peak_memory() - memory
    worst["seconds"], worst["bytes"] = max(worst["seconds"], seconds), max(worst["bytes"], used)
    try:
        length = max(len(data), len(load._decompress(data, LIMITS)))
    except (SnapshotError, EOFError, zlib.error):
        length = len(data)
    assert seconds < 8 + 2.5e-6 * length, f"{seconds:.1f} s for {length:,} bytes"
    assert used < 600e6 + 40 * length, f"{used / 1e6:.0f} MB for {length:,} bytes"


def check_repetition(data):
    """Read one file from `repetition`, create its summary and its page, and group its peaks within the limits."""
    counts["repetition"] += 1
    with limited_work(data):
        try:
            snapshot = Snapshot.load(data)
            str(snapshot)
            encoded = snapshot.encode()
            page([PageData(snapshot.name, encoded)])
            for timeline in snapshot.timelines:
                for key in KEYS:
                    snapshot.live(device=timeline.device).by(key)
        except SnapshotError:
            return False
    length = int.from_bytes(encoded[8:12], "little")
    json.loads(zlib.decompress(encoded[12 : 12 + length]), parse_constant=refuse_constant)
    return False


def refuse_constant(name):
    raise AssertionError(f"the page contains {name}")


def check(data):
    """Read one input, run some queries and compare it with the unpickler."""
    with limited_work(data):
        return check_queries(data)


def check_queries(data):
    try:
        snapshot = Snapshot.load(data, LIMITS)
    except SnapshotError as error:
        snapshot, message = None, str(error)
    if snapshot is not None:
        counts["read"] += 1
        str(snapshot)
        snapshot.encode()
        for timeline in snapshot.timelines:
            snapshot.by_line(timeline.device)
            snapshot.fragmentation(device=timeline.device)
        compare(data, snapshot, "")
    elif message.startswith("snapshot: "):  # the pickle itself is valid, so it is safe for the unpickler
        compare(data, None, message)
    return snapshot is not None


def compare(data, snapshot, message):
    """Compare a snapshot with the dict from the unpickler. Either both or neither must be refused."""
    data = data[:2] + data[11:] if data[2:3] == FRAME else data
    if not data.startswith(b"\x80") or FRAME in data:  # a damaged frame length only affects the unpickler
        return
    try:
        raw = SafeUnpickler(io.BytesIO(data)).load()
    except Exception:  # it also reads unknown keys
        return
    try:
        unpickled = Snapshot.load(raw, LIMITS)
    except SnapshotError as error:
        if snapshot is not None:
            raise AssertionError("the pickle was read, but the dict was refused") from error
        return
    if snapshot is None:
        raise AssertionError(f"the dict was read, but the pickle was refused: {message}")
    counts["compared"] += 1
    if values_of(snapshot) != values_of(unpickled):
        raise AssertionError("the pickle and the dict were read differently")


def values_of(snapshot):
    """Return all values of events and segments."""

    def stack(number):
        return snapshot.stacks.stack(number) if number >= 0 else None

    def named(table, numbers):
        return [table[number] if number >= 0 else None for number in numbers.tolist()]

    values = [snapshot.annotations(), snapshot.settings, repr(snapshot.own), snapshot.sources]
    for trace in [*(timeline.trace for timeline in snapshot.timelines), *snapshot.host]:
        columns = (trace.action, trace.address, trace.size, trace.stream, trace.time)
        values += [column.tolist() for column in columns]
        values += [named(snapshot.texts, trace.context), named(snapshot.texts, trace.metadata)]
        values += [named(snapshot.pools, trace.pool), [stack(number) for number in trace.stack.tolist()]]
        values += [trace.device_free.to_dict(), trace.out_of_order, trace.untimed, bool(trace.error)]
    segments, blocks = snapshot.segments, snapshot.blocks
    values += [segments.address.tolist(), segments.size.tolist(), named(snapshot.pools, segments.pool)]
    values += [blocks.address.tolist(), blocks.state.tolist(), [stack(number) for number in blocks.stack.tolist()]]
    return values


def seeds():
    """Return snapshots of all kinds with enough events for batches, and small malicious files."""
    rng = random.Random(7)
    pickles = []
    for devices in (1, 2):
        for with_pools in (False, True):
            simulator = Simulator(devices, with_pools)
            simulator.run([(rng.randrange(13), rng.randrange(16), rng.randrange(5 << 20), 1) for _ in range(25)])
            raw = simulator.snapshot()
            pickles += [pickle.dumps(raw, 4), pickle.dumps(raw, 2)]
    for variant in (None, "text", "shared", "mixed", "several"):
        data = pickle.dumps(similar_events(rng, variant), 4)
        pickles += [data, pickletools.optimize(data)] * 3
    malicious = {**malicious_files.CODE, **malicious_files.SIZE, **malicious_files.SLOW, **malicious_files.BROKEN}
    return pickles + [data for data in malicious.values() if 0 < len(data) < 4096]


def similar_events(rng, variant):
    """Return a snapshot of 90 events with the same keys, as torch and its tools write them."""
    frames = [{"filename": f"/home/user/f{n}.py", "line": n * 100, "name": f"f{n}"} for n in range(3)]
    stacks = [frames[:1], frames[1:], frames, []]
    events = []
    for n in range(90):
        event = {"action": rng.choice(["alloc", "free_completed"]), "addr": 512 << rng.randrange(30)}
        event |= {"size": rng.randrange(1 << rng.randrange(1, 24)), "stream": 0, "time_us": (1 << 50) + n}
        event |= {"frames": rng.choice(stacks), "pool_id": (0, n // 50)}
        if variant == "text":
            event |= {"user_metadata": f"step {n % 7}", "category": rng.choice(["gradient", "unknown"])}
        elif variant == "shared":
            event |= {"compile_context": "N/A", "user_metadata": "a" if n % 5 else "", "device_free": n}
        elif variant == "mixed":
            event |= {"unknown": rng.choice([None, True, 5, -5, 1 << 40, 2.5, "a", (), (1, 2), ["x"], ["x", "y"]])}
        events.append(event)
    raw = {"segments": [], "device_traces": [events]}
    if variant == "several":
        raw = {"zz": events[5:30], "device_traces": [events[:70], tuple(events[50:])], "host_traces": [events[3:40]]}
    return raw


VALUES = [b"K\x07", b"N", b"\x88", b"J\xff\xff\xff\xff", b"M\x01\x02", b"\x8a\x01\xf0", b"G@\x04" + bytes(6), b")"]
VALUES += [b"\x8c\x01a", b"\x8c\x01a\x94", b"\x8c\x00\x94", b"]", b"]\x94", b"K\x01K\x02\x86", b"K\x01K\x02\x86\x94"]


def alter(data, rng):
    """Change a reference, a number or a value, or repeat an entry, such that the pickle usually stays valid."""
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
    return bytes(octets[: 2 * MAX_LENGTH])


def mutate(data, inputs, rng):  # noqa: C901 (one branch for each kind of damage)
    """Change, delete, duplicate or insert a few bytes, or copy some from another input."""
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
            second = rng.choice(inputs)
            start = rng.randrange(len(second))
            octets[at:at] = second[start : start + rng.randrange(1, 40)]
        elif choice == 6:
            # a short memo reference becomes a long one with any index
            short = octets.find(b"h", at)
            if 0 <= short < len(octets) - 1:
                index = rng.choice([0, 1, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 16, (1 << 32) - 1])
                octets[short : short + 2] = b"j" + (index - rng.randrange(min(index, 9) + 1)).to_bytes(4, "little")
        elif at + 4 <= len(octets):
            octets[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x80", b"\xff\0\0\0"])
    return bytes(octets[:MAX_LENGTH])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-runs", type=int, default=0, help="number of inputs (0: unlimited)")
    parser.add_argument("-seed", type=int, default=0)
    parser.add_argument("-max_total_time", type=float, default=float("inf"), metavar="SECONDS")
    arguments, _ = parser.parse_known_args()
    try:
        import atheris
    except ImportError:
        fuzz_without_atheris(arguments)
        return
    atheris.instrument_all()
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


def fuzz_without_atheris(arguments):
    """Mutate and check inputs. Some of the valid inputs are added to the seeds."""
    rng = random.Random(arguments.seed)
    pool = seeds()
    start = time.monotonic()
    runs = 0
    while (not arguments.runs or runs < arguments.runs) and time.monotonic() - start < arguments.max_total_time:
        repeats = rng.random() < REPETITION
        if repeats:
            data = generate(rng, rng.choice(SIZES))
        else:
            data = rng.choice(pool)
            data = alter(data, rng) if rng.random() < 0.5 else mutate(data, pool, rng)
        try:
            valid = check_repetition(data) if repeats else check(data)
        except Exception:
            crash = Path(tempfile.gettempdir(), f"crash-{arguments.seed}-{runs}.pickle")
            crash.write_bytes(data)
            sys.stderr.write(f"input {runs} fails: {crash}\n")
            raise
        runs += 1
        if runs % PROGRESS == 0:
            sys.stderr.write(f"{runs:,} inputs in {time.monotonic() - start:.0f} s\n")
        if valid and len(pool) < 500 and rng.random() < 0.01:
            pool.append(data)
    seconds = time.monotonic() - start
    sys.stdout.write(
        f"{runs:,} inputs in {seconds:.0f} s without a bug. {counts['read']:,} were valid snapshots, "
        f"{counts['compared']:,} were compared with the unpickler; {counts['entries in batches']:,} entries were read "
        f"in batches; {counts['repetition']:,} files repeated objects. The maximum was {worst['seconds']:.2f} s and "
        f"{worst['bytes'] / 1e6:.0f} MB\n"
    )


if __name__ == "__main__":
    main()
