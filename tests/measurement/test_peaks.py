"""Peaks compared with a simple model: exact in reports, and unchanged for the program."""

from __future__ import annotations

import contextlib
import dataclasses
import functools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import close_runtime
from fakes.allocator import Stat
from fakes.cuda import FakeGpu
from ipygpumem.core.reading import AllocatorCounters
from ipygpumem.measurement.runtime import current

MIB = 1 << 20
ACCELERATOR = hasattr(torch._C, "_accelerator_getDeviceStats")
"""Whether torch.accelerator has memory counters, which PyTorch 2.9 added."""
FAMILIES = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")


def opened(indexes, *, reset):
    scope = current().peaks.scope()
    for index in indexes:
        with contextlib.suppress(RuntimeError):
            current().peaks.enter(scope, index, reset=reset)
    return scope


def closed(scope, indexes):
    for index in indexes:
        with contextlib.suppress(RuntimeError):
            current().peaks.leave(scope, index)
    current().peaks.drop(scope)
    return scope.peaks


def usage(allocator):
    return AllocatorCounters(*(allocator.stats[family]["all"].current for family in FAMILIES))


def highest(first, second):
    return AllocatorCounters(
        *(max(getattr(first, field), getattr(second, field)) for field in AllocatorCounters._fields)
    )


class TwoMachines:
    """A machine on which peaks are tracked, a twin without tracking, and a model of all open scopes."""

    def __init__(self):
        self.gpu = FakeGpu().install()
        self.twin = FakeGpu()
        self.here, self.there = self.gpu[0].allocator, self.twin[0].allocator
        torch.cuda.init()
        self.gpu.alloc(1)
        self.twin[0].allocator.alloc(1)
        self.live = []
        self.pending = []
        self.scopes = []
        self.foreign = []

    def update_model(self):
        # usage rises in alloc only, so it is sufficient to check it after each operation
        for entry in self.scopes:
            entry["peak"] = highest(entry["peak"], usage(self.here))

    def alloc(self, size, stream, pool):
        pool = (0, 1) if pool else (0, 0)
        self.live.append((self.here.alloc(size, stream, pool), self.there.alloc(size, stream, pool)))

    def free(self, number, used_by):
        if self.live:
            block, twin_block = self.live.pop(number % len(self.live))
            self.here.free(block, used_by=used_by)
            self.there.free(twin_block, used_by=used_by)

    def spike(self, size):
        self.alloc(size, 0, False)
        self.update_model()
        self.free(-1, None)

    def finish_stream(self, stream):
        self.here.stream_done(stream)
        self.there.stream_done(stream)

    def empty_cache(self):
        torch.cuda.empty_cache()
        self.there.empty_cache()

    def open(self):
        current().peaks.install()
        self.scopes.append({"scope": opened([0], reset=True), "peak": usage(self.here)})

    def close(self, number):
        if self.scopes:
            entry = self.scopes.pop(number % len(self.scopes))
            peak = closed(entry["scope"], [0])[0]
            assert dataclasses.asdict(peak) == {**entry["peak"]._asdict(), "exact": True}

    def reset(self, accelerator):
        (torch.accelerator if accelerator and ACCELERATOR else torch.cuda).reset_peak_memory_stats(0)
        self.there.reset_peaks()

    def reset_accumulated(self):
        torch.cuda.reset_accumulated_memory_stats(0)
        self.there.reset_accumulated()

    def load(self):
        current().peaks.install()

    def unload(self):
        current().peaks.remove()

    def wrap(self):
        """Wrap this package's wrappers, as another library might."""
        for name in ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats"):
            inner = getattr(torch._C, name)
            setattr(torch._C, name, functools.partial(inner))

    def compare(self):
        """Check that all functions of PyTorch return the counters of the twin."""
        expected = self.there.memory_stats()
        assert torch.cuda.memory_stats_as_nested_dict(0) == expected
        flat = torch.cuda.memory_stats(0)
        assert flat["reserved_bytes.large_pool.peak"] == expected["reserved_bytes"]["large_pool"]["peak"]
        assert torch.cuda.max_memory_allocated(0) == expected["allocated_bytes"]["all"]["peak"]
        assert torch.cuda.max_memory_reserved(0) == expected["reserved_bytes"]["all"]["peak"]
        if ACCELERATOR:
            assert torch.accelerator.max_memory_allocated(0) == expected["allocated_bytes"]["all"]["peak"]
            assert torch._C._accelerator_getDeviceStats(0) == self.there.memory_stats(accelerator=True)

    def end(self):
        current().peaks.remove()
        self.compare()
        self.alloc(30 * MIB, 0, False)
        self.compare()
        self.reset(False)
        self.compare()
        self.gpu.uninstall()
        close_runtime()


