"""Memory pools of a program (``torch.cuda.MemPool``) with expandable segments, as torch 2.11 records them."""

import random
from itertools import pairwise

import pytest

from ipygpumem.core.units import MIB
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.replay.allocator import SimulatedAllocator, SimulatedOutOfMemoryError
from ipygpumem.snapshot.replay.free_blocks import BlockPool
from ipygpumem.snapshot.replay.settings import AllocatorSettings
from ipygpumem.snapshot.replay.verification import cached_verification

TOTAL = 1 << 34


class Program:
    """A program that allocates memory in the default pool and in a private pool, and its recording."""

    def __init__(self, settings="expandable_segments:True", *, reuses_addresses=True):
        pools = [BlockPool(number, 0, small, number > 0) for number in (0, 1) for small in (False, True)]
        self.settings = settings
        self.allocator = SimulatedAllocator(
            AllocatorSettings.parse(settings), pools, total=TOTAL, choose_address=self._reserve
        )
        self.allocator.releases_ranges = True
        self.trace, self.requests = [], 0
        self.live = {}
        self.reserved = set()
        self.reuses_addresses = reuses_addresses

    def _reserve(self, size):
        bases = ((1 << 40) + number * 2 * TOTAL for number in range(100))
        used = self.allocator.ranges if self.reuses_addresses else self.reserved
        base = next(base for base in bases if base not in used)
        self.reserved.add(base)
        return base

    def _event(self, action, address, size):
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": len(self.trace)}
        frame = {"filename": "train.py", "line": self.requests, "name": "step"}
        self.trace.append(entry | {"frames": [frame]})

    def _segment_events(self, known):
        for event in self.allocator.events[known:]:
            action = "segment_map" if event.action == 5 else "segment_unmap"
            self._event(action, event.address, event.size)

    def allocate(self, pool, size):
        self.requests += 1
        number, known = 2 * pool + (size <= MIB), len(self.allocator.events)
        address, whole = self.allocator.allocate(number, size, 0)
        self._segment_events(known)
        self._event("alloc", address, size)
        self.live[address] = number, whole
        return address

    def free(self, address):
        number, size = self.live.pop(address)
        self._event("free_requested", address, size)
        self._event("free_completed", address, size)
        self.allocator.free(number, address, size)

    def empty_cache(self, *, pool=None):
        """Unmap the unused memory of the default pool or, if ``pool`` is given, only of this pool, as if deleted."""
        self.requests += 1
        known = len(self.allocator.events)
        self.allocator.release_cached(0, frozenset([pool]), only_private=pool is not None)
        self._segment_events(known)

    def snapshot(self, streams=None, **own):
        """Return the recording. ``streams`` contains the streams of segments by address."""
        segments = []
        for start, size, number in self.allocator.mapped_ranges():
            rows = [(address, size, "active_allocated") for address, (_, size) in self.live.items()]
            rows += [(*block, "inactive") for block in self.allocator.free_blocks(number)]
            blocks = [
                {"address": address, "size": nbytes, "requested_size": nbytes, "state": state, "frames": []}
                for address, nbytes, state in sorted(rows)
                if start <= address < start + size
            ]
            pool = self.allocator.pools[number]
            fields = {"device": 0, "address": start, "total_size": size, "stream": 0, "is_expandable": True}
            fields |= {"segment_type": "small" if pool.small else "large", "segment_pool_id": (0, pool.id)}
            fields["stream"] = (streams or {}).get(start, 0)
            segments.append(fields | {"blocks": blocks})
        settings = {"expandable_segments": True, "PYTORCH_CUDA_ALLOC_CONF": self.settings}
        file = {"segments": segments, "device_traces": [self.trace], "allocator_settings": settings}
        return Snapshot.load({**file, "ipygpumem": own} if own else file)


def run(program, steps=30, seed=0):
    generator = random.Random(seed)
    kept = []
    for step in range(steps):
        kept.append(program.allocate(1, 512 * generator.randint(128, 32768)))
        temporary = program.allocate(1, 512 * generator.randint(128, 16384))
        outside = program.allocate(0, 512 * generator.randint(128, 131072))
        while len(kept) > step % 7 + 2:
            program.free(kept.pop(0))
        program.free(temporary)
        program.free(outside)
    for address in kept:
        program.free(address)


def test_pool_that_exists_until_the_end():
    program = Program()
    run(program)
    program.empty_cache()
    program.allocate(0, 64 * MIB)
    snapshot = program.snapshot()
    assert (snapshot.replay().grade, snapshot.replay().reason) == ("exact", "")
    private = {pool.id for pool in cached_verification(snapshot, 0).recording.pools if pool.private}
    assert [snapshot.pools[number] for number in private] == [(0, 1)]


