"""How engines join: whose client it is, what an engine tells of itself, and why it does not."""

from __future__ import annotations

import json
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, ReportError
from ipygpumem.features.ranks.engines.engine import KEY
from ipygpumem.features.ranks.model import rank_result_from

if TYPE_CHECKING:
    from ipygpumem.features.ranks.model import RankResult

__all__ = ["client_of", "first_word", "wait", "why"]

_STEP = 0.02


def client_of(target: Any) -> tuple[Any, list[int] | None]:
    """The client behind a client or a view, and the view's engines; None for all that come and go.

    Raises:
        OptionError: It is neither, or ipyparallel is not there.
    """
    try:
        parallel = import_module("ipyparallel")
    except ImportError:
        raise OptionError("engines need ipyparallel: pip install ipygpumem[parallel]") from None
    if isinstance(target, parallel.Client):
        return target, None
    if isinstance(target, parallel.Cluster):
        raise OptionError("that is a cluster: give its client, as in rc = cluster.connect_client_sync()")
    if not isinstance(target, parallel.DirectView):
        raise OptionError(f"a {type(target).__name__} is no ipyparallel.Client and no direct view of one")
    targets = target.targets
    if targets == "all":
        return target.client, None
    return target.client, [targets] if isinstance(targets, int) else list(targets)


def wait(answers: Any, timeout: float) -> None:
    """Wait for the answers of several engines, at most so many seconds in all."""
    end = time.monotonic() + timeout
    for answer in answers:
        while not answer.done() and time.monotonic() < end:
            answer.wait(min(_STEP, max(end - time.monotonic(), 0)))


def first_word(answer: Any) -> RankResult:
    """What an engine told of itself when it joined.

    Raises:
        ReportError: Nothing, or nothing that can be read.
    """
    data = answer.metadata["data"]
    if not isinstance(data, dict) or not isinstance(data.get(KEY), str):
        raise ReportError("it sent nothing when it joined")
    return rank_result_from(json.loads(data[KEY]), "")


def why(error: Exception) -> str:
    """Why an engine did not join, in words for whoever has to mend it."""
    name, value = getattr(error, "ename", type(error).__name__), str(getattr(error, "evalue", error))
    if name == "ModuleNotFoundError" and value.partition("'")[2].startswith("ipygpumem'"):
        return "ipygpumem is not installed there"
    if name in {"ModuleNotFoundError", "ImportError"} and "ipygpumem" in value:
        return "its ipygpumem is another version, which knows no engines"
    if name == "EngineError":
        return "it died"
    return f"{name}: {value.splitlines()[0] if value else ''}".rstrip(": ")
