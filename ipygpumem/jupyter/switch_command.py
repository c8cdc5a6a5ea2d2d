"""``%gpumem on`` and ``%gpumem off``: the report after every cell."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ipygpumem.commands.command import Command

if TYPE_CHECKING:
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["OFF", "ON"]


def _switch(word: str, magics: GPUMem, rest: str) -> None:
    if rest:
        raise UsageError(f"%gpumem {word} takes no options, not {rest!r}")
    if word == "off" and magics.report != "off":
        magics.report_when_on = magics.report
    if (magics.report == "off") is (word == "on"):
        magics.report = magics.report_when_on if word == "on" else "off"
    print(f"ipygpumem: reports are {word}")  # noqa: T201 (its purpose)


ON = Command("on", "report after every cell that moves memory", functools.partial(_switch, "on"))
OFF = Command("off", "report only where %%gpumem asks", functools.partial(_switch, "off"))
