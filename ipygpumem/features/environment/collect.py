"""Collect software versions, devices, and the accuracy of measured values on this machine."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from ipygpumem.core.errors import NvmlError
from ipygpumem.core.introspection import attempt
from ipygpumem.core.reading import DeviceReading, breakdown
from ipygpumem.core.serialization import Serializable
from ipygpumem.core.units import size
from ipygpumem.features.outside.cupti_recorder import cupti_recorder
from ipygpumem.measurement.allocation_history import recording_problem
from ipygpumem.measurement.runtime import Runtime
from ipygpumem.sources import pytorch
from ipygpumem.sources.nvml import Nvml

_PACKAGES = (
    *("ipygpumem", "torch", "numpy", "nvidia-ml-py", "ipython", "ipykernel", "anywidget"),
    *("pandas", "pyarrow", "llvmlite"),
)
_ATTRIBUTION = {"process": "by process", "device": "whole device only", "torch-only": "PyTorch only"}


@dataclass(frozen=True, slots=True)
class Environment(Serializable):
    """Software versions, devices and the accuracy of measured values on this machine.

    Attributes:
        packages: Versions of packages; None for a package that is not installed.
        torch: Reason why PyTorch's GPU memory cannot be measured; None if it can be measured.
        cuda: CUDA version of the PyTorch build; None for a build without CUDA, or if torch cannot be imported.
        nvml: Reason why NVML is unavailable; None if it is available.
        devices: Product name and total memory in bytes of each device listed by NVML.
        mode: Attribution of the memory usage of the first device in use (see `DeviceReading`), and its reason; None if
            no device is in use.
        accuracy: Tuple ``(trust, reason)``, as in `Accuracy`, by kind of value.
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
    """If ``runtime`` is None, CUDA is initialized to read a device."""
    torch = pytorch.problem(load=True) if pytorch.importable() else "torch is not installed"
    nvml, driver, devices = _nvml()
    device = None if torch is not None else _device(runtime)
    not_started = "CUDA cannot be initialized" if runtime is None else "CUDA is not initialized yet"
    accuracy = {
        "reading snapshots": ("exact", "requires neither torch nor a GPU"),
        "recording snapshots": _accuracy(torch or recording_problem(), "PyTorch's allocation history"),
    }
    if device is None:
        accuracy["GPU memory"] = ("unknown", torch or not_started)
    else:
        accuracy |= {line.label: (line.grade.trust, line.grade.reason) for line in breakdown(device)}
    accuracy["outside PyTorch, by library"] = _accuracy(
        torch or cupti_recorder().problem(), "CUPTI's records of allocations"
    )
    module = pytorch.module()
    return Environment(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages={name: attempt(partial(version, name)) for name in _PACKAGES},
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


def _nvml() -> tuple[str | None, str | None, tuple[tuple[str, int], ...]]:
    try:
        nvml = Nvml()
        devices = tuple((name, nvml.memory(handle).total) for name, handle in nvml.handles())
        return None, nvml.driver(), devices
    except NvmlError as error:
        return str(error), None, ()


def _device(runtime: Runtime | None) -> DeviceReading | None:
    reading = Runtime().preload("context").reading if runtime is None else runtime.reading()
    return next((device for device in reading.devices.values() if device.context), None)


def environment_lines(info: Environment) -> list[str]:
    installed = [f"{name} {installed}" for name, installed in info.packages.items() if installed]
    missing_packages = [name for name, installed in info.packages.items() if not installed]
    lines = [f"Python {info.python}, {info.system}", f"packages     {', '.join(installed)}"]
    if missing_packages:
        lines.append(f"missing      {', '.join(missing_packages)}")
    lines.append(f"PyTorch      {info.torch or 'ready'}" + (f", built for CUDA {info.cuda}" if info.cuda else ""))
    if info.allocator:
        lines.append(f"allocator    {info.allocator}")
    lines.append(f"NVML         {info.nvml or f'ready, driver {info.driver}'}")
    lines += [f"  GPU {index}: {name}, {size(total)}" for index, (name, total) in enumerate(info.devices)]
    if info.mode is not None:
        lines.append(f"attribution  {_ATTRIBUTION[info.mode[0]]}: {info.mode[1]}")
    lines.append("accuracy")
    width = max(map(len, info.accuracy))
    lines += [f"  {name.ljust(width)}  {trust}: {reason}" for name, (trust, reason) in info.accuracy.items()]
    return lines
