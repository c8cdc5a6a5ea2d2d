"""Fuzz the reader of snapshots for as long as one likes: ``python tests/fuzz/fuzz_snapshot.py -runs=1000000 CORPUS``.

With atheris (coverage-guided) where it is installed, else with plain random mutation and the same arguments. Anything
but `SnapshotError` is a finding. Half of the inputs are read with lanes from the first byte on.
"""

from __future__ import annotations

import argparse
import pickle
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from ipygpumem.errors import SnapshotError
from ipygpumem.snapshot import Limits, Snapshot, machine
from snapshot import hostile
from snapshot.simulator import Simulator

LIMITS = Limits(size=1 << 22, ratio=4)
OPCODES = b"}](utesaKMJ\x8a\x8chj\x94\x95)\x85\x86\x87NG\x88\x89qr.XB0cRb\x93\x81\x82PQ"


def check(data):
    """One input: read it, and ask it what every reader asks first."""
    machine._BULK = 0 if len(data) % 2 else 1 << 14
    try:
        snapshot = Snapshot.load(data, LIMITS)
    except SnapshotError:
        return False
    str(snapshot)
    for timeline in snapshot.timelines:
        snapshot.by_line(timeline.device)
        snapshot.fragmentation(device=timeline.device)
    return True


def seeds():
    """Small snapshots of all kinds, and the hostile ones that are small."""
    rng = random.Random(7)  # noqa: S311 (not for secrets)
    found = []
    for devices in (1, 2):
        for with_pools in (False, True):
            simulator = Simulator(devices, with_pools)
            simulator.run([(rng.randrange(13), rng.randrange(16), rng.randrange(5 << 20), 1) for _ in range(25)])
            raw = simulator.snapshot()
            found += [pickle.dumps(raw, 4), pickle.dumps(raw, 2)]
    every = {**hostile.CODE, **hostile.SIZE, **hostile.SLOW, **hostile.BROKEN}
    return found + [data for data in every.values() if 0 < len(data) < 4096]


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
    return bytes(octets[:4000])


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
    rng = random.Random(words.seed)  # noqa: S311 (not for secrets)
    pool = seeds()
    began = time.monotonic()
    runs = read = 0
    while (not words.runs or runs < words.runs) and time.monotonic() - began < words.max_total_time:
        data = mutate(rng.choice(pool), pool, rng)
        try:
            fine = check(data)
        except Exception:
            crash = Path(tempfile.gettempdir(), f"crash-{words.seed}-{runs}.pickle")
            crash.write_bytes(data)
            sys.stderr.write(f"input {runs} fails: {crash}\n")
            raise
        runs += 1
        read += fine
        if fine and len(pool) < 500 and rng.random() < 0.05:
            pool.append(data)
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{runs:,} inputs, {read:,} of them read as snapshots, in {seconds:.0f} s: SnapshotError or an answer\n"
    )


if __name__ == "__main__":
    main()
