"""Observation of backward passes."""

from __future__ import annotations

import threading

import pytest
import torch

from ipygpumem.measurement.observers import BackwardPassObservers, BackwardPassRecorder
from ipygpumem.measurement.runtime import current, event_position

MIB = 1 << 20


def run_backward():
    torch.ones(3, requires_grad=True).sum().backward()


@pytest.fixture
def original():
    yield torch.autograd._engine_run_backward
    assert not hasattr(torch.autograd._engine_run_backward, "__wrapped__")


def test_pass_has_positions_and_the_stack_of_the_caller(fake_gpu, original):
    fake_gpu.alloc(MIB)
    passes = BackwardPassRecorder()
    passes.start()
    run_backward()
    fake_gpu.free(fake_gpu.alloc(MIB))
    torch.autograd.grad(torch.ones(3, requires_grad=True).sum(), torch.ones(3, requires_grad=True), allow_unused=True)
    passes.stop()
    passes.stop()
    run_backward()
    first, second = passes.passes
    assert first.begin == first.end == {0: 1}
    assert second.begin == {0: 3}
    assert (__file__, run_backward.__code__.co_firstlineno + 1) in first.stack
    assert torch.autograd._engine_run_backward is original


def test_several_observers_share_one_wrapper(original):
    first, second = BackwardPassRecorder(), BackwardPassRecorder()
    first.start()
    wrapper = torch.autograd._engine_run_backward
    second.start()
    assert torch.autograd._engine_run_backward is wrapper
    run_backward()
    first.stop()
    run_backward()
    assert torch.autograd._engine_run_backward is wrapper
    second.stop()
    assert torch.autograd._engine_run_backward is original
    assert (len(first.passes), len(second.passes)) == (1, 2)


def test_wrapper_of_another_library_on_top(original):
    passes = BackwardPassRecorder()
    passes.start()
    own_wrapper = torch.autograd._engine_run_backward

    def other_wrapper(*arguments, **options):
        return own_wrapper(*arguments, **options)

    torch.autograd._engine_run_backward = other_wrapper
    passes.stop()
    assert torch.autograd._engine_run_backward is other_wrapper
    run_backward()
    assert passes.passes == []
    torch.autograd._engine_run_backward = own_wrapper
    new_observer = BackwardPassRecorder()
    new_observer.start()
    run_backward()
    assert len(new_observer.passes) == 1
    new_observer.stop()
    assert torch.autograd._engine_run_backward is original


def test_failing_observer_and_failing_pass(original):
    def fail():
        raise ZeroDivisionError

    passes = BackwardPassRecorder()
    observers = current().state(BackwardPassObservers)
    observers.add(fail, fail)
    passes.start()
    run_backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    assert len(passes.passes) == 2, "the failed pass has an end position"
    passes.stop()
    observers.remove(fail)
    observers.remove(fail)


def test_nested_passes_and_passes_in_threads(original):
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                run_backward()
            return grad

    passes = BackwardPassRecorder()
    passes.start()
    Nested.apply(torch.ones(3, requires_grad=True)).sum().backward()
    thread = threading.Thread(target=run_backward)
    thread.start()
    thread.join()
    passes.stop()
    assert len(passes.passes) == 3
    assert [backward.stack[-1][0].endswith("threading.py") for backward in passes.passes] == [False, False, True]


def test_no_position_before_cuda_starts_and_without_counters(make_gpu):
    gpu = make_gpu()
    assert event_position() == {}
    gpu.free(gpu.alloc(MIB))
    assert event_position() == {0: 2}
    make_gpu(backend="pluggable")
    torch.cuda.init()
    torch.cuda.synchronize()
    assert event_position() == {}
