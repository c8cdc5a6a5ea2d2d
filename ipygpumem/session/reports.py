"""The reports of a session, in the order in which they were settled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from ipygpumem.ledger.report import Report

__all__ = ["Reports"]


class Reports(Sequence["Report"]):
    """A list of reports that also finds them by cell: ``reports[-1]``, ``reports.cell(7)``, ``reports.cell("a1b")``."""

    def __init__(self) -> None:
        self._reports: list[Report] = []

    def append(self, report: Report) -> None:
        """Add the newest."""
        self._reports.append(report)

    def __len__(self) -> int:
        return len(self._reports)

    @overload
    def __getitem__(self, index: int) -> Report: ...
    @overload
    def __getitem__(self, index: slice) -> list[Report]: ...
    def __getitem__(self, index: int | slice) -> Report | list[Report]:
        return self._reports[index]

    def cell(self, key: int | str) -> Report:
        """The newest report of a cell, by its In number or its front end's cell id.

        Raises:
            KeyError: That cell was not measured.
        """
        for report in reversed(self._reports):
            if key is not None and key in (report.cell, report.cell_id):
                return report
        raise KeyError(f"no report of cell {key!r}")

    def __repr__(self) -> str:
        return f"<{len(self)} reports: {self._reports[-3:]}>"
