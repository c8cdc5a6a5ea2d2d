"""The software and hardware of this machine, and how accurate each kind of value is on it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from ipygpumem.core.breakdown import breakdown
from ipygpumem.core.errors import NvmlError
from ipygpumem.core.to_dict import PlainData
from ipygpumem.core.units import size
from ipygpumem.features.outside.cupti_records import outside_records
from ipygpumem.measurement.allocation_history import recording_problem
from ipygpumem.measurement.runtime import Runtime
from ipygpumem.sources import pytorch
from ipygpumem.sources.nvml import Nvml

if TYPE_CHECKING:
    from ipygpumem.core.reading import DeviceReading

_PACKAGES = (
    *("ipygpumem", "torch", "numpy", "nvidia-ml-py", "ipython", "ipykernel", "anywidget"),
    *("pandas", "pyarrow", "llvmlite"),
)
_ATTRIBUTION = {"process": "by process", "device": "whole device only", "torch-only": "PyTorch only"}


@dataclass(frozen=True, slots=True)
class Environment(PlainData):
    """Versions, devices and the accuracy of values on this machine; None for what does not apply.

    Attributes:
        packages: Versions of the packages in use; None for a package that is not installed.
        torch: Why PyTorch has no GPU memory to report.
        cuda: CUDA version that PyTorch was built for.
        allocator: PyTorch's allocator settings from the environment variables.
        nvml: Why NVML cannot be used.
        devices: Product name and bytes of each device that NVML shows.
        mode: How memory of PyTorch's current device is attributed (see `DeviceReading`), and the reason.
        accuracy: The confidence in each kind of value, and the reason.
    """

    python: str
    system: str
    packages: dict[str, str | None]
    torch: str | None
    cuda: str | None
    allocator: str | None
    nvml: str | None
    driver: str | None
    devices: tuple[tuple[str, int], ...]
    mode: tuple[str, str] | None
    accuracy: dict[str, tuple[str, str]]


def environment(runtime: Runtime | None = None) -> Environment:
    """Examine this machine.

    ``runtime``: use the devices of this runtime as they are. By default CUDA is initialized, which creates a context.
    """
    torch = pytorch.problem(load=True) if pytorch.importable() else "torch is not installed"
    nvml, driver, devices = _nvml()
    device = None if torch is not None else _device(runtime)
    not_started = "CUDA cannot be initialized" if runtime is None else "CUDA is not initialized yet"
    accuracy = {
        "reading of snapshots": ("exact", "needs neither torch nor a GPU"),
        "recording of snapshots": _accuracy(torch or recording_problem(), "PyTorch's allocation history"),
    }
    if device is None:
        accuracy["GPU memory"] = ("unknown", torch or not_started)
    else:
        accuracy |= {line.label: (line.grade.trust, line.grade.reason) for line in breakdown(device)}
    accuracy["outside PyTorch, by library"] = _accuracy(torch or outside_records().problem(), "CUPTI's records")
    module = pytorch.module()
    return Environment(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages={name: _version(name) for name in _PACKAGES},
        torch=torch,
        cuda=None if module is None else module.version.cuda,
        allocator=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
        nvml=nvml,
        driver=driver,
        devices=devices,
        mode=None if device is None else (device.mode, device.why),
        accuracy=accuracy,
    )


def _accuracy(problem: str | None, source: str) -> tuple[str, str]:
    return ("unknown", problem) if problem else ("exact", source)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _nvml() -> tuple[str | None, str | None, tuple[tuple[str, int], ...]]:
    """Return why NVML cannot be used, the driver's version and the devices."""
    try:
        nvml = Nvml()
        devices = tuple((name, nvml.memory(handle).total) for name, handle in nvml.handles())
        return None, nvml.driver(), devices
    except NvmlError as error:
        return str(error), None, ()


def _device(runtime: Runtime | None) -> DeviceReading | None:
    reading = Runtime().preload("context").reading if runtime is None else runtime.reading()
    return next((device for device in reading.devices.values() if device.context), None)


def environment_lines(facts: Environment) -> list[str]:
    """Return the facts as text."""
    installed = [f"{name} {installed}" for name, installed in facts.packages.items() if installed]
    missing = [name for name, installed in facts.packages.items() if not installed]
    lines = [f"Python {facts.python}, {facts.system}", f"packages     {', '.join(installed)}"]
    if missing:
        lines.append(f"missing      {', '.join(missing)}")
    lines.append(f"PyTorch      {facts.torch or 'ready'}" + (f", built for CUDA {facts.cuda}" if facts.cuda else ""))
    if facts.allocator:
        lines.append(f"allocator    {facts.allocator}")
    lines.append(f"NVML         {facts.nvml or f'ready, driver {facts.driver}'}")
    lines += [f"  GPU {index}: {name}, {size(total)}" for index, (name, total) in enumerate(facts.devices)]
    if facts.mode is not None:
        lines.append(f"attribution  {_ATTRIBUTION[facts.mode[0]]}: {facts.mode[1]}")
    lines.append("accuracy")
    width = max(map(len, facts.accuracy))
    lines += [f"  {name.ljust(width)}  {trust}: {reason}" for name, (trust, reason) in facts.accuracy.items()]
    return lines
