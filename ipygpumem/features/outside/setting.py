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
        self._settings.observe(self._on_change, names=["outside"])

    def _on_change(self, change: Any) -> None:  # noqa: ARG002 (traitlets' signature)
        self.apply()

    def apply(self) -> None:
        """Start or stop recording. If it cannot start, print the reason; cells that need records try again."""
        enabled = self._settings.outside == "library"
        outside_records().reported_problems.clear()
        if enabled and not self._acquired:
            try:
                outside_records().acquire()
                self._acquired = True
            except CuptiError as error:
                outside_records().reported_problems.add(str(error))
                print(f"ipygpumem: memory outside PyTorch is reported without libraries: {error}")  # noqa: T201
        elif not enabled and self._acquired:
            self._acquired = False
            outside_records().release()

    def remove(self) -> None:
        """Stop recording when the extension is unloaded."""
        self._settings.unobserve(self._on_change, names=["outside"])
        self._acquired = False
        outside_records().close()
