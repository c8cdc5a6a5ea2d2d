"""The connection to the engines: the client, and how engines respond when they join."""

from __future__ import annotations

import json
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, ReportError
from ipygpumem.features.ranks.engines.submission import KEY
from ipygpumem.features.ranks.model import rank_result_from

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.features.ranks.model import RankResult

__all__ = ["client_and_targets", "join_error", "join_result", "wait_for"]

_STEP = 0.02


def client_and_targets(target: Any) -> tuple[Any, list[int] | None]:
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


def wait_for(replies: Iterable[Any], timeout: float) -> None:
    """Wait for several replies, at most ``timeout`` seconds in total."""
    end = time.monotonic() + timeout
    for reply in replies:
        while not reply.done() and time.monotonic() < end:
            reply.wait(min(_STEP, max(end - time.monotonic(), 0)))


def join_result(reply: Any) -> RankResult:
    """The message that an engine sent when it joined; `ReportError` if there is none."""
    data = reply.metadata["data"]
    if not isinstance(data, dict) or not isinstance(data.get(KEY), str):
        raise ReportError("it did not identify itself when it joined")
    return rank_result_from(json.loads(data[KEY]), "")


def join_error(error: Exception) -> str:
    """Why an engine did not join, as text."""
    name, value = getattr(error, "ename", type(error).__name__), str(getattr(error, "evalue", error))
    if name == "ModuleNotFoundError" and value.partition("'")[2].startswith("ipygpumem'"):
        return "ipygpumem is not installed there"
    if name in {"ModuleNotFoundError", "ImportError"} and "ipygpumem" in value:
        return "its version of ipygpumem does not support engines"
    if name == "EngineError":
        return "it died"
    return f"{name}: {value.splitlines()[0] if value else ''}".rstrip(": ")
