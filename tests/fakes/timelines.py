"""Memory timelines of random allocations."""

from __future__ import annotations

import dataclasses

import numpy as np

from ipygpumem.features.profile.categories import CATEGORIES
from ipygpumem.features.profile.timeline import CategoryTimeline

MIB = 1 << 20


def random_timeline(count=1000, device="cuda:0", seed=1, reserved=True):
    """Return a timeline of random allocations, most of which are freed, optionally with the allocator's counters."""
    random = np.random.default_rng(seed)
    size = random.integers(1, 10 * MIB, count)
    category = random.integers(0, len(CATEGORIES), count)
    freed = np.flatnonzero(random.random(count) < 0.7)
    rows = [(i, -1, category[i], size[i]) for i in range(count)]
    rows += [(i + random.integers(1, 50), category[i], -1, size[i]) for i in freed]
    table = np.array(sorted(rows, key=lambda row: row[0]), np.int64)
    time = 1_795_000_000_000_000_000 + 1000 * table[:, 0]
    base = np.zeros(len(CATEGORIES), np.int64)
    base[0] = 50 * MIB
    timeline = CategoryTimeline(
        device,
        base,
        time,
        table[:, 1].astype(np.int8),
        table[:, 2].astype(np.int8),
        table[:, 3],
        start=int(time[0]) - 500,
        end=int(time[-1]) + 700,
    )
    if not reserved:
        return timeline
    allocated = timeline.total[1:] + 5
    return dataclasses.replace(timeline, allocated=allocated, reserved=np.maximum.accumulate(allocated))
