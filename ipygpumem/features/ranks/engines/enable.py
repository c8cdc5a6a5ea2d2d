"""Which engines are monitored in this process: ``enable(client)`` starts it, ``disable()`` stops it."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from ipygpumem.core.errors import OptionError
from ipygpumem.features.ranks.engines.collect import Engines
from ipygpumem.measurement.runtime import current


class _ActiveEngines:
    """State of the runtime: the monitored engines."""

    engines: Engines | None = None

    def close(self) -> None:
        if self.engines is not None:
            self.engines.detach()
            self.engines = None


def active() -> Engines | None:
    """The monitored engines; None if there are none."""
    return current().state(_ActiveEngines).engines


def enable(target: Any, *, timeout: float = 60) -> Engines:
    """Load ipygpumem on every engine, so that each ``%%px`` cell gets one merged report.

    This includes cells under ``%autopx``, but not code sent through a broadcast view, which does not reveal the engine
    that a reply comes from.

    Args:
        target: An ``ipyparallel.Client``, or a direct view of some of its engines. With a client, engines that start
            later join as well.
        timeout: Seconds to wait for busy engines.

    Returns:
        The engines. Printing them shows which are monitored, and why others are not. In a script, `Engines.collect`
        returns the merged reports.

    Raises:
        OptionError: ipyparallel is not installed, the target is neither a client nor a view, or it has no engines.
    """
    disable()
    ipython = sys.modules.get("IPython")
    engines = Engines(*_client_and_targets(target), None if ipython is None else ipython.get_ipython())
    engines.start(timeout)
    current().state(_ActiveEngines).engines = engines
    return engines


def disable() -> None:
    """Stop monitoring engines, if there are any."""
    state = current().state(_ActiveEngines)
    if state.engines is not None:
        state.engines.stop()
        state.engines = None


def _client_and_targets(target: Any) -> tuple[Any, list[int] | None]:
    """The client of a client or direct view, and the engines of the view; None for all engines, also future ones."""
    try:
        parallel = import_module("ipyparallel")
    except ImportError:
        raise OptionError("engines need ipyparallel: pip install ipygpumem[parallel]") from None
    if isinstance(target, parallel.Client):
        return target, None
    if isinstance(target, parallel.Cluster):
        raise OptionError("a Cluster is not a Client: pass its client, as in rc = cluster.connect_client_sync()")
    if not isinstance(target, parallel.DirectView):
        raise OptionError(f"expected an ipyparallel.Client or a DirectView, not {type(target).__name__}")
    targets = target.targets
    if targets == "all":
        return target.client, None
    return target.client, [targets] if isinstance(targets, int) else list(targets)
