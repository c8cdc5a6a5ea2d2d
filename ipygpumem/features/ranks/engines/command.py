"""``%gpumem engines RC``: monitor the engines of an ipyparallel cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ipygpumem.commands.command import Command
from ipygpumem.features.lines.source import resolve_name
from ipygpumem.jupyter.options import Option, parse

if TYPE_CHECKING:
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["ENGINES"]

_OPTIONS = (
    Option(
        ("client",),
        "CLIENT",
        "an ipyparallel.Client of this notebook, or a view of one: %%px cells then come back with one merged report; "
        "off stops it; without an argument, which engines are monitored and what is still running",
        many=True,
        usage="[CLIENT]",
    ),
    Option(("-h", "--help"), None, "show this help"),
)


def _run(magics: GPUMem, rest: str) -> None:
    from ipygpumem.features.ranks.engines import active, disable, enable

    words = parse("%gpumem engines", _OPTIONS, rest).client
    if len(words) > 1:
        raise UsageError("%gpumem engines takes one client: %gpumem engines rc")
    magics.cells.claim()
    engines = active()
    if words == ["off"] and "off" not in magics.shell.user_ns:
        told = "engines are no longer monitored" if engines is not None else "no engines were monitored"
        disable()
    elif words:
        told = str(enable(resolve_name(words[0], magics.shell.user_ns.__getitem__)))
    elif engines is None:
        told = "no engines are monitored: use %gpumem engines CLIENT"
    else:
        told = "\n".join([str(engines), *engines.waiting])
        for found in engines.collect(partly=True):
            engines.show(found)
    print("\n".join(f"ipygpumem: {line}" for line in told.splitlines()))  # noqa: T201 (its purpose)


ENGINES = Command("engines", "monitor the engines of an ipyparallel.Client; off stops it", _run, options=_OPTIONS)
