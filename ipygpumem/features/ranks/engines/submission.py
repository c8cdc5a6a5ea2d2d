"""One cell submitted to several engines, and the reports that came back."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import ReportError
from ipygpumem.features.ranks.model import RankInfo, RankResult, rank_result_from

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KEY", "Submission", "engine_result"]

KEY = "ipygpumem"
"""Key of the data that an engine publishes; a number follows for each further measurement in a cell."""
_PATIENCE, _STEP = 1.0, 0.01


@dataclass(slots=True)
class Submission:
    """One cell on several engines, with the future reply of each.

    ``cell`` counts the notebook's cells; ``reported`` are the engines whose reply is part of a merged report.
    """

    code: str
    cell: int = 0
    replies: dict[int, Any] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)

    @property
    def done(self) -> bool:
        """Whether every engine has replied or died."""
        return all(reply.done() for reply in self.replies.values())

    @property
    def has_report(self) -> bool:
        """Whether any engine has sent a report."""
        return any(_messages(reply) for reply in self.replies.values())

    @property
    def refused(self) -> bool:
        """Whether all engines refused the options of the cell, so that nothing ran."""
        return bool(self.replies) and all(_is_refusal(reply) for reply in self.replies.values())

    def update(self) -> bool:
        """Mark all finished engines as reported. Returns whether any of them was not."""
        finished = {number for number, reply in self.replies.items() if reply.done()}
        new, self.reported = finished - self.reported, finished
        return bool(new)

    def wait_for_output(self) -> None:
        """Wait at most a second for the data of finished engines, which is sent separately from their replies."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if all(not reply.done() or reply.output.done() or _died(reply) for reply in self.replies.values()):
                return
            time.sleep(_STEP)


def engine_result(number: int, reply: Any, origins: Mapping[int, RankInfo], notes: Mapping[int, str]) -> RankResult:
    """What one engine sent; ``origins`` and ``notes`` are those of `Engines`."""
    name, origin = str(number), origins.get(number)
    messages = _messages(reply)
    if messages:
        try:
            return rank_result_from(json.loads(messages[-1]), name)
        except (ReportError, ValueError) as error:
            return RankResult(name, "missing", note=f"its report cannot be read: {error}")
    if origin is not None:
        origin = replace(origin, began=0.0)  # the start of this cell is unknown
    if not reply.done():
        return RankResult(name, "late", origin)
    if _died(reply):
        return RankResult(name, "died", origin, note="while running the cell")
    if number in notes:
        return RankResult(name, "absent", origin, note=notes[number])
    return RankResult(name, "missing", origin, note="ran the cell, but sent no report")


def _messages(reply: Any) -> list[str]:
    """The reports among the data of an engine, oldest first."""
    data = reply.output.metadata.get("data") or {}
    keys = [key for key in data if isinstance(key, str) and key.startswith(KEY) and isinstance(data[key], str)]
    return [data[key] for key in sorted(keys, key=lambda key: (len(key), key))]


def _died(reply: Any) -> bool:
    """Whether the engine has died: the client then creates a reply of its own."""
    result = _result(reply)
    return "EngineError" in {type(result).__name__, getattr(result, "ename", "")}


def _is_refusal(reply: Any) -> bool:
    result = _result(reply)
    message = str(getattr(result, "evalue", ""))
    return getattr(result, "ename", "") == "UsageError" and message.startswith(("%%gpumem", "gpumem:"))


def _result(reply: Any) -> Any:
    """The result or the exception of a reply; None if it is not done."""
    if not reply.done():
        return None
    try:
        return reply.result()
    except Exception as error:
        return error
