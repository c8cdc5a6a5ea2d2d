"""Timelines of small programs."""

from __future__ import annotations

import numpy as np

from ipygpumem.features.profile.categories import (
    ACTIVATION,
    AUTOGRAD,
    CATEGORIES,
    GRADIENT,
    INPUT,
    PARAMETER,
    TEMPORARY,
    UNKNOWN,
    DataFlow,
    DataFlowNode,
    UnmatchedEvent,
)
from ipygpumem.features.profile.timeline import build_timelines

NAMES = CATEGORIES.index


def step():
    """Activation 2 is computed from input 0 and parameter 1. Gradient 3 is computed from 4 and then updates 1."""
    return DataFlow(
        identities=[0, 1, 2, 3, 4, 5],
        sizes=[10, 20, 40, 20, 80, 7],
        devices=["cuda:0"] * 6,
        nodes=[
            DataFlowNode(100, backward=False, inputs=[(0, 0), (1, 0)], outputs=[(2, 0)], allocated={2, 5}, freed={5}),
            DataFlowNode(200, backward=True, inputs=[(2, 0), (0, 0)], outputs=[(4, 0)], allocated={4}),
            DataFlowNode(300, backward=True, inputs=[(4, 0)], outputs=[(3, 0)], allocated={3}),
            DataFlowNode(400, backward=False, inputs=[(4, 0)], freed={4}),
            DataFlowNode(500, backward=False, inputs=[(1, 0), (3, 0)], outputs=[(1, 1)], written=[(1, 0)]),
            DataFlowNode(600, backward=False, inputs=[(2, 0)], freed={2}),
        ],
        allocation_times={2: 110, 5: 105, 4: 210, 3: 310},
        free_times={5: 120, 4: 400, 2: 600},
        gradients={3},
        parameters={1},
        counters={"cuda:0": [(110, 1000, 2000), (400, 900, 2000)]},
        span=(90, 700),
    )


def test_training_step():
    (timeline,) = build_timelines(step())
    assert timeline.device == "cuda:0"
    changes = list(zip(timeline.time, timeline.source, timeline.target, timeline.size, strict=True))
    assert changes == [
        (105, -1, TEMPORARY, 7),
        (110, -1, ACTIVATION, 40),
        (120, TEMPORARY, -1, 7),
        (210, -1, AUTOGRAD, 80),
        (310, -1, GRADIENT, 20),
        (400, AUTOGRAD, -1, 80),
        (600, ACTIVATION, -1, 40),
    ]
    base = np.zeros(len(CATEGORIES), int)
    base[INPUT], base[PARAMETER] = 10, 20
    assert (timeline.base == base).all()
    assert timeline.total.tolist() == [30, 37, 77, 70, 150, 170, 90, 50]
    assert timeline.peak == (5, 170)
    assert timeline.elapsed(5) == 310 - 90
    assert timeline.elapsed(0) == 0
    assert (timeline.start, timeline.end) == (90, 700)
    assert timeline.usage[:, :UNKNOWN].any()


def test_allocator_counters_follow_changes():
    (timeline,) = build_timelines(step())
    assert timeline.allocated.tolist() == [-1, 1000, 1000, 1000, 1000, 900, 900]
    assert timeline.reserved.tolist() == [-1, 2000, 2000, 2000, 2000, 2000, 2000]


def test_memory_without_tensor_is_unknown():
    events = [
        UnmatchedEvent(10, "cpu", 1, 100),
        UnmatchedEvent(20, "cpu", 1, 50),  # the free was not profiled: the address is counted once
        UnmatchedEvent(30, "cpu", 1, -100),
        UnmatchedEvent(40, "cpu", 2, -7),  # allocated before the profile
        UnmatchedEvent(15, "cuda:1", 1, 5),
    ]
    gpu, host = build_timelines(DataFlow(unmatched=events, span=(5, 50)))
    assert (gpu.device, host.device) == ("cuda:1", "cpu"), "GPUs come first"
    assert gpu.total.tolist() == [0, 5]
    assert host.base[UNKNOWN] == 7
    assert host.total.tolist() == [7, 107, 7, 0]
    assert not host.usage[:, :UNKNOWN].any()
    assert host.allocated is None


def test_tensor_of_unknown_size_has_no_bytes():
    flow = DataFlow(
        identities=[0], sizes=[None], devices=["cpu"], nodes=[DataFlowNode(1, backward=False, inputs=[(0, 0)])]
    )
    assert build_timelines(flow) == ()


def test_category_change_moves_bytes():
    flow = step()
    flow.states = {2}  # the category applies to all versions
    (timeline,) = build_timelines(flow)
    assert timeline.usage[:, ACTIVATION].tolist() == [0] * 8
    assert timeline.usage[2, NAMES("optimizer state")] == 40
    # a write in the backward pass does not change the total
    flow = step()
    flow.nodes.insert(3, DataFlowNode(350, backward=True, inputs=[(4, 0)], outputs=[(4, 1)], written=[(4, 0)]))
    assert build_timelines(flow)[0].total.tolist() == [30, 37, 77, 70, 150, 170, 90, 50]


def test_activation_overwritten_in_backward_becomes_unknown():
    flow = step()
    flow.nodes.insert(3, DataFlowNode(350, backward=True, inputs=[(2, 0)], outputs=[(2, 1)], written=[(2, 0)]))
    (timeline,) = build_timelines(flow)
    assert (350, ACTIVATION, UNKNOWN, 40) in zip(
        timeline.time, timeline.source, timeline.target, timeline.size, strict=True
    )
    assert timeline.usage[-1].tolist() == timeline.usage[-1].clip(0).tolist()


def test_first_of_equal_peaks_is_used():
    flow = DataFlow(
        unmatched=[UnmatchedEvent(1, "cpu", 1, 5), UnmatchedEvent(2, "cpu", 1, -5), UnmatchedEvent(3, "cpu", 2, 5)]
    )
    (timeline,) = build_timelines(flow)
    assert timeline.peak == (1, 5)


def test_empty_profile():
    assert build_timelines(DataFlow()) == ()


def test_parameters_without_module_are_inferred_from_data_flow():
    flow = step()
    flow.parameters = set()
    (timeline,) = build_timelines(flow)
    assert timeline.base[PARAMETER] == 20
    assert timeline.base[INPUT] == 10
