"""What was sent to engines, and what came back: each submission of one cell to several engines is a run."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import ReportError
from ipygpumem.features.ranks.engines.engine import KEY
from ipygpumem.features.ranks.model import RankInfo, RankResult, rank_result_from

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Run", "member_of", "settle"]

_PATIENCE = 1.0
_STEP = 0.01


@dataclass(slots=True)
class Run:
    """One cell on several engines.

    Attributes:
        code: What runs there.
        cell: Counts the notebook's cells: the one that sent it.
        replies: The future reply of each engine, by its number.
        told: Engines of which a merged report has told the end.
    """

    code: str
    cell: int = 0
    replies: dict[int, Any] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)

    @property
    def done(self) -> bool:
        """Whether every engine has answered, or is gone."""
        return all(reply.done() for reply in self.replies.values())

    @property
    def reported(self) -> bool:
        """Whether a report of ours is among the answers."""
        return any(_texts(reply) for reply in self.replies.values())

    @property
    def refused(self) -> bool:
        """Whether no engine ran the cell, for none took the words of its first line: there is nothing to report."""
        return bool(self.replies) and all(_refused(reply) for reply in self.replies.values())

    def news(self) -> bool:
        """Whether engines have ended since the last time that somebody asked."""
        ended = {number for number, reply in self.replies.items() if reply.done()}
        new, self.told = ended - self.told, ended
        return bool(new)


def settle(run: Run) -> None:
    """Wait until what the engines sent beside their replies has come, too: at most a second."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        waiting = [one for one in run.replies.values() if one.done() and not one.output.done() and not _died(one)]
        if not waiting:
            return
        time.sleep(_STEP)


def member_of(number: int, reply: Any, known: Mapping[int, RankInfo], notes: Mapping[int, str]) -> RankResult:
    """What one engine had to tell.

    Args:
        number: The engine.
        reply: Its future reply.
        known: What engines told of themselves when they joined.
        notes: Why an engine is not under watch.
    """
    name, origin = str(number), known.get(number)
    found = _report(name, reply)
    if found is not None:
        return found
    if origin is not None:
        origin = replace(origin, began=0.0)  # when it joined, or began another cell, is not when it began this one
    if not reply.done():
        return RankResult(name, "late", origin)
    if _died(reply):
        return RankResult(name, "died", origin, note="in the middle of the cell")
    if number in notes:
        return RankResult(name, "absent", origin, note=notes[number])
    return RankResult(name, "missing", origin, note="ran the cell, and sent no report")


def _report(name: str, reply: Any) -> RankResult | None:
    """The newest report among an engine's data; of one that cannot be read, why."""
    texts = _texts(reply)
    if not texts:
        return None
    try:
        member = rank_result_from(json.loads(texts[-1]), name)
    except (ReportError, ValueError) as error:
        return RankResult(name, "missing", note=f"its report cannot be read: {error}")
    return replace(member, name=name)


def _texts(reply: Any) -> list[str]:
    data = reply.output.metadata.get("data") or {}
    keys = sorted(
        (key for key in data if isinstance(key, str) and key.startswith(KEY)), key=lambda key: (len(key), key)
    )
    return [data[key] for key in keys if isinstance(data[key], str)]


def _died(reply: Any) -> bool:
    """Whether the engine is gone: the client then makes up an answer of its own."""
    result = _result(reply) if reply.done() else None
    return "EngineError" in {type(result).__name__, getattr(result, "ename", "")}


def _refused(reply: Any) -> bool:
    result = _result(reply) if reply.done() else None
    words = str(getattr(result, "evalue", ""))
    return getattr(result, "ename", "") == "UsageError" and words.startswith(("%%gpumem", "gpumem:"))


def _result(reply: Any) -> Any:
    try:
        return reply.result()
    except Exception as error:
        return error
