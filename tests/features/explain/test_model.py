"""Waterfalls add up exactly, regardless of which values are known."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.reports import before, waterfall_imbalance
from ipygpumem.core.other_process import OtherProcess
from ipygpumem.core.reading import Baseline, HostReading, Reading, make_accuracy
from ipygpumem.features.explain.model import CachedMemory, host_waterfall
from ipygpumem.features.explain.steps import NamedMemory, device_waterfall

MIB = 1 << 20
EXACT = make_accuracy("exact", "records")


def baseline(context=400 * MIB, kernels=60 * MIB):
    reading = Reading(1.0, {"cuda:0": before()}, HostReading())
    return Baseline(reading, "cuda:0", "NVIDIA H200", context, kernels)


def lines(waterfall):
    return [
        (step.label, None if step.amount is None else step.amount / MIB, step.grade.trust) for step in waterfall.steps
    ]


def test_all_steps():
    waterfall = device_waterfall(
        before(others=70 * MIB),
        baseline=baseline(),
        recorded=True,
        processes=[OtherProcess(7, 60 * MIB, "python a.py", "own"), OtherProcess(8, 6 * MIB), OtherProcess(9, None)],
        named=[NamedMemory("NCCL", 100 * MIB, EXACT), NamedMemory("CuPy", 2 * MIB, EXACT, managed=True)],
        cache=CachedMemory(12 * MIB, 6 * MIB, 2 * MIB, 3, 2, 4, 9 * MIB, 1),
    )
    assert lines(waterfall) == [
        ("device used", 1500, "exact"),
        ("driver reserved", 615, "exact"),
        ("nvidia-smi shows", 885, "exact"),
        ("pid 7 (python a.py)", 60, "exact"),
        ("pid 8", 6, "exact"),
        ("more processes", 4, "exact"),
        ("managed memory", 2, "bound"),
        ("unattributed", 7, "exact"),
        ("this process", 806, "exact"),
        ("CUDA context", 400, "derived"),
        ("first kernels", 60, "derived"),
        ("NCCL", 100, "exact"),
        ("kernel code, local memory, CUDA graphs", 126, "derived"),
        ("PyTorch reserved", 120, "exact"),
        ("cached, can be released", 12, "exact"),
        ("cached, cannot be released", 6, "exact"),
        ("cached in private pools", 2, "exact"),
        ("allocated (tensors)", 100, "exact"),
    ]
    assert waterfall_imbalance(waterfall) == 0
    assert waterfall.summary == (
        "cuda:0: nvidia-smi shows 885.0 MiB, of which 100.0 MiB is allocated (tensors). The rest: "
        "70.0 MiB other processes; 9.0 MiB unattributed; 686.0 MiB outside PyTorch in this process; "
        "20.0 MiB PyTorch's cache, of which torch.cuda.empty_cache() would release 12.0 MiB."
    )
    todo = {step.label: step.todo for step in waterfall.steps}
    assert todo["NCCL"] == "torch.distributed.destroy_process_group()"
    assert todo["pid 7 (python a.py)"] == "your process; run kill 7 if you no longer need it"
    pinned = next(step for step in waterfall.steps if step.label == "cached, cannot be released")
    assert pinned.note == ("3 free blocks in 2 segments with 4 blocks in use (9.0 MiB in total)")


def test_without_own_entry_remainder_may_belong_to_other_processes():
    no_attribution = before(process=None, others=None, mode="device", why="hidden by its container")
    waterfall = device_waterfall(no_attribution, baseline=baseline())
    assert lines(waterfall)[2:] == [
        ("nvidia-smi shows", 885, "exact"),
        ("CUDA context", 400, "derived"),
        ("first kernels", 60, "derived"),
        ("this process or another", 305, "device"),
        ("PyTorch reserved", 120, "exact"),
        ("cached", 20, "exact"),
        ("allocated (tensors)", 100, "exact"),
    ]
    assert waterfall_imbalance(waterfall) == 0
    assert "765.0 MiB outside PyTorch in this process or another" in waterfall.summary


def test_without_nvml_only_pytorch_memory_is_known():
    bare = before(used=None, driver_reserved=None, process=None, others=None, mode="torch-only", why="no driver")
    waterfall = device_waterfall(bare)
    assert lines(waterfall) == [
        ("nvidia-smi shows", None, "unknown"),
        ("PyTorch reserved", 120, "exact"),
        ("cached", 20, "exact"),
        ("allocated (tensors)", 100, "exact"),
    ]
    assert waterfall.summary == "cuda:0: nvidia-smi shows: unknown (no driver)"


def test_process_list_without_value_for_device():
    unified = before(used=None, driver_reserved=None)
    waterfall = device_waterfall(unified)
    assert [label for label, *_ in lines(waterfall)][:3] == [
        "nvidia-smi shows",
        "this process",
        "CUDA context, libraries, kernel code, local memory, CUDA graphs",
    ]
    assert waterfall_imbalance(waterfall) == 0


def test_driver_that_does_not_report_its_reserve():
    waterfall = device_waterfall(before(driver_reserved=None))
    assert lines(waterfall)[0] == ("nvidia-smi shows", 1500, "exact")
    (unattributed,) = [step for step in waterfall.steps if step.label == "unattributed"]
    assert unattributed.amount == 624 * MIB
    assert "memory reserved by the driver" in unattributed.grade.reason
    assert waterfall_imbalance(waterfall) == 0


def test_allocator_without_counters():
    pluggable = before(allocated=None, reserved=None, active=None, torch_why="no allocator counters")
    waterfall = device_waterfall(pluggable, baseline=baseline())
    assert lines(waterfall)[-3:] == [
        ("this process", 806, "exact"),
        ("PyTorch reserved", None, "unknown"),
        ("allocated (tensors)", None, "unknown"),
    ]
    assert waterfall.summary == "cuda:0: allocated (tensors): unknown (no allocator counters)"


def test_memory_counted_twice_is_negative():
    waterfall = device_waterfall(before(), baseline=baseline(), named=[NamedMemory("CuPy's pool", 300 * MIB, EXACT)])
    (overlap,) = [step for step in waterfall.steps if step.label == "counted twice"]
    assert (overlap.amount, overlap.grade.trust) == (-74 * MIB, "unknown")
    assert waterfall_imbalance(waterfall) == 0


def test_baseline_of_another_device_is_not_used():
    waterfall = device_waterfall(before("cuda:1"), baseline=baseline())
    assert "CUDA context" not in [step.label for step in waterfall.steps]
    assert waterfall_imbalance(waterfall) == 0


@pytest.mark.parametrize(
    ("facts", "todo"),
    [
        ({"role": "kernel", "relation": "own"}, "another Jupyter kernel; shut it down if it is no longer needed"),
        (
            {"relation": "child", "role": "DataLoader worker"},
            "DataLoader worker that uses CUDA; to avoid this, keep its tensors on the CPU",
        ),
        ({"relation": "child"}, "freed when this child process ends"),
        ({"relation": "other", "user": "ada"}, "belongs to ada"),
        ({}, ""),
    ],
)
def test_advice_for_other_processes(facts, todo):
    waterfall = device_waterfall(before(), processes=[OtherProcess(7, 70 * MIB, **facts)])
    assert next(step for step in waterfall.steps if step.kind == "others").todo == todo


BYTES = st.integers(0, 1 << 38)


@given(
    allocated=BYTES,
    pending=BYTES,
    cached=BYTES,
    outside=BYTES,
    others=BYTES,
    unattributed=st.integers(-(1 << 30), 1 << 38),
    driver=st.none() | BYTES,
    process=st.booleans(),
    named=st.lists(st.tuples(BYTES, st.booleans()), max_size=4),
    split=st.none() | st.tuples(BYTES, BYTES, BYTES),
    others_listed=st.lists(st.none() | BYTES, max_size=8),
    start=st.none() | st.tuples(st.none() | BYTES, st.none() | BYTES),
    kernels=st.booleans(),
    recorded=st.booleans(),
)
def test_steps_add_up_to_the_byte(  # noqa: PLR0917 (one draw each)
    allocated,
    pending,
    cached,
    outside,
    others,
    unattributed,
    driver,
    process,
    named,
    split,
    others_listed,
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
        used=reserved + outside + others + unattributed + (driver or 0),
        driver_reserved=driver,
        mode="process" if process else "device",
    )
    waterfall = device_waterfall(
        reading,
        baseline=None if start is None else baseline(*start),
        kernels=kernels,
        recorded=recorded,
        processes=[OtherProcess(i, nbytes) for i, nbytes in enumerate(others_listed)],
        named=[NamedMemory(f"lib{i}", amount, EXACT, managed) for i, (amount, managed) in enumerate(named)],
        cache=None if split is None else CachedMemory(*split),
    )
    assert waterfall_imbalance(waterfall) == 0
    assert waterfall.totals[-1].amount == allocated
    assert [step.amount for step in waterfall.totals if step.label == "nvidia-smi shows"] == [reading.in_use]
    assert all(step.grade.reason or step.grade.trust == "exact" for step in waterfall.steps)
    assert waterfall.summary


def test_missing_step_is_an_imbalance():
    waterfall = device_waterfall(before(), baseline=baseline())
    steps = tuple(step for step in waterfall.steps if step.label != "cached")
    assert waterfall_imbalance(dataclasses.replace(waterfall, steps=steps)) == 20 * MIB


# host memory


def test_host_memory():
    host = HostReading(rss=300 * MIB, total=1000 * MIB, available=400 * MIB)
    waterfall = host_waterfall(host, 100 * MIB)
    assert lines(waterfall) == [
        ("this machine uses", 600, "derived"),
        ("other processes and the system", 300, "derived"),
        ("this process (RSS)", 300, "exact"),
        ("other memory of this process", 200, "derived"),
        ("tensors in host memory", 100, "bound"),
    ]
    assert waterfall_imbalance(waterfall) == 0
    assert waterfall.summary == (
        "host: this machine uses 600.0 MiB, of which 100.0 MiB is tensors in host memory. The rest: 300.0 MiB "
        "other processes and the system; 200.0 MiB other memory of this process."
    )


def test_unwritten_tensors_are_not_resident():
    waterfall = host_waterfall(HostReading(rss=300 * MIB), 400 * MIB)
    assert lines(waterfall)[1] == ("not resident", -100, "derived")
    assert waterfall_imbalance(waterfall) == 0


def test_system_without_values():
    waterfall = host_waterfall(HostReading(), 100 * MIB, ["not all were found"])
    assert lines(waterfall)[0] == ("this process (RSS)", None, "unknown")
    assert waterfall.notes == ("not all were found",)
    assert waterfall.summary == "host: this process (RSS): unknown (this system does not report the resident memory)"
