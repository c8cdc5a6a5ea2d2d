"""The setting ``GPUMem.outside``: record all the time, so that memory keeps its owner from cell to cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import CuptiError
from ipygpumem.features.outside.cupti_records import outside_records

if TYPE_CHECKING:
    from ipygpumem.jupyter.settings import Settings

__all__ = ["OutsideSetting"]


class OutsideSetting:
    """Starts and stops recording according to the setting."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._acquired = False

    def install(self) -> None:
        """Follow changes of the setting."""
        self._settings.observe(self.apply, names=["outside"])

    def apply(self, _change: Any = None) -> None:
        """Start or stop recording. If it cannot start, print the reason; cells that need records try again."""
        records, enabled = outside_records(), self._settings.outside == "library"
        records.reported_problems.clear()
        if enabled and not self._acquired:
            try:
                records.acquire()
                self._acquired = True
            except CuptiError as error:
                records.reported_problems.add(str(error))
                print(f"ipygpumem: memory outside PyTorch is reported without libraries: {error}")  # noqa: T201
        elif self._acquired and not enabled:
            self._acquired = False
            records.release()

    def remove(self) -> None:
        """Stop recording when the extension is unloaded."""
        self._settings.unobserve(self.apply, names=["outside"])
        self._acquired = False
        outside_records().close()