size = st.one_of(st.integers(1, 3 * MIB), st.integers(1, 60 * MIB), st.sampled_from([1, 512, MIB, MIB + 1, 10 * MIB]))
common = (
    st.tuples(st.just("alloc"), size, st.just(0), st.just(False)),
    st.tuples(st.just("free"), st.integers(0, 20), st.just(None)),
    st.tuples(st.just("open")),
    st.tuples(st.just("close"), st.integers(0, 3)),
)
step = st.one_of(
    *common,
    st.tuples(st.just("spike"), size),
    st.tuples(st.just("spike"), st.integers(1, 2000 * MIB)),
    st.tuples(st.just("open")),
    st.tuples(st.just("close"), st.integers(0, 3)),
    st.tuples(st.just("alloc"), size, st.integers(0, 1), st.booleans()),
    st.tuples(st.just("free"), st.integers(0, 20), st.just(1)),
    st.tuples(st.just("finish_stream"), st.just(1)),
    st.tuples(st.just("empty_cache")),
    st.tuples(st.just("reset"), st.booleans()),
    st.tuples(st.just("reset_accumulated")),
    st.tuples(st.just("load")),
    st.tuples(st.just("unload")),
    st.tuples(st.just("wrap")),
)


NEW_POOL = [("open",), ("alloc", 1, 0, False), ("alloc", 1, 0, True), ("free", 1, None), *[("open",)] * 3]


@settings(max_examples=25)
@given(st.lists(step, min_size=10, max_size=50))
@example([*NEW_POOL, ("empty_cache",), ("free", 0, None), ("open",)])
def test_peaks_are_exact_and_those_of_the_program_unchanged(steps):
    machines = TwoMachines()
    try:
        for name, *arguments in steps:
            getattr(machines, name)(*arguments)
            machines.update_model()
            machines.compare()
    finally:
        machines.end()


@settings(max_examples=25)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("alloc"), size),
            st.tuples(st.just("free"), st.integers(0, 20)),
            st.just(("open",)),
            st.tuples(st.just("close"), st.integers(0, 3)),
            st.just(("reset",)),
        ),
        max_size=40,
    )
)
def test_scopes_without_reset(steps):
    machines = TwoMachines()
    calls = machines.gpu.calls
    try:
        for name, *arguments in steps:
            if name == "alloc":
                machines.alloc(*arguments, 0, False)
            elif name == "free":
                machines.free(*arguments, None)
            elif name == "open":
                current().peaks.install()
                earlier_peak = machines.there.stats["allocated_bytes"]["all"].peak
                scope = opened([0], reset=False)
                machines.scopes.append({"scope": scope, "peak": usage(machines.here), "earlier": earlier_peak})
            elif name == "reset":
                machines.reset(False)
            elif machines.scopes:
                entry = machines.scopes.pop(arguments[0] % len(machines.scopes))
                peak = closed(entry["scope"], [0])[0]
                truth = entry["peak"].allocated
                assert peak.allocated >= truth
                if peak.exact:
                    assert peak.allocated == truth
                else:
                    assert truth <= entry["earlier"], "a peak above the earlier one is exact"
            machines.update_model()
            machines.compare()
        assert calls["resetPeakMemoryStats"] == steps.count(("reset",))
    finally:
        machines.end()


def test_nested_scopes(fake_gpu):
    def spike(mib):
        fake_gpu.free(fake_gpu.alloc(mib * MIB))

    fake_gpu.alloc(MIB)
    current().peaks.install()
    outer = opened([0], reset=True)
    spike(50)
    middle = opened([0], reset=True)
    spike(100)
    torch.cuda.reset_peak_memory_stats()
    inner = opened([0], reset=True)
    spike(20)
    assert closed(inner, [0])[0].allocated == 21 * MIB
    spike(30)
    (torch.accelerator if ACCELERATOR else torch.cuda).reset_peak_memory_stats()
    assert closed(middle, [0])[0].allocated == 101 * MIB
    assert closed(outer, [0])[0].allocated == 101 * MIB
    assert torch.cuda.max_memory_allocated() == 1 * MIB


