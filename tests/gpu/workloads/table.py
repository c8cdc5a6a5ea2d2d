"""The table of a run: one row for each program, one column for each option."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

COLUMNS = ("loaded", "snapshot", "lines", "modules", "outside", "limit", "timeline", "who", "oom_snapshot")


def cell_text(row: dict[str, Any], column: str) -> str:
    """Return the time ratio if nothing differs, otherwise what differs, or why the program did not run."""
    result = row["options"].get(column)
    if result is None:
        return "" if row.get("skipped") else "-"
    if result.get("skipped"):
        return "-"
    if result.get("failed"):
        return "FAILED"
    wrong = [*result.get("differences", ()), *result.get("answers", ())]
    if wrong:
        return "DIFFERS: " + ", ".join(wrong)
    ratio = result.get("ratio")
    return "same" if ratio is None else f"{ratio:.2f}"


def text_table(results: dict[str, Any]) -> str:
    rows = [["program", "seconds", "cell (ms)", *COLUMNS]]
    details = []
    for name, row in results["programs"].items():
        if "skipped" in row or "seconds" not in row:
            rows.append([name, row.get("skipped", "not run"), "", *[""] * len(COLUMNS)])
            continue
        texts = [cell_text(row, column) for column in COLUMNS]
        rows.append([name, f"{row['seconds']:.1f}", _milliseconds(row), *(text.partition(":")[0] for text in texts)])
        details += [f"{name}: varies without the extension: {text}" for text in _items(row.get("varies"))]
        for option, result in row["options"].items():
            found = [*_items(result.get("differences")), *_items(result.get("answers")), result.get("failed")]
            details += [f"{name}, {option}: {text}" for text in found if text]
    # a skipped program has only a reason, which must not widen the column of seconds
    widths = [max((len(row[i]) for row in rows if i != 1 or row[2]), default=0) for i in range(len(rows[0]))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", _summary(results), *details])


def markdown_table(results: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.get("versions", {}).items())
    lines = [
        f"On {_devices_text(results.get('devices', ()))} with {versions}.",
        "",
        "A number means that nothing differs. It is the time of the measured cell divided by that without the",
        "extension (second column), in kernels that run in parallel. Short cells have large ratios, because each",
        "recording has a constant cost.",
        "`-` means that the option does not apply.",
        "",
        f"| program | cell (ms) | {' | '.join(f'`{column}`' for column in COLUMNS)} |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    notes = []
    for name, row in results["programs"].items():
        title = f"`{name}`: {row['title'].replace('``', '`')}"
        if "skipped" in row or "seconds" not in row:
            lines.append(f"| {title} | {row.get('skipped', 'not run')} {'| ' * (len(COLUMNS) + 1)}|")
            continue
        texts = [cell_text(row, column).partition(":")[0] for column in COLUMNS]
        lines.append(f"| {title} | {_milliseconds(row)} | {' | '.join(texts)} |")
        categories = list(row.get("varies") or ())
        if categories:
            notes.append(f"* `{name}`, not compared: {', '.join(categories)} (different without the extension, too).")
        for key, cause in row.get("causes", {}).items():
            option, _, category = key.rpartition(": ")
            notes.append(f"* `{name}`, {f'`{option}`, ' if option else ''}not compared: {category} ({cause}).")
        notes += _differences(name, row)
    return "\n".join([*lines, "", f"{_summary(results)}.", *([""] if notes else []), *notes])


def _devices_text(names: Sequence[str]) -> str:
    """Return the names of the GPUs, each with the number of GPUs of this name if there are several."""
    counts = Counter(names).items()
    return " and ".join(name if count == 1 else f"{count} x {name}" for name, count in counts) or "a CPU"


def _milliseconds(row: dict[str, Any]) -> str:
    seconds = row.get("cell_seconds")
    return "" if seconds is None else f"{seconds * 1000:,.0f}"


def _differences(name: str, row: dict[str, Any]) -> list[str]:
    found = {
        option: [
            *result.get("differences", ()),
            *result.get("answers", ()),
            *(["failed"] if result.get("failed") else []),
        ]
        for option, result in row["options"].items()
    }
    return [f"* `{name}`, `{option}`: {', '.join(texts)}" for option, texts in found.items() if texts]


def _items(found: dict[str, str] | None) -> list[str]:
    return [f"{category}: {detail}" for category, detail in (found or {}).items()]


def _summary(results: dict[str, Any]) -> str:
    done = [result for row in results["programs"].values() for result in row["options"].values()]
    compared = [result for result in done if not result.get("skipped")]
    wrong = sum(bool(result.get("differences") or result.get("answers") or result.get("failed")) for result in compared)
    ran = sum("seconds" in row and "skipped" not in row for row in results["programs"].values())
    return f"{ran} programs, {len(compared)} runs with the extension, {wrong} with a difference"
