"""What a report shows, as text and as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.tables import tables_bundle
from ipygpumem.features.holders.table import holders_tables
from ipygpumem.features.lines.table import line_table
from ipygpumem.features.modules.table import module_tables
from ipygpumem.features.outside.table import outside_table
from ipygpumem.features.report.line import line_bundle
from ipygpumem.features.report.table import peak_lines_tables, report_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.core.report import Report
    from ipygpumem.features.holders.model import Holders

__all__ = ["full_bundle", "requested_bundle"]

_NEW_HOLDERS = 5


def requested_bundle(report: Report, *, color: bool = False) -> dict[str, str]:
    """The sections that were requested for a report, followed by its short form."""
    return _join([*_sections(report), line_bundle(report, color=color)])


def full_bundle(report: Report, new_holders: Holders | None = None) -> dict[str, str]:
    """The sections that were requested, followed by the full breakdown and the holders of new memory."""
    *tables, last = report_tables(report)
    if new_holders is not None and new_holders.holders:
        tables += holders_tables(new_holders, limit=_NEW_HOLDERS, parts=2)
    return _join([*_sections(report, with_outside=False), tables_bundle([*tables, last])])


def _sections(report: Report, *, with_outside: bool = True) -> list[dict[str, str]]:
    tables = [*map(line_table, report.lines), *module_tables(report.modules)]
    if with_outside:
        tables += [
            outside_table(outside, report.devices[outside.device])
            for outside in report.libraries
            if outside.libraries or outside.pools or outside.grade.trust != "unknown"
        ]
    tables += [] if report.recording is None else peak_lines_tables(report.recording.peak_lines)
    return [tables_bundle(tables)] if tables else []


def _join(parts: Sequence[dict[str, str]]) -> dict[str, str]:
    return {
        "text/plain": "\n\n".join(part["text/plain"] for part in parts),
        "text/html": "".join(part["text/html"] for part in parts),
    }
