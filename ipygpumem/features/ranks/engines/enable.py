"""Start and stop monitoring the engines of an ipyparallel cluster."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from ipygpumem.core.errors import OptionError
from ipygpumem.features.ranks.engines.collect import Engines
from ipygpumem.measurement.runtime import current


class _ActiveEngines:
    engines: Engines | None = None

    def close(self) -> None:
        if self.engines is not None:
            self.engines.detach()
            self.engines = None


def active() -> Engines | None:
    """Return the monitored engines, or None if no engines are monitored."""
    return current().state(_ActiveEngines).engines


def enable(target: Any, *, timeout: float = 60) -> Engines:
    """Load ipygpumem on the engines of a client or view, so that each ``%%px`` cell displays one merged report.

    Cells run with ``%autopx`` also display a report. Code sent through a broadcast view does not, because replies to
    such code do not identify the engine.

    Args:
        target: An ``ipyparallel.Client``, or a direct view of some of its engines. If it is a client, engines
            that start later are also monitored.
        timeout: Maximum time in seconds to wait for busy engines.

    Returns:
        An `Engines` object. Printing it lists the monitored engines, and the reasons why other engines are not
        monitored. In a script, `Engines.collect` returns the merged reports.

    Raises:
        OptionError: ipyparallel is not installed, or the target is not a client or view with running engines.
    """
    disable()
    ipython = sys.modules.get("IPython")
    engines = Engines(*_client_and_targets(target), None if ipython is None else ipython.get_ipython())
    engines.start(timeout)
    current().state(_ActiveEngines).engines = engines
    return engines


def disable() -> None:
    """Stop monitoring engines."""
    state = current().state(_ActiveEngines)
    if state.engines is not None:
        state.engines.stop()
        state.engines = None


def _client_and_targets(target: Any) -> tuple[Any, list[int] | None]:
    try:
        parallel = import_module("ipyparallel")
    except ImportError:
        raise OptionError("monitoring engines requires ipyparallel: pip install ipygpumem[parallel]") from None
    if isinstance(target, parallel.Client):
        return target, None
    if isinstance(target, parallel.Cluster):
        raise OptionError("expected an ipyparallel.Client, not a Cluster: use cluster.connect_client_sync()")
    if not isinstance(target, parallel.DirectView):
        raise OptionError(f"expected an ipyparallel.Client or a DirectView, but got {type(target).__name__}")
    targets = target.targets
    if targets == "all":
        return target.client, None
    return target.client, [targets] if isinstance(targets, int) else list(targets)
