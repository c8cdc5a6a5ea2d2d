"""Curves that were sampled beside the allocator."""

from __future__ import annotations

import numpy as np
import pytest

from ipygpumem import Snapshot
from ipygpumem.viewer.sampled import SampledCurve, highest, sampled_curves

MIB = 1 << 20


@pytest.mark.parametrize(
    "curve",
    [
        None,
        7,
        {},
        {"device": 0, "time_us": [1], "bytes": []},
        {"device": 0, "time_us": ["x"], "bytes": [1]},
        {"device": 1, "time_us": [1], "bytes": [1]},
        {"device": 0, "time_us": [1 << 70], "bytes": [1]},
    ],
)
def test_malformed_curves_are_ignored(curve):
    event = {"action": "alloc", "addr": 4096, "size": MIB, "stream": 0, "time_us": 5, "frames": []}
    valid = {"device": 0, "time_us": [4, 6], "bytes": [1, 2]}
    own = {"curves": {"device used": curve, "outside PyTorch": valid}}
    snapshot = Snapshot.load({"segments": [], "device_traces": [[event]], "ipygpumem": own})
    (found,) = sampled_curves(snapshot, snapshot.timeline())
    assert (found.name, found.event.tolist(), found.bytes.tolist()) == ("outside PyTorch", [-1, 0], [1, 2])


def test_a_device_full_of_other_processes_does_not_flatten_the_picture():
    curve = SampledCurve("device used", np.array([0]), np.array([50 * MIB]))
    assert highest([curve], 20 * MIB) == 50 * MIB
    assert highest([curve], 10 * MIB) == 10 * MIB
