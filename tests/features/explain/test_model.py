"""Waterfalls: every byte between two totals has a line, whatever is known."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.facts import before
from ipygpumem.core.baseline import Baseline
from ipygpumem.core.grade import grade
from ipygpumem.core.other_process import OtherProcess
from ipygpumem.core.reading import HostReading, Reading
from ipygpumem.features.explain.cache import Cache
from ipygpumem.features.explain.model import host_waterfall
from ipygpumem.features.explain.steps import Standing, device_waterfall

MIB = 1 << 20
EXACT = grade("exact", "records")


def baseline(context=400 * MIB, kernels=60 * MIB):
    reading = Reading(1.0, {"cuda:0": before()}, HostReading())
    return Baseline(reading, "cuda:0", "NVIDIA H200", context, kernels)


def lines(fall):
    return [(step.label, None if step.amount is None else step.amount / MIB, step.grade.trust) for step in fall.steps]


def test_everything_that_is_known():
    fall = device_waterfall(
        before(others=70 * MIB),
        baseline=baseline(),
        recorded=True,
        neighbours=[OtherProcess(7, 60 * MIB, "python a.py", "own"), OtherProcess(8, 6 * MIB), OtherProcess(9, None)],
        standing=[Standing("NCCL", 100 * MIB, EXACT), Standing("CuPy", 2 * MIB, EXACT, managed=True)],
        cache=Cache(12 * MIB, 6 * MIB, 2 * MIB, 3, 2, 4, 9 * MIB, 1),
    )
    assert lines(fall) == [
        ("device used", 1500, "exact"),
        ("driver reserve", 615, "exact"),
        ("nvidia-smi shows", 885, "exact"),
        ("pid 7 (python a.py)", 60, "exact"),
        ("pid 8", 6, "exact"),
        ("further processes", 4, "exact"),
        ("managed memory", 2, "bound"),
        ("unattributed", 7, "exact"),
        ("this process", 806, "exact"),
        ("CUDA context", 400, "derived"),
        ("first kernels", 60, "derived"),
        ("NCCL", 100, "exact"),
        ("kernel code, stacks, graphs", 126, "derived"),
        ("PyTorch reserved", 120, "exact"),
        ("cached, can go back", 12, "exact"),
        ("cached, cannot go back", 6, "exact"),
        ("private pools of graphs, not in use", 2, "exact"),
        ("allocated (tensors)", 100, "exact"),
    ]
    assert fall.imbalance == 0
    assert fall.words == (
        "cuda:0: nvidia-smi shows 885.0 MiB, and 100.0 MiB of it are allocated (tensors). Between them: "
        "70.0 MiB of other processes; 9.0 MiB in nobody's entry; 686.0 MiB of this process outside PyTorch; "
        "20.0 MiB of PyTorch's cache, of which torch.cuda.empty_cache() gives back 12.0 MiB."
    )
    todo = {step.label: step.todo for step in fall.steps}
    assert todo["NCCL"] == "torch.distributed.destroy_process_group()"
    assert todo["pid 7 (python a.py)"] == "yours: kill 7, if it is a leftover"
    pinned = next(step for step in fall.steps if step.label == "cached, cannot go back")
    assert pinned.remark == "3 free pieces in 2 segments, kept by 4 blocks of 9.0 MiB in the same"


def test_where_processes_cannot_be_told_apart_the_rest_is_everybodys():
    hidden = before(process=None, others=None, mode="device", why="hidden by its container")
    fall = device_waterfall(hidden, baseline=baseline())
    assert lines(fall)[2:] == [
        ("nvidia-smi shows", 885, "exact"),
        ("CUDA context", 400, "derived"),
        ("first kernels", 60, "derived"),
        ("not told apart", 305, "device"),
        ("PyTorch reserved", 120, "exact"),
        ("cached", 20, "exact"),
        ("allocated (tensors)", 100, "exact"),
    ]
    assert fall.imbalance == 0
    assert "765.0 MiB outside PyTorch, of this process or of others" in fall.words


def test_without_nvml_only_pytorchs_part_is_told():
    bare = before(used=None, driver_reserved=None, process=None, others=None, mode="torch-only", why="no driver")
    fall = device_waterfall(bare)
    assert lines(fall) == [
        ("nvidia-smi shows", None, "unknown"),
        ("PyTorch reserved", 120, "exact"),
        ("cached", 20, "exact"),
        ("allocated (tensors)", 100, "exact"),
    ]
    assert fall.words == "cuda:0: nvidia-smi shows: unknown (no driver)"


def test_a_card_that_tells_the_list_but_not_itself():
    unified = before(used=None, driver_reserved=None)
    fall = device_waterfall(unified)
    assert [label for label, *_ in lines(fall)][:3] == [
        "nvidia-smi shows",
        "this process",
        "CUDA context, libraries, kernel code, stacks, graphs",
    ]
    assert fall.imbalance == 0


def test_a_driver_that_does_not_tell_its_own_part():
    fall = device_waterfall(before(driver_reserved=None))
    assert lines(fall)[0] == ("nvidia-smi shows", 1500, "exact")
    (nobodys,) = [step for step in fall.steps if step.label == "unattributed"]
    assert nobodys.amount == 624 * MIB
    assert "what the driver keeps for itself" in nobodys.grade.reason
    assert fall.imbalance == 0


def test_an_allocator_without_counters():
    pluggable = before(allocated=None, reserved=None, active=None, torch_why="this allocator keeps no counters")
    fall = device_waterfall(pluggable, baseline=baseline())
    assert lines(fall)[-3:] == [
        ("this process", 806, "exact"),
        ("PyTorch reserved", None, "unknown"),
        ("allocated (tensors)", None, "unknown"),
    ]
    assert fall.words == "cuda:0: allocated (tensors): unknown (this allocator keeps no counters)"


def test_what_is_counted_twice_is_below_zero_and_says_so():
    fall = device_waterfall(before(), baseline=baseline(), standing=[Standing("CuPy's pool", 300 * MIB, EXACT)])
    (twice,) = [step for step in fall.steps if step.label == "counted twice"]
    assert (twice.amount, twice.grade.trust) == (-74 * MIB, "unknown")
    assert fall.imbalance == 0


def test_the_baseline_of_another_device_says_nothing_here():
    fall = device_waterfall(before("cuda:1"), baseline=baseline())
    assert "CUDA context" not in [step.label for step in fall.steps]
    assert fall.imbalance == 0


@pytest.mark.parametrize(
    ("facts", "todo"),
    [
        ({"role": "kernel", "relation": "own"}, "shut that kernel down, if it is not needed"),
        ({"relation": "child", "role": "DataLoader worker"}, "a worker that touches CUDA: keep its tensors on the CPU"),
        ({"relation": "child"}, "ends with that child"),
        ({"relation": "other", "user": "ada"}, "ada's"),
        ({}, ""),
    ],
)
def test_what_can_be_done_about_a_neighbour(facts, todo):
    fall = device_waterfall(before(), neighbours=[OtherProcess(7, 70 * MIB, **facts)])
    assert next(step for step in fall.steps if step.kind == "others").todo == todo


BYTES = st.integers(0, 1 << 38)


@given(
    allocated=BYTES,
    pending=BYTES,
    cached=BYTES,
    outside=BYTES,
    others=BYTES,
    nobody=st.integers(-(1 << 30), 1 << 38),
    driver=st.none() | BYTES,
    process=st.booleans(),
    named=st.lists(st.tuples(BYTES, st.booleans()), max_size=4),
    split=st.none() | st.tuples(BYTES, BYTES, BYTES),
    neighbours=st.lists(st.none() | BYTES, max_size=8),
    start=st.none() | st.tuples(st.none() | BYTES, st.none() | BYTES),
    kernels=st.booleans(),
    recorded=st.booleans(),
)
def test_books_balance_to_the_byte(  # noqa: PLR0917 (one draw each)
    allocated,
    pending,
    cached,
    outside,
    others,
    nobody,
    driver,
    process,
    named,
    split,
    neighbours,
    start,
    kernels,
    recorded,
):
    reserved = allocated + pending + cached
    reading = dataclasses.replace(
        before(),
        allocated=allocated,
        active=allocated + pending,
        reserved=reserved,
        process=reserved + outside if process else None,
        others=others if process else None,
        used=reserved + outside + others + nobody + (driver or 0),
        driver_reserved=driver,
        mode="process" if process else "device",
    )
    fall = device_waterfall(
        reading,
        baseline=None if start is None else baseline(*start),
        kernels=kernels,
        recorded=recorded,
        neighbours=[OtherProcess(i, amount) for i, amount in enumerate(neighbours)],
        standing=[Standing(f"lib{i}", amount, EXACT, managed) for i, (amount, managed) in enumerate(named)],
        cache=None if split is None else Cache(*split),
    )
    assert fall.imbalance == 0
    assert fall.totals[-1].amount == allocated
    assert [step.amount for step in fall.totals if step.label == "nvidia-smi shows"] == [reading.in_use]
    assert all(step.grade.reason or step.grade.trust == "exact" for step in fall.steps)
    assert fall.words


def test_a_step_left_out_is_an_imbalance():
    fall = device_waterfall(before(), baseline=baseline())
    assert (
        dataclasses.replace(fall, steps=tuple(one for one in fall.steps if one.label != "cached")).imbalance == 20 * MIB
    )


# main memory


def test_main_memory():
    host = HostReading(rss=300 * MIB, total=1000 * MIB, available=400 * MIB)
    fall = host_waterfall(host, 100 * MIB, "")
    assert lines(fall) == [
        ("machine used", 600, "derived"),
        ("other processes and the system", 300, "derived"),
        ("this process (RSS)", 300, "exact"),
        ("everything else in it", 200, "derived"),
        ("tensors in main memory", 100, "bound"),
    ]
    assert fall.imbalance == 0
    assert fall.words == (
        "host: machine used 600.0 MiB, and 100.0 MiB of it are tensors in main memory. Between them: 300.0 MiB of "
        "other processes and the system; 200.0 MiB of this process beside them."
    )


def test_tensors_that_nobody_has_written_are_not_resident():
    fall = host_waterfall(HostReading(rss=300 * MIB), 400 * MIB, "")
    assert lines(fall)[1] == ("not resident", -100, "derived")
    assert fall.imbalance == 0


def test_a_system_that_tells_nothing():
    fall = host_waterfall(HostReading(), None, "no walk")
    assert lines(fall) == [("this process (RSS)", None, "unknown")]
    assert fall.notes == ("tensors are not counted: no walk",)
    assert fall.words == "host: this process (RSS): unknown (this system does not tell)"
