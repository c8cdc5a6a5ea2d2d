"""Interrupts while a measurement starts or ends."""

import signal

import pytest
import torch

import ipygpumem
from ipygpumem.core.units import MIB
from ipygpumem.measurement.plan import MeasurementPlan
from ipygpumem.measurement.runtime import current
from ipygpumem.sources.device_monitor import DeviceMonitor


class Interrupted:
    """Replaces `DeviceMonitor.read` with a method whose call number ``at``, counted from 1, fails."""

    def __init__(self, monkeypatch, at, error=KeyboardInterrupt):
        self.calls_left = at
        original_read = DeviceMonitor.read

        def interrupted(monitor, **options):
            self.calls_left -= 1
            if self.calls_left == 0:
                raise error("now")
            return original_read(monitor, **options)

        monkeypatch.setattr(DeviceMonitor, "read", interrupted)


@pytest.mark.parametrize("at", [1, 2])
def test_interrupt_restores_everything(fake_gpu, monkeypatch, tmp_path, at):
    fake_gpu.free(fake_gpu.alloc(MIB))
    Interrupted(monkeypatch, at)
    with pytest.raises(KeyboardInterrupt), ipygpumem.measure(snapshot=tmp_path / "x.pickle"):
        fake_gpu.free(fake_gpu.alloc(20 * MIB))
    assert torch._C._cuda_isHistoryEnabled() is False
    assert current().peaks._scopes == []
    monkeypatch.undo()
    torch.cuda.reset_peak_memory_stats()
    current().peaks.remove()
    assert not hasattr(torch._C._cuda_memoryStats, "_torchdynamo_disable")


@pytest.mark.parametrize(("method", "ran"), [("begin", False), ("finish", True)])
def test_interrupt_after_the_last_step_of_a_method(fake_gpu, monkeypatch, method, ran):
    """The measurement is open and must be closed, although Python does not call ``__exit__`` after an interrupt."""
    original, steps = getattr(MeasurementPlan, method), []

    def interrupted(*arguments, **options):
        result = original(*arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(MeasurementPlan, method, interrupted)
    with pytest.raises(KeyboardInterrupt), ipygpumem.measure() as m:
        steps.append(1)
    assert len(steps) == ran
    assert current().peaks._scopes == [] and current().open_intervals == set()
    monkeypatch.undo()
    if ran:
        assert m.report.success
    with ipygpumem.measure() as again:
        pass
    assert again.report.success


def test_our_error_does_not_replace_the_users_error(fake_gpu, monkeypatch):
    fake_gpu.free(fake_gpu.alloc(MIB))
    Interrupted(monkeypatch, 2, RuntimeError)
    expect_warning, expect_error = (
        pytest.warns(RuntimeWarning, match="no report: now"),
        pytest.raises(ValueError, match="mine"),
    )
    with expect_warning, expect_error, ipygpumem.measure():
        raise ValueError("mine")


def test_block_cannot_be_nested_in_itself(fake_gpu):
    block = ipygpumem.measure()
    with block, pytest.raises(ipygpumem.OptionError, match="already in use"), block:
        pass
    assert block.report.success is True


def test_program_stops_its_own_recording(fake_gpu, tmp_path):
    fake_gpu.free(fake_gpu.alloc(MIB))
    torch.cuda.memory._record_memory_history(max_entries=100)
    with (
        pytest.warns(RuntimeWarning, match="stopped before the measurement ended"),
        ipygpumem.measure(snapshot=tmp_path / "x") as m,
    ):
        torch.cuda.memory._record_memory_history(enabled=None)
    assert "stopped before the measurement ended" in m.report.recording.error


def test_names_of_devices(two_gpus):
    two_gpus.free(two_gpus.alloc(MIB, 1))
    with ipygpumem.measure(devices="0,1"):
        pass
    with ipygpumem.measure(devices=torch.device("cuda:1")) as m:
        pass
    assert list(m.report.devices) == ["cuda:1"]
    with pytest.raises(ipygpumem.OptionError, match="devices is empty"):
        ipygpumem.measure(devices=[])
    with pytest.raises(ipygpumem.OptionError, match="snapshot"):
        ipygpumem.measure(history={"compile_context": True})