def test_peak_before_an_inner_scope(fake_gpu):
    torch.cuda.init()
    outer = opened([0], reset=True)
    fake_gpu.free(fake_gpu.alloc(50 * MIB))
    inner = opened([0], reset=True)
    assert closed(inner, [0])[0].allocated == 0
    assert closed(outer, [0])[0].allocated == 50 * MIB


def test_memory_summary_and_functions_imported_before(fake_gpu):
    early = torch.cuda.memory.memory_stats_as_nested_dict
    block = fake_gpu.alloc(100 * MIB)
    fake_gpu.free(block)
    before = torch.cuda.memory_summary(0)
    current().peaks.install()
    scope = opened([0], reset=True)
    assert fake_gpu[0].allocator.stats["allocated_bytes"]["all"].peak == 0, "the counter itself was reset"
    assert torch.cuda.memory_summary(0) == before
    assert early(0)["allocated_bytes"]["all"]["peak"] == 100 * MIB
    closed(scope, [0])
    assert torch.cuda.memory_summary(0) == before


def test_wrapper_is_kept_until_the_program_resets_its_peak(fake_gpu):
    original = torch._C._cuda_memoryStats
    fake_gpu.free(fake_gpu.alloc(100 * MIB))
    current().peaks.install()
    closed(opened([0], reset=True), [0])
    current().peaks.remove()
    assert torch._C._cuda_memoryStats is not original
    assert torch.cuda.max_memory_allocated() == 100 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch._C._cuda_memoryStats is original
    assert torch.cuda.max_memory_allocated() == 0


def test_removal_restores_the_functions(fake_gpu):
    names = ["_cuda_memoryStats", "_cuda_resetPeakMemoryStats"]
    if ACCELERATOR:
        names += ["_accelerator_getDeviceStats", "_accelerator_resetPeakStats"]
    before = [getattr(torch._C, name) for name in names]
    fake_gpu.alloc(MIB)
    current().peaks.install()
    assert all(getattr(torch._C, name) is not old for name, old in zip(names, before, strict=True))
    current().peaks.install()
    closed(opened([0], reset=True), [0])
    current().peaks.remove()
    assert [getattr(torch._C, name) for name in names] == before


def test_reset_by_the_program_after_removal_with_an_open_scope(fake_gpu):
    original = torch._C._cuda_resetPeakMemoryStats
    torch.cuda.init()
    current().peaks.install()
    scope = opened([0], reset=True)
    fake_gpu.free(fake_gpu.alloc(40 * MIB))
    current().peaks.remove()
    torch.cuda.reset_peak_memory_stats()
    assert closed(scope, [0])[0].allocated == 40 * MIB
    assert torch._C._cuda_resetPeakMemoryStats is original


def test_wrapper_of_another_library_is_not_removed(fake_gpu):
    fake_gpu.alloc(MIB)
    current().peaks.install()
    own_wrapper = torch._C._cuda_memoryStats

    def other_wrapper(index):
        return own_wrapper(index)

    torch._C._cuda_memoryStats = other_wrapper
    current().peaks.remove()
    assert torch._C._cuda_memoryStats is other_wrapper
    assert torch.cuda.memory_allocated() == MIB
    current().peaks.install()
    assert torch._C._cuda_memoryStats is other_wrapper, "ours is still installed behind it"


def test_two_devices(two_gpus):
    two_gpus.alloc(MIB, 0)
    two_gpus.alloc(MIB, 1)
    current().peaks.install()
    scope = opened([0, 1], reset=True)
    two_gpus.free(two_gpus.alloc(40 * MIB, 0), used_by=None)
    two_gpus.free(two_gpus.alloc(90 * MIB, 1), used_by=None)
    torch.cuda.reset_peak_memory_stats(1)
    peaks = closed(scope, [0, 1])
    assert peaks[0].allocated == 41 * MIB
    assert peaks[1].allocated == 91 * MIB


