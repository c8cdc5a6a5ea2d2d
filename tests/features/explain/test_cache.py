"""PyTorch's cache: what can go back, what is pinned and by what, what belongs to graphs."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ipygpumem.features.explain.cache import Cache, cache_of

MIB = 1 << 20


def segment(*blocks, device=0, pool=(0, 0), kind="large", expandable=False, address=0x7000_0000_0000):
    """Blocks as (MiB, free) pairs."""
    return {
        "device": device,
        "address": address,
        "total_size": sum(size for size, _ in blocks) * MIB,
        "segment_type": kind,
        "segment_pool_id": pool,
        "is_expandable": expandable,
        "blocks": [{"size": size * MIB, "state": "inactive" if free else "active_allocated"} for size, free in blocks],
    }


def test_whole_segments_go_back_and_others_are_pinned():
    segments = [
        segment((100, True)),
        segment((5, False), (15, True)),
        segment((1, False), (9, True), (2, False), (8, True)),
        segment((7, False)),
        segment((50, True), device=1),
    ]
    assert cache_of(segments, 0) == Cache(100 * MIB, 32 * MIB, 0, 3, 2, 3, 8 * MIB, 0)
    assert cache_of(segments, 1) == Cache(50 * MIB)
    assert cache_of(segments, 2) == Cache()


def test_a_block_that_waits_for_a_stream_pins_too():
    one = segment((5, False), (15, True))
    one["blocks"][0]["state"] = "active_pending_free"
    assert cache_of([one], 0).pinned == 15 * MIB


def test_private_pools_are_their_graphs():
    segments = [segment((20, True), pool=(0, 1)), segment((5, False), (15, True), pool=(0, 2)), segment((4, True))]
    found = cache_of(segments, 0)
    assert (found.private, found.pools, found.returnable, found.total) == (35 * MIB, 2, 4 * MIB, 39 * MIB)


def test_an_older_torch_has_no_pool_ids():
    one = segment((20, True))
    del one["segment_pool_id"], one["is_expandable"]
    assert cache_of([one], 0).returnable == 20 * MIB


def test_expandable_segments_give_back_whole_pages():
    # pages of 20 MiB from the segment's start: 0-20, 20-40, 40-60, 60-80
    one = segment((30, True), (5, False), (45, True), expandable=True)
    found = cache_of([one], 0)
    assert (found.returnable, found.pinned, found.expandable) == (60 * MIB, 15 * MIB, True)
    small = segment((3, True), (1, False), kind="small", expandable=True)
    assert cache_of([small], 0).returnable == 2 * MIB


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
def test_every_free_byte_is_somewhere(made):
    segments = [segment(*blocks, expandable=expandable, pool=pool) for blocks, expandable, pool in made]
    free = sum(size for blocks, _, _ in made for size, is_free in blocks if is_free)
    found = cache_of(segments, 0)
    assert found.total == free * MIB
    assert min(found.returnable, found.pinned, found.private) >= 0


def test_it_is_what_empty_cache_gives_back(fake_gpu):
    blocks = [fake_gpu.alloc(size * MIB) for size in (30, 3, 3, 12, 1, 1, 60)]
    for i in (0, 2, 4, 6):
        fake_gpu.free(blocks[i])
    before = torch.cuda.memory_reserved()
    found = cache_of(torch.cuda.memory_snapshot(), 0)
    assert found.total == before - torch.cuda.memory_allocated()
    assert found.returnable and found.pinned
    torch.cuda.empty_cache()
    assert before - torch.cuda.memory_reserved() == found.returnable
