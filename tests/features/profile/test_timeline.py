"""Timelines of flows that are written out here."""

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
)
from ipygpumem.features.profile.flow import Flow, Level, Nameless, Node
from ipygpumem.features.profile.timeline import profile_of

NAMES = CATEGORIES.index


def step():
    """Input 0 and parameter 1 make activation 2; going back gradient 3 comes by way of 4; then 1 is changed by 3."""
    return Flow(
        identities=[0, 1, 2, 3, 4, 5],
        sizes=[10, 20, 40, 20, 80, 7],
        devices=["cuda:0"] * 6,
        nodes=[
            Node(100, backward=False, inputs=[(0, 0), (1, 0)], outputs=[(2, 0)], born={2, 5}, died={5}),
            Node(200, backward=True, inputs=[(2, 0), (0, 0)], outputs=[(4, 0)], born={4}),
            Node(300, backward=True, inputs=[(4, 0)], outputs=[(3, 0)], born={3}),
            Node(400, backward=False, inputs=[(4, 0)], died={4}),
            Node(500, backward=False, inputs=[(1, 0), (3, 0)], outputs=[(1, 1)], written=[(1, 0)]),
            Node(600, backward=False, inputs=[(2, 0)], died={2}),
        ],
        allocated={2: 110, 5: 105, 4: 210, 3: 310},
        freed={5: 120, 4: 400, 2: 600},
        gradients={3},
        parameters={1},
        levels={"cuda:0": [Level(110, 1000, 2000), Level(400, 900, 2000)]},
        span=(90, 700),
    )


def test_a_step_of_training():
    (timeline,) = profile_of(step()).timelines
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
    assert timeline.when(5) == 310 - 90
    assert timeline.when(0) == 0
    assert (timeline.start, timeline.end) == (90, 700)
    assert timeline.categorised


def test_what_the_allocator_told_stands_beside():
    (timeline,) = profile_of(step()).timelines
    assert timeline.allocated.tolist() == [-1, 1000, 1000, 1000, 1000, 900, 900]
    assert timeline.reserved.tolist() == [-1, 2000, 2000, 2000, 2000, 2000, 2000]


def test_memory_without_a_tensor_is_unknown():
    events = [
        Nameless(10, "cpu", 1, 100),
        Nameless(20, "cpu", 1, 50),  # freed unseen in between: the address is counted once
        Nameless(30, "cpu", 1, -100),
        Nameless(40, "cpu", 2, -7),  # was there before
        Nameless(15, "cuda:1", 1, 5),
    ]
    gpu, host = profile_of(Flow(nameless=events, span=(5, 50))).timelines
    assert (gpu.device, host.device) == ("cuda:1", "cpu"), "GPUs come first"
    assert gpu.total.tolist() == [0, 5]
    assert host.base[UNKNOWN] == 7
    assert host.total.tolist() == [7, 107, 7, 0]
    assert not host.categorised
    assert host.allocated is None


def test_a_tensor_of_unknown_size_has_no_bytes():
    flow = Flow(identities=[0], sizes=[None], devices=["cpu"], nodes=[Node(1, backward=False, inputs=[(0, 0)])])
    assert profile_of(flow).timelines == ()


def test_a_change_of_purpose_moves_bytes_and_adds_none():
    flow = step()
    flow.states = {2}  # by its identity: from the beginning on
    (timeline,) = profile_of(flow).timelines
    assert timeline.levels[:, ACTIVATION].tolist() == [0] * 8
    assert timeline.levels[2, NAMES("optimizer state")] == 40
    # an activation that is written into in the backward pass becomes a detail of it
    flow = step()
    flow.nodes.insert(3, Node(350, backward=True, inputs=[(4, 0)], outputs=[(4, 1)], written=[(4, 0)]))
    assert profile_of(flow).timelines[0].total.tolist() == [30, 37, 77, 70, 150, 170, 90, 50]


def test_an_activation_that_a_backward_pass_writes_over_is_nothing_known():
    flow = step()
    flow.nodes.insert(3, Node(350, backward=True, inputs=[(2, 0)], outputs=[(2, 1)], written=[(2, 0)]))
    (timeline,) = profile_of(flow).timelines
    assert (350, ACTIVATION, UNKNOWN, 40) in zip(
        timeline.time, timeline.source, timeline.target, timeline.size, strict=True
    )
    assert timeline.levels[-1].tolist() == timeline.levels[-1].clip(0).tolist()


def test_equal_peaks_the_first_counts():
    flow = Flow(nameless=[Nameless(1, "cpu", 1, 5), Nameless(2, "cpu", 1, -5), Nameless(3, "cpu", 2, 5)])
    (timeline,) = profile_of(flow).timelines
    assert timeline.peak == (1, 5)


def test_nothing_at_all():
    assert profile_of(Flow()).timelines == ()


def test_parameters_that_nothing_shows_are_told_from_the_way_of_the_data():
    """As a loop without modules and optimizers has it: used forward, needed for a gradient, changed by one."""
    flow = step()
    flow.parameters = set()
    (timeline,) = profile_of(flow).timelines
    assert timeline.base[PARAMETER] == 20
    assert timeline.base[INPUT] == 10