def test_addresses_that_another_pool_uses_later():
    program = Program()
    first = program.allocate(0, 30 * MIB)
    program.free(first)
    program.empty_cache()
    assert program.allocate(1, 30 * MIB) == first
    run(program)
    program.empty_cache()
    program.allocate(0, 64 * MIB)
    assert program.snapshot().replay().grade == "exact"


def test_addresses_that_are_not_reused():
    program = Program(reuses_addresses=False)
    addresses = []
    for _ in range(3):
        addresses.append(program.allocate(0, 30 * MIB))
        program.free(addresses[-1])
        program.empty_cache()
    program.allocate(0, 64 * MIB)
    assert len(set(addresses)) == 3
    assert program.snapshot().replay().grade == "exact"


@pytest.mark.parametrize("seed", range(3))
def test_deleted_pools(seed):
    program = Program()
    program.allocate(0, 3 * MIB)
    program.allocate(0, MIB)
    for number in range(2):
        run(program, seed=seed + 10 * number)
        program.empty_cache(pool=1)
        program.allocate(0, 40 * MIB)
    snapshot = program.snapshot()
    assert (snapshot.replay().grade, snapshot.replay().reason) == ("exact", "")
    private = [pool for pool in cached_verification(snapshot, 0).recording.pools if pool.private]
    assert len({pool.id for pool in private}) == 4, "large and small requests of two pools"
    assert list(snapshot.pools) == [(0, 0)]


def test_deleted_pool_that_is_older_than_the_recording():
    program = Program()
    program.allocate(0, 30 * MIB)
    program.allocate(0, 1024)
    private = [program.allocate(1, size) for size in (50 * MIB, 2048, 12 * MIB)]
    first = len(program.trace)
    program.free(program.allocate(0, 5 * MIB))
    program.free(program.allocate(0, 70 * MIB))
    for address in private:
        program.free(address)
    program.empty_cache(pool=1)
    program.allocate(0, 8 * MIB)
    program.trace = program.trace[first:]
    assert (program.snapshot().replay().grade, program.snapshot().replay().reason) == ("exact", "")


def test_segment_of_another_stream_that_does_not_change_while_recording():
    program = Program(reuses_addresses=False)
    program.allocator.pools[2:] = [BlockPool(0, 7, small, private=False) for small in (False, True)]
    program.allocate(0, 30 * MIB)
    temporary = program.allocate(0, 1024)
    (base,) = {1 << 40, (1 << 40) + 2 * TOTAL, (1 << 40) + 4 * TOTAL} - program.reserved
    program.allocate(1, 1024)
    first = len(program.trace)
    program.free(temporary)
    program.empty_cache()
    program.free(program.allocate(0, 2048))
    program.empty_cache()
    program.trace = program.trace[first:]
    snapshot = program.snapshot(streams={base: 7})
    assert (snapshot.replay().grade, snapshot.replay().reason) == ("exact", "")
    assert not any(pool.private for pool in cached_verification(snapshot, 0).recording.pools)


@pytest.mark.parametrize("pool", [0, 1])
def test_cached_segments_that_serve_no_request_while_recording(pool):
    program = Program()
    for size in (30 * MIB, 1024):
        program.allocate(1 - pool, size)
        program.free(program.allocate(pool, size))
    program.allocate(pool, 50 * MIB)
    first = len(program.trace)
    program.allocate(1 - pool, 5 * MIB)
    program.empty_cache(pool=1 if pool else None)
    program.allocate(1 - pool, 8 * MIB)
    for address in [address for address, (number, _) in program.live.items() if number >= 2]:
        program.free(address)
    program.empty_cache(pool=1)
    program.allocate(0, 60 * MIB)
    program.trace = program.trace[first:]
    assert (program.snapshot().replay().grade, program.snapshot().replay().reason) == ("exact", "")


def private_pools(snapshot):
    return {pool.id for pool in cached_verification(snapshot, 0).recording.pools if pool.private}


def allocate_below_kept_memory(program, *sizes):
    """Allocate memory of two sizes, free the first, and record an allocation of a third size at its addresses.

    The recorded memory is mapped and unmapped while the second allocation is kept at a higher address.
    """
    before = [program.allocate(0, size) for size in sizes[:2]]
    program.free(before[0])
    program.empty_cache()
    first = len(program.trace)
    address = program.allocate(0, sizes[2])
    assert address == before[0]
    program.free(address)
    program.empty_cache()
    return first, before[1]