def test_device_that_is_first_used_during_the_scope(two_gpus):
    two_gpus.alloc(MIB, 0)
    current().peaks.install()
    scope = opened([0], reset=True)
    two_gpus.free(two_gpus.alloc(50 * MIB, 1))
    assert closed(scope, [0, 1])[1].allocated == 50 * MIB


def test_invalid_reset_by_the_program(fake_gpu):
    fake_gpu.alloc(MIB)
    with pytest.raises(RuntimeError) as torch_error:
        torch.cuda.reset_peak_memory_stats(7)
    current().peaks.install()
    scope = opened([0], reset=True)
    with pytest.raises(RuntimeError) as wrapped:
        torch.cuda.reset_peak_memory_stats(7)
    assert str(wrapped.value) == str(torch_error.value)
    with pytest.raises(TypeError):
        torch._C._cuda_resetPeakMemoryStats()
    current().peaks.drop(scope)


def test_pluggable_allocator(make_gpu):
    make_gpu(backend="pluggable")
    torch.cuda.init()
    current().peaks.install()
    scope = opened([0], reset=True)
    with pytest.raises(RuntimeError, match="resetPeakStats"):
        torch.cuda.reset_peak_memory_stats(0)
    assert closed(scope, [0]) == {}


def test_counters_cannot_be_read_at_the_end(fake_gpu):
    fake_gpu.alloc(MIB)
    current().peaks.install()
    scope = opened([0], reset=True)
    fake_gpu.backend = "pluggable"
    assert closed(scope, [0]) == {}, "usage at the start is not a peak"


def test_peak_at_the_start_is_exact_without_reset(fake_gpu):
    block = fake_gpu.alloc(100 * MIB)
    current().peaks.install()
    scope = opened([0], reset=False)
    fake_gpu.free(block)
    peak = closed(scope, [0])[0]
    assert (peak.allocated, peak.exact) == (100 * MIB, True)


def test_new_peak_is_exact_without_reset(fake_gpu):
    for stream in range(3):
        fake_gpu.free(fake_gpu.alloc(100 * MIB, stream=stream))
    torch.cuda.empty_cache()
    current().peaks.install()
    scope = opened([0], reset=False)
    fake_gpu.alloc(150 * MIB)
    peak = closed(scope, [0])[0]
    assert (peak.allocated, peak.exact) == (150 * MIB, True)


def test_first_kernels_are_not_in_any_peak(fake_gpu):
    fake_gpu.alloc(10 * MIB)
    current().peaks.install()
    outer = opened([0], reset=True)
    inner = opened([0], reset=True)
    fake_gpu.free(fake_gpu.alloc(500 * MIB))
    current().peaks.drop(inner)
    current().peaks.discard(0)
    assert torch.cuda.max_memory_allocated() == 10 * MIB
    assert closed(outer, [0])[0].allocated == 10 * MIB


def test_peaks_are_reset_again_only_after_an_allocation(fake_gpu):
    fake_gpu.alloc(MIB)
    current().peaks.install()
    for _ in range(2):
        closed(opened([0], reset=True), [0])
    resets = fake_gpu.calls["resetPeakMemoryStats"]
    scope = opened([0], reset=True)
    assert fake_gpu.calls["resetPeakMemoryStats"] == resets
    fake_gpu.free(fake_gpu.alloc(3 * MIB))
    assert closed(scope, [0])[0].allocated == 4 * MIB
    assert closed(opened([0], reset=True), [0])[0].allocated == MIB
    assert fake_gpu.calls["resetPeakMemoryStats"] == resets + 1
    assert torch.cuda.max_memory_allocated() == 4 * MIB


def test_counters_of_later_versions_of_torch(fake_gpu):
    allocator = fake_gpu[0].allocator
    allocator.stats["padding_bytes"] = {"all": Stat(), "huge_pool": Stat()}
    fake_gpu.alloc(MIB)
    allocator.stats["padding_bytes"]["huge_pool"].move(77)
    allocator.stats["padding_bytes"]["huge_pool"].move(-77)
    before = torch.cuda.memory_stats(0)
    current().peaks.install()
    scope = current().peaks.scope()
    current().peaks.enter(scope, 0, reset=True)
    assert allocator.stats["padding_bytes"]["huge_pool"].peak == 0
    assert torch.cuda.memory_stats(0) == before
    current().peaks.drop(scope)
