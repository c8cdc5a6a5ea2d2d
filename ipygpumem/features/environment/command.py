"""``%gpumem env``: what this machine allows, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ipygpumem.commands.command import Command

if TYPE_CHECKING:
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["ENV"]


def _run(magics: GPUMem, rest: str) -> None:
    if rest:
        raise UsageError(f"%gpumem env takes no options, not {rest!r}")
    from ipygpumem.features.environment.collect import environment, environment_lines

    print("\n".join(environment_lines(environment(magics.session))))  # noqa: T201 (its purpose)


ENV = Command("env", "what this machine allows, and what is missing", _run)