@pytest.mark.parametrize("has_pool_ids", [False, True])
@pytest.mark.parametrize(("distance", "total"), [(100 * MIB, TOTAL), (5 * TOTAL // 8, TOTAL), (100 * MIB, None)])
@pytest.mark.parametrize("kept", [True, False])
def test_memory_below_kept_memory_of_the_same_segment(kept, distance, total, has_pool_ids):
    program = Program()
    program.allocate(0, 1024)
    first, address = allocate_below_kept_memory(program, distance, 20 * MIB, 60 * MIB)
    if not kept:
        program.free(address)
        program.empty_cache()
    program.allocate(0, 8 * MIB)
    program.trace = [event | ({"pool_id": (0, 0)} if has_pool_ids else {}) for event in program.trace[first:]]
    snapshot = program.snapshot(**({} if total is None else {"devices": [{"total": total}]}))
    assert (snapshot.replay().grade, snapshot.replay().reason) == ("exact", "")
    assert not private_pools(snapshot)


def test_small_requests_below_kept_memory_of_the_same_segment():
    program = Program()
    program.allocate(0, 30 * MIB)
    addresses = [program.allocate(0, MIB) for _ in range(9)]
    for address in addresses[:8]:
        program.free(address)
    program.empty_cache()
    first = len(program.trace)
    program.free(program.allocate(0, MIB))
    program.empty_cache()
    program.trace = program.trace[first:]
    snapshot = program.snapshot()
    assert (snapshot.replay().grade, snapshot.replay().reason) == ("exact", "")
    assert not private_pools(snapshot)


def test_separate_parts_of_a_segment_of_which_some_are_unmapped_while_recording():
    program = Program()
    addresses = [program.allocate(0, 20 * MIB) for _ in range(7)]
    for address in addresses[::2]:
        program.free(address)
    program.empty_cache()
    first = len(program.trace)
    program.free(addresses[1])
    program.empty_cache()
    program.free(program.allocate(0, 50 * MIB))
    program.free(addresses[3])
    program.empty_cache()
    program.allocate(0, 4 * MIB)
    program.trace = program.trace[first:]
    snapshot = program.snapshot()
    assert (snapshot.replay().grade, snapshot.replay().reason) == ("exact", "")
    assert not private_pools(snapshot)


@pytest.mark.parametrize("total", [TOTAL, None])
def test_private_pools_beside_memory_below_kept_memory(total):
    program = Program()
    private = [program.allocate(1, size * MIB) for size in (30, 2, 40)]
    program.free(private.pop(0))
    program.empty_cache(pool=1)
    first, _ = allocate_below_kept_memory(program, 100 * MIB, 20 * MIB, 60 * MIB)
    private.append(program.allocate(1, 25 * MIB))
    for block in private:
        program.free(block)
    program.empty_cache(pool=1)
    program.allocate(0, 8 * MIB)
    program.trace = program.trace[first:]
    snapshot = program.snapshot(**({} if total is None else {"devices": [{"total": total}]}))
    assert (snapshot.replay().grade, snapshot.replay().reason) == ("exact", "")
    assert len(private_pools(snapshot)) == 1


@pytest.mark.parametrize("seed", range(10))
def test_recordings_that_begin_at_any_event(seed):
    program, generator = Program(), random.Random(seed)
    live = []
    for _ in range(100):
        live.append(program.allocate(0, 512 * generator.randint(1, generator.choice([2048, 131072]))))
        while len(live) > 6 or (live and generator.random() < 0.3):
            program.free(live.pop(generator.randrange(len(live))))
        if generator.random() < 0.2:
            program.empty_cache()
    trace = program.trace
    for first in generator.sample(range(len(trace) - 20), 10):
        program.trace = trace[first:]
        snapshot = program.snapshot()
        assert cached_verification(snapshot, 0).difference == ""
        assert not private_pools(snapshot)


def test_requests_after_a_retry():
    without_map = 0
    for seed in (6, 9, 11, 24):
        program, generator, kept = Program("expandable_segments:True,max_split_size_mb:32"), random.Random(seed), []
        program.allocator.limit = 250 * MIB
        for _ in range(300):
            known = len(program.allocator.events)
            sizes = [512 * generator.randint(2049, largest) for largest in (20_000, 160_000)]
            try:
                kept.append(program.allocate(0, generator.choice(sizes)))
            except SimulatedOutOfMemoryError:
                program._segment_events(known)
                break
            while len(kept) > 8 or (kept and generator.random() < 0.5):
                program.free(kept.pop(generator.randrange(len(kept))))
        actions = [event["action"] for event in program.trace]
        without_map += ("segment_unmap", "alloc") in pairwise(actions)
        assert cached_verification(program.snapshot(), 0).difference == ""
    assert without_map
