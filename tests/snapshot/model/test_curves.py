"""Curves of requested and reserved bytes."""

from __future__ import annotations

import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot import Snapshot

MIB = 1 << 20


def test_curves_at_a_time(two_runs):
    assert [two_runs.allocated(time) for time in (0, 100, 101, 102, 104)] == [
        2 * MIB,
        2 * MIB,
        6 * MIB,
        6 * MIB + 1000,
        2 * MIB + 1000,
    ]
    assert (two_runs.reserved(99), two_runs.reserved(100, 0)) == (2 * MIB, 22 * MIB)
    with pytest.raises(OptionError, match="no times"):
        Snapshot.load({"device_traces": [[{"action": "alloc", "addr": 512, "size": 1}]]}).allocated(5)
