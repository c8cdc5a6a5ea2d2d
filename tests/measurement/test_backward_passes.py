"""Standing before PyTorch's engine: told of every pass, gone afterwards, never in the way."""

from __future__ import annotations

import threading

import pytest
import torch

from ipygpumem.measurement.backward_passes import BACKWARD, BackwardPasses
from ipygpumem.measurement.event_position import mark

MIB = 1 << 20


def run_backward():
    torch.ones(3, requires_grad=True).sum().backward()


@pytest.fixture
def original():
    yield torch.autograd._engine_run_backward
    assert not hasattr(torch.autograd._engine_run_backward, "__wrapped__")


def test_a_pass_has_its_marks_and_who_waited(fake_gpu, original):
    fake_gpu.alloc(MIB)
    passes = BackwardPasses()
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


def test_several_listeners_and_one_wrapper(original):
    one, other = BackwardPasses(), BackwardPasses()
    one.start()
    wrapper = torch.autograd._engine_run_backward
    other.start()
    assert torch.autograd._engine_run_backward is wrapper
    run_backward()
    one.stop()
    run_backward()
    assert torch.autograd._engine_run_backward is wrapper
    other.stop()
    assert torch.autograd._engine_run_backward is original
    assert (len(one.passes), len(other.passes)) == (1, 2)


def test_what_wraps_ours_goes_on_working(original):
    passes = BackwardPasses()
    passes.start()
    ours = torch.autograd._engine_run_backward

    def theirs(*arguments, **options):
        return ours(*arguments, **options)

    torch.autograd._engine_run_backward = theirs
    passes.stop()
    assert torch.autograd._engine_run_backward is theirs
    run_backward()
    assert passes.passes == []
    torch.autograd._engine_run_backward = ours
    again = BackwardPasses()
    again.start()
    run_backward()
    assert len(again.passes) == 1
    again.stop()
    assert torch.autograd._engine_run_backward is original


def test_a_listener_that_fails_and_a_pass_that_fails(original):
    class Fails:
        def backward_begins(self):
            raise ZeroDivisionError

        backward_ends = backward_begins

    fails, passes = Fails(), BackwardPasses()
    BACKWARD.join(fails)
    passes.start()
    run_backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    assert len(passes.passes) == 2, "the failed one has an end, too"
    passes.stop()
    BACKWARD.leave(fails)
    BACKWARD.leave(fails)


def test_passes_in_several_threads_and_inside_one_another(original):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                run_backward()
            return grad

    passes = BackwardPasses()
    passes.start()
    Twice.apply(torch.ones(3, requires_grad=True)).sum().backward()
    thread = threading.Thread(target=run_backward)
    thread.start()
    thread.join()
    passes.stop()
    assert len(passes.passes) == 3
    assert [one.root.endswith("threading.py") for one in passes.passes] == [False, False, True]


def test_no_marks_before_cuda_starts_and_without_counters(make_gpu):
    gpu = make_gpu()
    assert mark() == {}
    gpu.free(gpu.alloc(MIB))
    assert mark() == {0: 2}
    make_gpu(backend="pluggable")
    torch.cuda.init()
    torch.cuda.synchronize()
    assert mark() == {}
