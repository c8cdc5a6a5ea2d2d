"""Compare the records of a program with and without the extension, and check its known answers."""

from __future__ import annotations

import difflib
import re
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.workloads.program import Program

_WIDTH = 300
_PROFILER_MESSAGE = re.compile(
    r"\[W.*CPUAllocator.*Memory block of unknown size was allocated before the profiling.*\n"
)
"""Message that PyTorch's profiler logs if memory is freed that was allocated before it started."""


def differences(reference: dict[str, Any], record: dict[str, Any]) -> dict[str, str]:
    """Return what differs between two records, as a dict from the category to the first difference."""
    found: dict[str, str] = {}
    if len(reference["cells"]) != len(record["cells"]):
        found["cells"] = f"{len(reference['cells'])} cells ran, and then {len(record['cells'])}"
    for number, (before, after) in enumerate(zip(reference["cells"], record["cells"], strict=False), 1):
        for category, expected, actual in _outputs(before, after):
            if expected != actual:
                found.setdefault(category, f"cell {number}: {_first_difference(expected, actual)}")
    for category in ("values", "rng", "counters", "state", "names"):
        expected = reference.get("observed", {}).get(category)
        actual = record.get("observed", {}).get(category)
        if expected != actual:
            found[category] = _first_difference(_flat(expected), _flat(actual))
    return found


def _outputs(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "exceptions and tracebacks", before["error"], after["error"]
    yield "warnings", before["stderr"], _PROFILER_MESSAGE.sub("", after["stderr"])
    lines = after["stdout"].splitlines(keepends=True)
    yield "printed text", before["stdout"], "".join(line for line in lines if not line.startswith("ipygpumem:"))
    yield "values of cells", before["result"], after["result"]
    shown = list(after["displays"])
    kept = [text for text in before["displays"] if text in shown and (shown.remove(text) or True)]
    yield "displayed objects", "\n".join(before["displays"]), "\n".join(kept)


def _flat(value: Any, prefix: str = "") -> str:
    if isinstance(value, dict):
        return "".join(_flat(item, f"{prefix}{key}: ") for key, item in value.items())
    if isinstance(value, list):
        return "".join(_flat(item, f"{prefix}{index}: ") for index, item in enumerate(value))
    return f"{prefix}{value}\n"


def _first_difference(expected: str, actual: str) -> str:
    lines = difflib.unified_diff(expected.splitlines(), actual.splitlines(), lineterm="", n=0)
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    return " | ".join(line[:_WIDTH] for line in changed[:6])


def wrong_answers(program: Program, option: str, record: dict[str, Any]) -> dict[str, str]:
    """Return the known answers that the report under an option does not contain."""
    report = record.get("observed", {}).get("report") or {}
    found: dict[str, str] = {}

    def check(key: str, answers: list[str], matches: Any) -> None:
        expected = program.answer.get(key)
        patterns = () if expected is None else expected.split("|")
        if patterns and not any(matches(answer, pattern) for answer in answers for pattern in patterns):
            found[f"largest, {key}"] = f"{expected!r} expected, not {answers[:3]}"

    if option == "lines":
        check("lines", peak_lines(report), lambda answer, expected: expected in answer)
    elif option == "snapshot":
        check("peak", lines_at_peak(report)[:1], lambda answer, expected: expected in answer)
    elif option == "modules" and program.model is not None:
        check("modules", largest_modules(report)[:1], fnmatch)
        check("kind", kinds(report)[:1], fnmatch)
    elif option == "who":
        names = [name for name, _ in (record.get("observed", {}).get("holders") or [])]
        check("who", names[:1], fnmatch)
    return found


def peak_lines(report: dict[str, Any]) -> list[str]:
    lines = [
        (line["use"]["peak"], line["text"])
        for device in report.get("lines") or ()
        for listing in device["listings"]
        for line in listing["lines"]
        if (line.get("use") or {}).get("peak")
    ]
    highest = max((peak for peak, _ in lines), default=0)
    return [text.strip() for peak, text in lines if peak == highest]


def lines_at_peak(report: dict[str, Any]) -> list[str]:
    """Return the labels of the known lines that allocated the memory in use at the peak, largest first."""
    peaks = (report.get("recording") or {}).get("peak_lines") or ()
    return [line["label"] for peak in peaks[:1] for line in peak["lines"] if not line["label"].startswith("(")]


def largest_modules(report: dict[str, Any]) -> list[str]:
    rows = [row for tree in (report.get("modules") or ())[:1] for row in tree["rows"]]
    return [row["path"] for row in sorted(rows, key=lambda row: -(row.get("own") or 0))]


def kinds(report: dict[str, Any]) -> list[str]:
    parts = [part for tree in (report.get("modules") or ())[:1] for part in tree["parts"]]
    return [part["kind"] for part in sorted(parts, key=lambda part: -part["peak"])]
