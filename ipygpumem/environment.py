"""What this machine allows: versions, PyTorch, CUDA, NVML, and the trust that each number deserves here."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ipygpumem.units import size

__all__ = ["Environment", "environment", "environment_lines"]

_PACKAGES = ("ipygpumem", "torch", "numpy", "nvidia-ml-py", "ipython", "ipykernel", "anywidget", "pandas", "pyarrow")


@dataclass(frozen=True, slots=True)
class Environment:
    """The facts.

    Attributes:
        python: Version of Python.
        system: Operating system.
        packages: Version of each package that matters; None for one that is not there.
        torch: What is wrong with PyTorch, or None.
        cuda: Version of CUDA that PyTorch was built for, or None.
        allocator: PyTorch's allocator settings from the environment, or None.
        nvml: What is wrong with NVML, or None.
        driver: Version of the driver, or None.
        devices: Name and bytes of each card that NVML shows.
        numbers: For each kind of number its trust, and the reason.
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
    numbers: dict[str, tuple[str, str]]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def environment() -> Environment:
    """Look at this machine. Imports torch where it is installed, but starts no CUDA."""
    torch, cuda = _torch()
    nvml, driver, devices, per_process = _nvml()
    allocator = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    asynchronous = "cudaMallocAsync" in (allocator or "")
    return Environment(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages={name: _version(name) for name in _PACKAGES},
        torch=torch,
        cuda=cuda,
        allocator=allocator,
        nvml=nvml,
        driver=driver,
        devices=devices,
        numbers=_numbers(torch, nvml, per_process, asynchronous=asynchronous),
    )


def _numbers(
    torch: str | None, nvml: str | None, per_process: str | None, *, asynchronous: bool
) -> dict[str, tuple[str, str]]:
    tensors = ("exact", "PyTorch's own counters") if torch is None else ("unknown", torch)
    if torch is not None:
        recording = ("unknown", torch)
    elif asynchronous:
        recording = ("unknown", "backend:cudaMallocAsync records no history")
    else:
        recording = ("exact", "PyTorch's allocation history")
    if nvml is not None:
        card = outside = ("unknown", nvml)
    elif per_process is not None:
        card, outside = ("device", "NVML tells of the whole card"), ("device", per_process)
    else:
        card, outside = ("device", "NVML tells of the whole card"), ("exact", "NVML's entry of the process")
    return {
        "PyTorch's tensors and cache": tensors,
        "recording of snapshots": recording,
        "reading of snapshots": ("exact", "needs neither torch nor a GPU"),
        "memory outside PyTorch": outside,
        "the card": card,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _torch() -> tuple[str | None, str | None]:
    """What is wrong with PyTorch, and its CUDA version."""
    if _version("torch") is None:
        return "torch is not installed", None
    try:
        torch = import_module("torch")
    except Exception as problem:
        return f"torch cannot be imported: {_first_line(problem)}", None
    cuda = torch.version.cuda
    if cuda is None:
        return f"torch {torch.__version__} is built without CUDA", None
    if not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU", cuda
    return None, cuda


def _nvml() -> tuple[str | None, str | None, tuple[tuple[str, int], ...], str | None]:
    """What is wrong with NVML, the driver, the cards, and why its process list is of no use."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return "nvidia-ml-py is not installed", None, (), None
    try:
        nvml.nvmlInit()
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        devices = tuple(
            (_text(nvml.nvmlDeviceGetName(one)), int(nvml.nvmlDeviceGetMemoryInfo(one).total)) for one in handles
        )
    except nvml.NVMLError as problem:
        return f"NVML: {_first_line(problem)}", None, (), None
    try:
        listed = [entry for one in handles for entry in nvml.nvmlDeviceGetComputeRunningProcesses(one)]
    except nvml.NVMLError as problem:
        return None, driver, devices, f"NVML lists no processes: {_first_line(problem)}"
    hidden = any(entry.usedGpuMemory is None for entry in listed)
    return None, driver, devices, "NVML hides the bytes of processes" if hidden else None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]


def environment_lines(facts: Environment) -> list[str]:
    """The facts as text."""
    lines = [f"Python {facts.python}, {facts.system}"]
    lines.append("packages   " + ", ".join(f"{name} {found}" for name, found in facts.packages.items() if found))
    missing = [name for name, found in facts.packages.items() if not found]
    if missing:
        lines.append("missing    " + ", ".join(missing))
    lines.append(f"PyTorch    {facts.torch or 'ready'}" + (f", built for CUDA {facts.cuda}" if facts.cuda else ""))
    if facts.allocator:
        lines.append(f"allocator  {facts.allocator}")
    lines.append(f"NVML       {facts.nvml or f'ready, driver {facts.driver}'}")
    lines += [f"  GPU {index}: {name}, {size(total)}" for index, (name, total) in enumerate(facts.devices)]
    width = max(map(len, facts.numbers))
    lines += [f"  {name.ljust(width)}  {trust}: {reason}" for name, (trust, reason) in facts.numbers.items()]
    return lines
