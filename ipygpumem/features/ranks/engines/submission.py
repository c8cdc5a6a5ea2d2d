"""Code that was submitted to several engines, and the reports in the engines' replies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from typing import Any

from ipygpumem.core.errors import ReportError, first_line
from ipygpumem.core.text import error_line
from ipygpumem.features.ranks.model import RankInfo, RankResult, rank_result_from

KEY = "ipygpumem"
"""Key of the identity that an engine publishes. The keys of its reports consist of this key and a number."""
_OUTPUT_TIMEOUT = 1.0  # in seconds


@dataclass(slots=True)
class EngineSubmission:
    """Code that one notebook cell submitted to several engines.

    Attributes:
        cell: Index of the notebook cell.
        replies: Reply of each engine, an ``ipyparallel.AsyncResult``, by engine ID.
        reported: IDs of the finished engines that the merged report already includes.
    """

    code: str
    cell: int = 0
    replies: dict[int, Any] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)

    @property
    def running(self) -> list[int]:
        """IDs of the engines that have neither replied nor died."""
        return [number for number, reply in sorted(self.replies.items()) if not reply.done()]

    def take_reports(self) -> bool:
        """Return whether to create or update the merged report, and mark the finished engines as included in it.

        The report is created or updated if an engine has published a report and an engine has finished since the last
        update. If all engines have rejected the options, there is no merged report.
        """
        replies = self.replies.values()
        if not any(map(_published_reports, replies)) or all(map(_is_rejection, replies)):
            return False
        finished_engines = {engine_id for engine_id, reply in self.replies.items() if reply.done()}
        new_engines, self.reported = finished_engines - self.reported, finished_engines
        return bool(new_engines)

    def wait_for_output(self) -> None:
        """Wait up to one second for the data of the engines, which arrive separately from their replies."""
        wait([reply.output for reply in self.replies.values() if reply.done() and not _died(reply)], _OUTPUT_TIMEOUT)


def engine_result(number: int, reply: Any, origins: Mapping[int, RankInfo], notes: Mapping[int, str]) -> RankResult:
    """``origins`` and ``notes`` are attributes of `Engines`."""
    name, origin = str(number), origins.get(number)
    messages = _published_reports(reply)
    if messages:
        try:
            return rank_result_from(json.loads(messages[-1]), name)
        except (ReportError, ValueError, RecursionError) as error:  # as by deeply nested JSON
            return RankResult(name, "missing", note=f"the report cannot be read: {first_line(error)}")
    if origin is not None:
        origin = replace(origin, began=0.0)  # the start time of this cell is unknown
    if not reply.done():
        return RankResult(name, "late", origin)
    if _died(reply):
        return RankResult(name, "died", origin, note="the engine died while running the cell")
    if number in notes:
        return RankResult(name, "absent", origin, note=notes[number])
    return RankResult(name, "missing", origin, note="the engine finished the cell, but sent no report")


def engine_identity(reply: Any) -> RankInfo | str:
    """Return the identity that an engine sent when it loaded ipygpumem, or the reason why it is not monitored."""
    if not reply.done():
        return "the engine is busy; monitoring starts once it is idle"
    reply.wait_for_output(_OUTPUT_TIMEOUT)
    try:
        reply.get(0)
        message = (reply.metadata["data"] or {}).get(KEY)
        origin = None if message is None else rank_result_from(json.loads(message), "").origin
    except Exception as error:
        return _join_error(error)
    return "the engine did not identify itself" if origin is None else origin


def _join_error(error: Exception) -> str:
    name, value = getattr(error, "ename", type(error).__name__), str(getattr(error, "evalue", error))
    if name == "ModuleNotFoundError" and value.partition("'")[2].startswith("ipygpumem'"):
        return "ipygpumem is not installed on this engine"
    if name in {"ModuleNotFoundError", "ImportError"} and "ipygpumem" in value:
        return "the installed version of ipygpumem does not support engines"
    if name == "EngineError":
        return "the engine died"
    return error_line(f"{name}: {value.splitlines()[0] if value else ''}".rstrip(": "))


def _published_reports(reply: Any) -> list[str]:
    data = reply.output.metadata.get("data") or {}
    keys = [key for key in data if isinstance(key, str) and key.startswith(KEY) and isinstance(data[key], str)]
    return [data[key] for key in sorted(keys, key=lambda key: (len(key), key))]


def _died(reply: Any) -> bool:
    result = _result(reply)  # the client creates the reply of an engine that has died
    return "EngineError" in {type(result).__name__, getattr(result, "ename", "")}


def _is_rejection(reply: Any) -> bool:
    result = _result(reply)
    message = str(getattr(result, "evalue", ""))
    return getattr(result, "ename", "") == "UsageError" and message.startswith(("%%gpumem", "gpumem:"))


def _result(reply: Any) -> Any:
    return (reply.exception() or reply.result()) if reply.done() else None
