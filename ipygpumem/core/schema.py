"""The version of the report format, and the checks that all of its readers share."""

from __future__ import annotations

from typing import Any

from ipygpumem.core.errors import ReportError

__all__ = ["SCHEMA", "check_ranges", "check_schema"]

SCHEMA = 1
"""Version of the format that core/FORMAT.md describes. It rises when a key changes its meaning."""
_LATEST_TIME = 1 << 33
"""In the year 2242; a time must not be later."""


def check_schema(data: dict[str, Any], maximum: int | None = None) -> int:
    """Return the schema that data was written with.

    Args:
        data: The data.
        maximum: The highest schema that can be read; None for any.

    Raises:
        ReportError: There is no schema, or a higher one, in which figures may have another meaning.
    """
    schema = data.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise ReportError("it has no schema, so it was not written by ipygpumem")
    if maximum is not None and schema > maximum:
        raise ReportError(
            f"written by a later version of ipygpumem (schema {schema}): this version reads up to schema {maximum}"
        )
    return schema


def check_ranges(report: Any) -> None:
    """Check the figures of a report, or of a row of it, that do not depend on other figures.

    Raises:
        ReportError: A time that is out of range, or a negative duration or cell number.
    """
    if not 0 <= report.time < _LATEST_TIME:
        raise ReportError("time is out of range: it must be in seconds since 1970")
    for name in ("seconds", "cell"):
        if (getattr(report, name) or 0) < 0:
            raise ReportError(f"{name} must not be negative")
