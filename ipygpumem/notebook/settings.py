"""What ``%config GPUMem`` offers: also ``c.GPUMem.*`` in ipython_config.py."""

from __future__ import annotations

from typing import Any

from traitlets import Any as AnyValue
from traitlets import Bool, Enum, TraitError, TraitType
from traitlets.config import Configurable

from ipygpumem.errors import OptionError
from ipygpumem.units import MIB, parse_size

__all__ = ["Settings", "Size"]


class Size(TraitType[int, Any]):
    """A number of bytes, also written as text: ``"4 MiB"``."""

    info_text = "a size, such as '4 MiB' or a number of bytes"

    def validate(self, obj: Any, value: Any) -> int:  # noqa: ARG002 (traitlets' signature)
        """The bytes.

        Raises:
            TraitError: It is no size, or below zero.
        """
        try:
            count = parse_size(value)
        except OptionError as error:
            raise TraitError(str(error)) from error
        if count < 0:
            raise TraitError(f"a size is not below zero: {value!r}")
        return count

    def from_string(self, s: str) -> int:
        """From the command line."""
        return self.validate(None, s)


class Settings(Configurable):
    """The traits, apart from the magics that carry them."""

    preload = Enum(
        ["kernels", "context", "off"],
        default_value="kernels",
        help="What %load_ext runs on the current device, so that no cell is blamed for it: the CUDA context and the "
        "first kernels, the context alone, or nothing at all (CUDA stays untouched until a cell starts it).",
    ).tag(config=True)
    report = Enum(
        ["changed", "always", "off"],
        default_value="changed",
        help="Report after cells that moved memory, after every cell, or only where %%gpumem asks.",
    ).tag(config=True)
    min_change = Size(MIB, help="The least change that counts as moved memory, in bytes or as text ('4 MiB').").tag(
        config=True
    )
    style = Enum(
        ["auto", "line", "table"],
        default_value="auto",
        help="The form of reports: auto is a line after each cell and the full table under %%gpumem.",
    ).tag(config=True)
    devices = AnyValue(
        allow_none=True,
        default_value=None,
        help="The devices to watch, as in ['cuda:0'] or '0,1'; None for all that this process uses.",
    ).tag(config=True)
    peaks = Enum(
        ["exact", "untouched"],
        default_value="exact",
        help="exact: PyTorch's peak counters are reset for each cell, and what you read of them stays what it would "
        "be. untouched: no counter is ever reset; a cell's peak is exact when it set a record, else a bound.",
    ).tag(config=True)
    host_peak = Enum(
        ["bound", "reset"],
        default_value="bound",
        help="bound: the host's peak is exact when the kernel's high-water mark rose. reset: the mark is reset for "
        "each cell (Linux), which lowers what resource.getrusage shows.",
    ).tag(config=True)
    synchronize = Bool(default_value=False, help="Wait for the devices before each reading.").tag(config=True)
