"""The breakdown of a device's memory, and the baseline of a session.

The lines of the breakdown add up to the memory in use::

    device used      = driver reserved + this process + other processes + unattributed
    this process     = PyTorch reserved + outside PyTorch
    PyTorch reserved = allocated + pending + cached
    outside PyTorch  = baseline (context, first kernels) + since the baseline

If NVML does not report the memory usage of each process, ``outside PyTorch`` includes the memory of all processes,
and the lines ``other processes`` and ``unattributed`` are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from ipygpumem.core.accuracy import Accuracy, make_accuracy
from ipygpumem.core.reading import DeviceReading, Reading
from ipygpumem.core.serialization import PlainData

PRELOAD_OFF = "preload is off"
"""Value of `Baseline.note` if CUDA was not initialized because the ``preload`` setting is off."""


@dataclass(frozen=True, slots=True)
class Baseline(PlainData):
    """Memory usage before the first cell, measured after CUDA was initialized and common kernels were run.

    Attributes:
        reading: Counters of all devices and of the host.
        device: Name of the device on which CUDA was initialized; None if CUDA was not initialized.
        label: Product name of this device.
        context: Size of the CUDA context in bytes; None if the context already existed.
        kernels: Memory outside PyTorch used by the first kernels and their libraries, in bytes; None if unknown.
        workspace: Size of the cuBLAS workspace in PyTorch's allocator, in bytes; None if unknown.
        note: Reason why the preload is incomplete; empty if it is complete.
    """

    reading: Reading
    device: str | None = None
    label: str = ""
    context: int | None = None
    kernels: int | None = None
    workspace: int | None = None
    note: str = ""

    written_properties = ("outside",)

    @property
    def outside(self) -> int | None:
        """Memory outside PyTorch in bytes, on the device on which CUDA was initialized; None if unknown."""
        device = self.reading.devices.get(self.device or "")
        return None if device is None else device.outside


@dataclass(frozen=True, slots=True)
class BreakdownLine:
    """One line of the breakdown. ``level`` is the nesting level: 0 for a total, 1 for a part of a total, and so on."""

    label: str
    nbytes: int | None
    level: int
    grade: Accuracy


def breakdown(reading: DeviceReading, baseline: Baseline | None = None) -> list[BreakdownLine]:
    """Return all lines of a device's breakdown, starting with the total memory."""
    torch_accuracy = make_accuracy("exact", reading.torch_why or "allocator counter")
    device_accuracy = make_accuracy("exact", reading.source or "CUDA's device properties")
    process_accuracy = make_accuracy("exact", reading.why)
    outside_accuracy = process_accuracy
    if reading.process is None:
        outside_accuracy = make_accuracy("device", f"may include the memory of other processes: {reading.why}")
    torch_problem = reading.torch_why or reading.why
    lines = [
        ("device total", reading.total, 0, device_accuracy, reading.why),
        ("free", reading.free, 0, device_accuracy, reading.why),
        ("used", reading.used, 0, device_accuracy, reading.why),
        (
            "driver reserved",
            reading.driver_reserved,
            1,
            device_accuracy,
            "the driver does not report its reserved memory",
        ),
        ("this process", reading.process, 1, process_accuracy, reading.why),
        ("PyTorch reserved", reading.reserved, 2, torch_accuracy, torch_problem),
        ("allocated (tensors)", reading.allocated, 3, torch_accuracy, torch_problem),
        ("pending (freed, waiting for another stream)", reading.pending, 3, torch_accuracy, torch_problem),
        ("cached", reading.cached, 3, torch_accuracy, torch_problem),
        ("outside PyTorch", reading.outside, 2, outside_accuracy, torch_problem),
        *((*line, outside_accuracy, "") for line in _outside_parts(reading, baseline)),
        ("other processes", reading.others, 1, process_accuracy, reading.why),
        ("unattributed", reading.unattributed, 1, process_accuracy, reading.why),
    ]
    return [
        BreakdownLine(label, nbytes, level, accuracy if nbytes is not None else make_accuracy("unknown", problem))
        for label, nbytes, level, accuracy, problem in lines
    ]


def _outside_parts(reading: DeviceReading, baseline: Baseline | None) -> list[tuple[str, int, int]]:
    before = None if baseline is None else baseline.reading.devices.get(reading.name)
    if baseline is None or before is None or (before.process is None) != (reading.process is None):
        return []  # one of the values includes other processes
    at_baseline, now = before.outside, reading.outside
    if at_baseline is None or now is None or (reading.process is None and before.source != reading.source):
        return []
    parts = []
    if baseline.device == reading.name:
        parts = [("CUDA context", baseline.context), ("first kernels", baseline.kernels)]
    lines = [(label, nbytes, 3) for label, nbytes in parts if nbytes is not None]
    remainder = at_baseline - sum(nbytes for _, nbytes, _ in lines)
    if remainder or not lines:
        lines.append(("other memory at the baseline" if lines else "at the baseline", remainder, 3))
    return [*lines, ("since the baseline", now - at_baseline, 3)]
