"""The rules of the allocator, and a comparison with a slow model for random programs."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpumem.core.units import MIB
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay.allocator import SimulatedAllocator, SimulatedOutOfMemoryError
from ipygpumem.snapshot.replay.free_blocks import BlockPool
from ipygpumem.snapshot.replay.settings import AllocatorSettings
from snapshot.replay import allocator_model

STREAMS = (0, 7)
TOTAL = 200 * MIB


def addresses():
    following = 1 << 40

    def choose(size):
        nonlocal following
        following += size
        return following - size

    return choose


def make(text="", **options):
    pools = [BlockPool(0, stream, small, False) for stream in STREAMS for small in (False, True)]
    return SimulatedAllocator(AllocatorSettings.parse(text), pools, total=TOTAL, choose_address=addresses(), **options)


def pool(size, stream=0):
    return STREAMS.index(stream) * 2 + (size <= MIB)


def allocate(allocator, *sizes):
    return [(pool(size), *allocator.allocate(pool(size), size, 0)) for size in sizes]


def calls(allocator):
    return [event.action for event in allocator.events]


def test_smallest_block_is_used_and_merged_after_the_free():
    allocator = make()
    blocks = allocate(allocator, 2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB)
    base = blocks[0][1]
    assert [block[1] - base for block in blocks] == [0, 2 * MIB, 5 * MIB, 9 * MIB]
    for block in blocks[0], blocks[2]:
        allocator.free(*block)
    assert allocate(allocator, 3 * MIB)[0][1:] == (base + 5 * MIB, 4 * MIB)  # the rest of 1 MiB is not split off
    allocator.free(*blocks[1])
    assert allocate(allocator, 5 * MIB)[0][1:] == (base, 5 * MIB)
    assert allocator.reserved == allocator.peak == 20 * MIB


def test_small_requests_are_split_to_the_byte():
    allocator = make()
    (_, first, size), (_, second, _) = allocate(allocator, MIB - 512, 512)
    assert (size, second - first) == (MIB - 512, MIB - 512)


def test_segments_are_not_merged_although_they_are_adjacent():
    allocator = make()
    blocks = allocate(allocator, 10 * MIB, 10 * MIB)
    assert blocks[1][1] - blocks[0][1] == 10 * MIB
    for block in blocks:
        allocator.free(*block)
    allocate(allocator, 20 * MIB)
    assert allocator.reserved == 40 * MIB


def test_streams_and_sizes_have_their_own_pools():
    allocator = make()
    for block in allocate(allocator, 2 * MIB, 512):
        allocator.free(*block)
    assert not allocator.fits(pool(2 * MIB, 7), 2 * MIB)
    assert allocator.fits(pool(2 * MIB), 2 * MIB)
    assert not allocator.fits(pool(512, 7), 512)


def test_cached_segments_are_freed_before_a_request_fails():
    allocator = make(limit=40 * MIB)
    used, cached = allocate(allocator, 12 * MIB, 20 * MIB)
    allocator.free(*cached)
    allocate(allocator, 26 * MIB)
    assert calls(allocator) == [Action.SEGMENT_ALLOC] * 2 + [Action.SEGMENT_FREE, Action.SEGMENT_ALLOC]
    assert (allocator.retries, allocator.reserved, allocator.peak) == (1, 38 * MIB, 38 * MIB)
    with pytest.raises(SimulatedOutOfMemoryError):
        allocate(allocator, 12 * MIB)
    allocator.free(*used)
    allocate(allocator, 12 * MIB)


def test_max_split_size():
    allocator = make("max_split_size_mb:64")
    large = allocate(allocator, 100 * MIB)[0]
    allocator.free(*large)
    allocate(allocator, 30 * MIB)  # is not taken from the free block of 100 MiB
    assert allocator.reserved == 130 * MIB
    allocate(allocator, 79 * MIB)  # a free block that is larger by 20 MiB or more is not used
    assert allocator.reserved == 210 * MIB
    assert allocate(allocator, 81 * MIB)[0][2] == 100 * MIB  # and blocks of this size are not split


def test_max_split_size_frees_only_oversize_blocks_first():
    allocator = make("max_split_size_mb:64", limit=260 * MIB)
    for block in allocate(allocator, 70 * MIB, 90 * MIB, 60 * MIB):
        allocator.free(*block)
    allocate(allocator, 120 * MIB)
    freed = [event.size for event in allocator.events if event.action == Action.SEGMENT_FREE]
    assert (freed, allocator.retries) == ([90 * MIB, 70 * MIB], 0)


@pytest.mark.parametrize("size", [70 * MIB, 120 * MIB])
def test_max_split_size_frees_only_entire_segments(size):
    allocator = make("max_split_size_mb:64", limit=260 * MIB)
    allocator.add_segment(1 << 39, 200 * MIB)
    allocator.free(pool(size), 1 << 39, 100 * MIB)
    with pytest.raises(SimulatedOutOfMemoryError):
        allocate(allocator, size)


def test_garbage_collection_frees_the_oldest_blocks():
    allocator = make("garbage_collection_threshold:0.6", limit=100 * MIB, by_fraction=True)
    old, late, reused = allocate(allocator, 24 * MIB, 26 * MIB, 28 * MIB)
    allocator.free(*old)
    for _ in range(3):
        allocator.free(*reused)
        assert allocate(allocator, 28 * MIB) == [reused]
    allocator.free(*reused)
    allocator.free(*late)
    allocate(allocator, 29 * MIB)
    freed = [event.size for event in allocator.events if event.action == Action.SEGMENT_FREE]
    assert (freed, allocator.retries, allocator.reserved) == ([24 * MIB], 0, 84 * MIB)


def test_free_block_before_unmapped_memory_is_kept():
    """PyTorch prefers a larger free block to one that can grow into the unmapped memory after it."""
    allocator = make("expandable_segments:True")
    (first, second) = allocate(allocator, 12 * MIB, 18 * MIB)
    assert allocator.reserved == 40 * MIB
    allocator.free(*first)
    assert allocator.free_blocks(first[0]) == [(second[1] + 18 * MIB, 10 * MIB), (first[1], 12 * MIB)]
    assert allocate(allocator, 8 * MIB) == [(first[0], first[1], 8 * MIB)]


def test_expandable_segments_grow_and_shrink():
    allocator = make("expandable_segments:True")
    first, second = allocate(allocator, 30 * MIB, 15 * MIB)
    assert second[1] - first[1] == 30 * MIB
    assert [(event.action, event.size) for event in allocator.events] == [
        (Action.MAP, 40 * MIB),
        (Action.MAP, 20 * MIB),
    ]
    assert allocator.reserved == 60 * MIB
    allocator.free(*first)
    allocator.release_cached(0)
    assert allocator.events[-1][:3] == (Action.UNMAP, first[1], 20 * MIB)  # the second page is partly in use
    assert allocator.reserved == 40 * MIB
    assert allocate(allocator, 12 * MIB)[0][1] == second[1] + 15 * MIB  # maps the pages behind the last block
    assert allocate(allocator, 9 * MIB)[0][1] == first[1] + 20 * MIB  # the free rest of the partly used page


def test_limit_by_fraction_is_compared_with_the_segment_size():
    for by_fraction, fits in ((False, True), (True, False)):
        allocator = make("expandable_segments:True", limit=65 * MIB, by_fraction=by_fraction)
        allocate(allocator, 35 * MIB)
        size = 30 * MIB  # 5 MiB are free, so 40 MiB must be mapped; a segment would have 30 MiB
        allocator.free(*allocate(allocator, 5 * MIB)[0])
        try:
            allocate(allocator, size - 5 * MIB if fits else size)
        except SimulatedOutOfMemoryError:
            assert not fits
        else:
            assert fits


sizes = st.one_of(
    st.integers(1, 2048).map(lambda count: count * 512),
    st.integers(2049, 24_000).map(lambda count: count * 512),
    st.sampled_from([MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 20 * MIB, 30 * MIB]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), sizes, st.sampled_from(STREAMS)),
        st.tuples(st.just("free"), st.integers(0, 1 << 16), st.just(0)),
        st.tuples(st.just("release"), st.just(0), st.just(0)),
    ),
    min_size=5,
    max_size=60,
)


@pytest.mark.parametrize(
    "options",
    [{}, {"max_split": 20 * MIB}, {"large_segment": 32 * MIB}, {"expandable": True}],
    ids=lambda options: next(iter(options), "default"),
)
@settings(max_examples=60)
@given(program=steps, limit=st.sampled_from([None, 48 * MIB, 90 * MIB]))
def test_agrees_with_a_slow_model(options, program, limit):
    options = {"expandable": False, "max_split": None, "large_segment": 20 * MIB, **options}
    chosen = AllocatorSettings(options["expandable"], options["max_split"], large_segment=options["large_segment"])
    allocator = make(limit=limit)
    allocator.__init__(chosen, allocator.pools, limit=limit, total=TOTAL, choose_address=addresses())
    model = allocator_model.Reference(addresses(), limit=limit, total=TOTAL, **options)
    live = []
    for action, value, stream in program:
        if action == "allocate":
            try:
                expected = model.allocate(value, stream)
            except allocator_model.SimulatedOutOfMemoryError:
                with pytest.raises(SimulatedOutOfMemoryError):
                    allocator.allocate(pool(value, stream), value, 0)
                continue
            assert allocator.allocate(pool(value, stream), value, 0) == expected
            live.append((pool(value, stream), *expected))
        elif action == "free" and live:
            block = live.pop(value % len(live))
            allocator.free(*block)
            model.free(block[1])
        elif action == "release":
            allocator.release_cached(0)
            model.release()
        free = sum(size for number in range(len(allocator.pools)) for _, size in allocator.free_blocks(number))
        assert allocator.reserved == model.reserved == free + sum(size for _, _, size in live)
        spans = sorted((start, start + size) for _, start, size in live)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_private_pools_of_old_versions_have_no_expandable_segments():
    pools = [BlockPool(0, 0, False, False), BlockPool(1, 0, False, True, expandable=False)]
    settings = AllocatorSettings.parse("expandable_segments:True")
    allocator = SimulatedAllocator(settings, pools, total=TOTAL, choose_address=addresses())
    for number in (0, 1):
        allocator.allocate(number, 3 * MIB, 0)
    assert calls(allocator) == [Action.MAP, Action.SEGMENT_ALLOC]
    assert allocator.allocate(1, 17 * MIB - 512, 0)[1] == 17 * MIB - 512  # but the rest of a block is split off


def test_request_can_fail_without_another_attempt():
    for text, served in (("", True), ("throw_on_cudamalloc_oom:True", False)):
        allocator = make(text, limit=40 * MIB)
        allocator.free(*allocate(allocator, 24 * MIB)[0])
        if served:
            allocate(allocator, 30 * MIB)
        else:
            with pytest.raises(SimulatedOutOfMemoryError):
                allocate(allocator, 30 * MIB)
        assert (allocator.retries, allocator.reserved) == ((1, 30 * MIB) if served else (0, 24 * MIB))


def test_address_ranges_that_overlap_because_the_memory_of_the_device_is_unknown():
    base = 1 << 40
    starts = iter([base, base + 40 * MIB, base - 20 * MIB, base + (1 << 38)])
    pools = [BlockPool(0, stream, False, False) for stream in range(3)]
    settings = AllocatorSettings.parse("expandable_segments:True")
    allocator = SimulatedAllocator(settings, pools, total=TOTAL, choose_address=lambda size: next(starts))
    used = [allocator.allocate(number, 20 * MIB, 0)[0] - base for number in (0, 1, 2, 0)]
    assert used == [0, 40 * MIB, -20 * MIB, 20 * MIB]
    assert allocator.allocate(0, 20 * MIB, 0)[0] == base + (1 << 38)  # both ranges are full
