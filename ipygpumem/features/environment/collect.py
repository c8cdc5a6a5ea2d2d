"""What this machine allows: versions, PyTorch, CUDA, NVML, and the trust that each number deserves here."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ipygpumem.core.breakdown import breakdown
from ipygpumem.core.errors import NvmlError
from ipygpumem.core.units import size
from ipygpumem.features.outside.cupti_records import outside_records
from ipygpumem.measurement.allocation_history import recording_problem
from ipygpumem.measurement.runtime import Runtime
from ipygpumem.sources import pytorch
from ipygpumem.sources.nvml import Nvml

if TYPE_CHECKING:
    from ipygpumem.core.reading import DeviceReading

__all__ = ["Environment", "environment", "environment_lines"]

_PACKAGES = (
    "ipygpumem",
    "torch",
    "numpy",
    "nvidia-ml-py",
    "ipython",
    "ipykernel",
    "anywidget",
    "pandas",
    "pyarrow",
    "llvmlite",
)


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
        cards: Name and bytes of each card that NVML shows.
        mode: How PyTorch's current device can be attributed (``process``, ``device``, ``torch-only``), with the reason;
            None without one.
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
    cards: tuple[tuple[str, int], ...]
    mode: tuple[str, str] | None
    numbers: dict[str, tuple[str, str]]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def environment(session: Runtime | None = None) -> Environment:
    """Look at this machine, and try it: a CUDA context of this process is where the modes show.

    ``session``: one that is there already; its devices are read, and nothing is started.
    """
    torch = pytorch.problem(load=True) if pytorch.importable() else "torch is not installed"
    nvml, driver, cards = _nvml()
    device = None if torch is not None else _device() if session is None else _standing(session)
    numbers = {"reading of snapshots": ("exact", "needs neither torch nor a GPU")}
    recording = torch or recording_problem()
    numbers["recording of snapshots"] = ("unknown", recording) if recording else ("exact", "PyTorch's own history")
    if device is None:
        numbers["GPU memory"] = (
            "unknown",
            torch or ("CUDA does not start" if session is None else "CUDA has not started"),
        )
    else:
        numbers |= {line.label: (line.grade.trust, line.grade.reason) for line in breakdown(device)}
    nameless = torch or outside_records().obstacle()
    numbers["outside PyTorch, by library"] = ("unknown", nameless) if nameless else ("exact", "CUPTI's records")
    return Environment(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages={name: _version(name) for name in _PACKAGES},
        torch=torch,
        cuda=pytorch.cuda_version(),
        allocator=os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
        nvml=nvml,
        driver=driver,
        cards=cards,
        mode=None if device is None else (device.mode, device.why),
        numbers=numbers,
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _nvml() -> tuple[str | None, str | None, tuple[tuple[str, int], ...]]:
    """What is wrong with NVML, the driver, the cards."""
    try:
        nvml = Nvml()
        return None, nvml.driver(), nvml.handles()
    except NvmlError as problem:
        return str(problem), None, ()


def _device() -> DeviceReading | None:
    """PyTorch's current device with a context of ours; None where CUDA does not start."""
    baseline = Runtime().preload("context")
    return baseline.reading.devices.get(baseline.device or "")


def _standing(session: Runtime) -> DeviceReading | None:
    """A device that a session uses already."""
    return next((one for one in session.reading().devices.values() if one.context), None)


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
    lines += [f"  card {index}: {name}, {size(total)}" for index, (name, total) in enumerate(facts.cards)]
    if facts.mode is not None:
        lines.append(f"mode       {facts.mode[0]}: {facts.mode[1]}")
    width = max(map(len, facts.numbers))
    lines += [f"  {name.ljust(width)}  {trust}: {reason}" for name, (trust, reason) in facts.numbers.items()]
    return lines
