"""Cached memory is releasable, fragmented or private."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ipygpumem.features.explain.model import CachedMemory, cached_memory

MIB = 1 << 20


def segment(*blocks, device=0, pool=(0, 0), kind="large", expandable=False, address=0x7000_0000_0000):
    """Return a segment of blocks, given as pairs of the size in MiB and whether the block is free."""
    return {
        "device": device,
        "address": address,
        "total_size": sum(size for size, _ in blocks) * MIB,
        "segment_type": kind,
        "segment_pool_id": pool,
        "is_expandable": expandable,
        "blocks": [{"size": size * MIB, "state": "inactive" if free else "active_allocated"} for size, free in blocks],
    }


def test_unused_segments_are_releasable():
    segments = [
        segment((100, True)),
        segment((5, False), (15, True)),
        segment((1, False), (9, True), (2, False), (8, True)),
        segment((7, False)),
        segment((50, True), device=1),
    ]
    assert cached_memory(segments, 0) == CachedMemory(100 * MIB, 32 * MIB, 0, 3, 2, 3, 8 * MIB, 0)
    assert cached_memory(segments, 1) == CachedMemory(50 * MIB)
    assert cached_memory(segments, 2) == CachedMemory()


def test_block_waiting_for_stream_prevents_release():
    changed = segment((5, False), (15, True))
    changed["blocks"][0]["state"] = "active_pending_free"
    assert cached_memory([changed], 0).fragmented == 15 * MIB


def test_private_pools():
    segments = [segment((20, True), pool=(0, 1)), segment((5, False), (15, True), pool=(0, 2)), segment((4, True))]
    cache = cached_memory(segments, 0)
    assert (cache.private, cache.pools, cache.releasable, cache.total) == (35 * MIB, 2, 4 * MIB, 39 * MIB)


def test_torch_without_pool_ids():
    changed = segment((20, True))
    del changed["segment_pool_id"], changed["is_expandable"]
    assert cached_memory([changed], 0).releasable == 20 * MIB


def test_whole_pages_of_expandable_segments_are_releasable():
    # pages of 20 MiB from the segment's start: 0-20, 20-40, 40-60, 60-80
    changed = segment((30, True), (5, False), (45, True), expandable=True)
    cache = cached_memory([changed], 0)
    assert (cache.releasable, cache.fragmented, cache.expandable) == (60 * MIB, 15 * MIB, True)
    small = segment((3, True), (1, False), kind="small", expandable=True)
    assert cached_memory([small], 0).releasable == 2 * MIB


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(1, 64), st.booleans()), min_size=1, max_size=6),
            st.booleans(),
            st.sampled_from([(0, 0), (0, 1), (3, 0)]),
        ),
        max_size=6,
    )
)
def test_every_free_byte_is_counted(descriptions):
    segments = [segment(*blocks, expandable=expandable, pool=pool) for blocks, expandable, pool in descriptions]
    free = sum(size for blocks, _, _ in descriptions for size, is_free in blocks if is_free)
    cache = cached_memory(segments, 0)
    assert cache.total == free * MIB
    assert min(cache.releasable, cache.fragmented, cache.private) >= 0


def test_releasable_memory_matches_empty_cache(fake_gpu):
    blocks = [fake_gpu.alloc(size * MIB) for size in (30, 3, 3, 12, 1, 1, 60)]
    for i in (0, 2, 4, 6):
        fake_gpu.free(blocks[i])
    before = torch.cuda.memory_reserved()
    cache = cached_memory(torch.cuda.memory_snapshot(), 0)
    assert cache.total == before - torch.cuda.memory_allocated()
    assert cache.releasable and cache.fragmented
    torch.cuda.empty_cache()
    assert before - torch.cuda.memory_reserved() == cache.releasable
