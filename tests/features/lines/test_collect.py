"""Memory usage by line of code: the values of the lines add up to the allocator's counters."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time

import pytest
import torch

import ipygpumem
from ipygpumem.core.errors import OptionError, RecordingError
from ipygpumem.core.units import MIB
from ipygpumem.sources import pytorch


@pytest.fixture
def gpu(fake_gpu):
    fake_gpu.free(fake_gpu.alloc(MIB))
    return fake_gpu


def allocate(gpu, mib):
    block = gpu.alloc(mib * MIB)
    gpu.free(gpu.alloc(mib * MIB))
    return block


def lines_of(report, title):
    (device,) = report.lines
    (listing,) = [listing for listing in device.listings if title in listing.title]
    return {line.text.strip(): line.use for line in listing.lines}


def test_each_line_of_block_and_function(gpu):
    before = gpu.alloc(5 * MIB + 100)
    with ipygpumem.measure(lines=allocate) as m:
        tensors = []
        for _ in range(3):
            tensors.append(allocate(gpu, 10))  # noqa: PERF401 (a line in a loop is tested)
        gpu.free(tensors.pop())
    (device,) = m.report.lines
    block = lines_of(m.report, "measure()")
    use = block["tensors.append(allocate(gpu, 10))  # noqa: PERF401 (a line in a loop is tested)"]
    assert (use.allocated, use.allocations) == (60 * MIB, 6)
    assert (use.freed, use.frees) == (30 * MIB, 3)
    assert (use.after, use.peak) == (35 * MIB + 100, 45 * MIB + 100)
    assert use.kept == 20 * MIB, "the next line frees one of the three blocks"
    use = block["gpu.free(tensors.pop())"]
    assert (use.freed, use.frees, use.peak) == (10 * MIB, 1, None), "no peak for a line that does not allocate"
    assert block["tensors = []"] is None
    inner_lines = lines_of(m.report, "allocate, ")
    assert inner_lines["block = gpu.alloc(mib * MIB)"].kept == 20 * MIB
    use = inner_lines["gpu.free(gpu.alloc(mib * MIB))"]
    assert (use.allocated, use.freed, use.kept, use.peak) == (30 * MIB, 30 * MIB, 0, 45 * MIB + 100)
    assert device.before == 5 * MIB + 100
    assert device.elsewhere is None
    assert device.end_requested + device.end_rounding + device.end_pending == device.end_allocated
    assert device.end_allocated == m.report.devices["cuda:0"].after.allocated
    assert device.end_rounding == 412
    high = m.report.devices["cuda:0"].high.allocated
    assert device.peak_requested + device.peak_rounding + device.peak_pending == device.peak_allocated == high
    gpu.free(before)


def test_recursion_counts_event_once_per_line(gpu):
    def deep(n):
        block = gpu.alloc(MIB)
        return [block, *deep(n - 1)] if n else [block]

    with ipygpumem.measure(lines=deep) as m:
        deep(3)
    lines = lines_of(m.report, "deep")
    assert lines["block = gpu.alloc(MIB)"].allocations == 4
    assert lines["return [block, *deep(n - 1)] if n else [block]"].allocations == 3


def test_line_peak_includes_previous_level(gpu):
    with ipygpumem.measure(lines=True) as m:
        block = gpu.alloc(8 * MIB)
        gpu.free(block) or gpu.alloc(2 * MIB)
    use = lines_of(m.report, "measure()")["gpu.free(block) or gpu.alloc(2 * MIB)"]
    assert (use.peak, use.after) == (8 * MIB, 2 * MIB)


def test_other_threads_are_counted_separately(gpu):
    with ipygpumem.measure(lines=True) as m:
        thread = threading.Thread(target=gpu.alloc, args=(2 * MIB,))
        thread.start()
        thread.join()
        gpu.alloc(MIB)
    (device,) = m.report.lines
    assert (device.elsewhere.allocated, device.elsewhere.allocations) == (2 * MIB, 1)
    lines = lines_of(m.report, "measure()")
    assert lines["gpu.alloc(MIB)"].allocated == MIB
    assert lines["thread.join()"] is None


def test_backward_pass_is_attributed_to_waiting_line(gpu, monkeypatch):
    blocks = []

    def engine(*arguments, **options):
        def work():
            blocks.append(gpu.alloc(8 * MIB))
            gpu.free(gpu.alloc(4 * MIB))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        # the engine's threads have no Python stack
        for event in gpu[0].allocator.trace[-5:]:
            event["frames"] = []

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", engine)
    with ipygpumem.measure(lines=True) as m:
        assert torch.autograd._engine_run_backward is not engine
        x = torch.ones(3, requires_grad=True)
        loss = gpu.alloc(MIB)
        x.sum().backward()
        gpu.free(loss)
    assert torch.autograd._engine_run_backward is engine, "the function is restored"
    lines = lines_of(m.report, "measure()")
    use = lines["x.sum().backward()"]
    assert (use.allocated, use.freed, use.peak, use.kept) == (12 * MIB, 4 * MIB, 13 * MIB, 8 * MIB)
    assert lines["loss = gpu.alloc(MIB)"].allocated == MIB
    assert m.report.lines[0].elsewhere is None


class ReleasingFunction(torch.autograd.Function):
    """A function whose backward pass allocates a block, and then frees all ``blocks``."""

    @staticmethod
    def forward(ctx, x, gpu, blocks):
        ctx.gpu, ctx.blocks = gpu, blocks
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        ctx.blocks.append(ctx.gpu.alloc(4 * MIB))
        while ctx.blocks:
            ctx.gpu.free(ctx.blocks.pop())
        return gradient, None, None


@pytest.mark.parametrize("discards", [False, True])
def test_freed_memory_with_and_without_the_bug_in_pytorch(gpu, monkeypatch, tmp_path, discards):
    monkeypatch.setattr(pytorch, "discards_exceptions", lambda torch: discards)
    with ipygpumem.measure(snapshot=tmp_path / "x.pickle"):  # PyTorch keeps the stacks of these allocations
        old, blocks = gpu.alloc(5 * MIB), [gpu.alloc(6 * MIB), gpu.alloc(7 * MIB)]
    contexts = []
    with ipygpumem.measure(lines=True, snapshot=tmp_path / "x.pickle") as m:
        gpu.free(old)
        x = torch.ones(3, requires_grad=True)
        y = ReleasingFunction.apply(x, gpu, blocks[:1])
        y.register_hook(lambda gradient: contexts.append(gpu.history["context"]))
        y.sum().backward()
        gpu.free(gpu.alloc(2 * MIB))
        gpu.free(blocks[1])
        contexts.append(gpu.history["context"])
    assert contexts == ["alloc" if discards else "all", "all"]
    freed = {line: use.freed for line, use in lines_of(m.report, "measure()").items() if use}
    assert freed == {
        "gpu.free(old)": 5 * MIB,
        "y.sum().backward()": 10 * MIB,
        "gpu.free(gpu.alloc(2 * MIB))": 2 * MIB,
        "gpu.free(blocks[1])": 7 * MIB,
    }
    assert m.report.lines[0].elsewhere is None
    events = pickle.loads((tmp_path / "x.pickle").read_bytes())["device_traces"][0]
    frames = [event.get("frames") for event in events if event["action"] == "free_requested"]
    assert [stack is None for stack in frames] == [False, discards, discards, False, False]
    assert frames[-1][0]["line"] == frames[0][0]["line"] + 6


def test_nested_and_failed_backward_passes_and_stacks_of_frees(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(pytorch, "discards_exceptions", lambda torch: True)
    contexts = []

    def nested(gradient):
        with torch.enable_grad():
            torch.ones(3, requires_grad=True).sum().backward()
        contexts.append(gpu.history["context"])
        with ipygpumem.measure(lines=True):
            contexts.append(gpu.history["context"])
        contexts.append(gpu.history["context"])

    def fail(gradient):
        raise ZeroDivisionError

    with ipygpumem.measure(lines=True, snapshot=tmp_path / "x.pickle"):
        for hook in (nested, fail):
            x = torch.ones(3, requires_grad=True)
            x.register_hook(hook)
            with contextlib.suppress(ZeroDivisionError):
                x.sum().backward()
            contexts.append(gpu.history["context"])
        gpu.free(gpu.alloc(MIB))
        torch.cuda.reset_accumulated_memory_stats()
    assert contexts == ["alloc", "alloc", "alloc", "all", "all"]
    events = pickle.loads((tmp_path / "x.pickle").read_bytes())["device_traces"][0]
    (free,) = [event for event in events if event["action"] == "free_requested"]
    assert "frames" not in free, "it is unknown which events belong to backward passes"


def test_freed_memory_in_another_recording_of_this_package(gpu, tmp_path):
    with ipygpumem.measure(snapshot=tmp_path / "x.pickle"):
        block = gpu.alloc(3 * MIB)
        time.sleep(0.002)
        with ipygpumem.measure(lines=True) as m:
            gpu.free(block)
        assert gpu.history["context"] == "alloc"
    assert lines_of(m.report, "measure()")["gpu.free(block)"].freed == 3 * MIB


def test_freed_memory_in_a_recording_of_the_program_without_stacks_of_frees(gpu):
    torch.cuda.memory._record_memory_history(context="alloc")
    block = gpu.alloc(3 * MIB)
    time.sleep(0.002)
    with ipygpumem.measure(lines=True) as m:
        allocated = gpu.alloc(MIB)
        gpu.free(allocated)
        gpu.free(block)
    torch.cuda.memory._record_memory_history(enabled=None)
    (device,) = m.report.lines
    assert {use.freed for use in lines_of(m.report, "measure()").values() if use} == {0}
    assert device.elsewhere.freed == 4 * MIB


def test_user_thread_during_backward_pass_is_counted_separately(gpu, monkeypatch):
    def engine(*arguments, **options):
        thread = threading.Thread(target=gpu.alloc, args=(2 * MIB,))
        thread.start()
        thread.join()

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", engine)
    with ipygpumem.measure(lines=True) as m:
        torch.ones(3, requires_grad=True).sum().backward()
        gpu.alloc(MIB)
    assert m.report.lines[0].elsewhere.allocated == 2 * MIB
    assert lines_of(m.report, "measure()")["torch.ones(3, requires_grad=True).sum().backward()"] is None


def test_patches_are_removed_after_errors_in_backward_and_block(gpu, monkeypatch):
    def engine(*arguments, **options):
        raise ZeroDivisionError

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", engine)
    with pytest.raises(ZeroDivisionError), ipygpumem.measure(lines=True) as m:
        gpu.alloc(MIB)
        torch.ones(3, requires_grad=True).sum().backward()
    assert torch.autograd._engine_run_backward is engine
    assert not torch._C._cuda_isHistoryEnabled()
    assert lines_of(m.report, "measure()")["gpu.alloc(MIB)"].kept == MIB


def test_recording_started_by_user(gpu):
    torch.cuda.memory._record_memory_history(max_entries=1000)
    gpu.free(gpu.alloc(7 * MIB))
    time.sleep(0.002)
    with ipygpumem.measure(lines=True) as m:
        gpu.alloc(3 * MIB)
    assert lines_of(m.report, "measure()")["gpu.alloc(3 * MIB)"].allocated == 3 * MIB
    assert torch._C._cuda_isHistoryEnabled()
    torch.cuda.memory._record_memory_history(enabled=None)


def test_reason_for_missing_lines(gpu):
    with ipygpumem.measure(lines=True, max_entries=2) as m:
        for _ in range(4):
            gpu.free(gpu.alloc(MIB))
    assert m.report.lines == ()
    assert m.report.notes == (
        "this report has no lines: the ring buffer dropped the events of 4 allocations: increase max_entries",
    )
    with ipygpumem.measure(lines=True) as m:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert m.report.notes == (
        "this report has no lines: events are missing because the program itself started or stopped a recording",
    )


def test_reset_counters_are_detected_if_positions_are_needed(gpu, monkeypatch):
    monkeypatch.setattr(torch.autograd, "_engine_run_backward", lambda *arguments, **options: None)
    with ipygpumem.measure(lines=True) as m:
        gpu.alloc(MIB)
        torch.ones(3, requires_grad=True).sum().backward()
        torch.cuda.reset_accumulated_memory_stats()
    (note,) = m.report.notes
    assert note.startswith("this report has no lines: ")


def test_lines_of_a_builtin_function(fake_gpu):
    with pytest.raises(OptionError, match="functions written in Python, but got builtin"):
        ipygpumem.measure(lines=len)


def test_lines_without_a_gpu():
    with pytest.raises(RecordingError, match="only for GPU memory"):
        ipygpumem.measure(lines=True)


def test_block_without_allocations(gpu):
    with ipygpumem.measure(lines=True) as m:
        pass
    (device,) = m.report.lines
    assert not device.uses_memory
    assert set(lines_of(m.report, "measure()").values()) == {None}


def test_only_used_devices_are_listed(two_gpus):
    two_gpus.free(two_gpus.alloc(MIB))
    two_gpus.free(two_gpus.alloc(MIB, 1))
    with ipygpumem.measure(lines=True) as m:
        two_gpus.alloc(MIB, 1)
    assert [device.device for device in m.report.lines] == ["cuda:1"]
    with ipygpumem.measure(lines=True) as m:
        two_gpus.alloc(MIB, 1)
        two_gpus.alloc(2 * MIB, 0)
    assert [device.device for device in m.report.lines] == ["cuda:0", "cuda:1"]
    assert m.report.lines[1].listings[0].lines[1].use.allocated == MIB
