"""``GPUMem.outside``: CUPTI records all the time, so that what one cell takes and another gives back has one name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import CuptiError
from ipygpumem.features.outside.cupti_records import outside_records

if TYPE_CHECKING:
    from ipygpumem.jupyter.settings import Settings

__all__ = ["StandingRecords"]


class StandingRecords:
    """The records that the setting asks for, beside those of single cells."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._held = False

    def install(self) -> None:
        """Follow the setting from now on."""
        self._settings.observe(self._changed, names=["outside"])

    def _changed(self, change: Any) -> None:  # noqa: ARG002 (traitlets' signature)
        self.set()

    def set(self) -> None:
        """Do what the setting says. Where that cannot be had one line says why; single cells try again."""
        wanted = self._settings.outside == "library"
        outside_records().told.clear()
        if wanted and not self._held:
            try:
                outside_records().acquire()
                self._held = True
            except CuptiError as error:
                outside_records().told.add(str(error))
                print(f"ipygpumem: no names for memory outside PyTorch: {error}")  # noqa: T201 (said when it is asked)
        elif not wanted:
            self._drop()

    def _drop(self) -> None:
        if self._held:
            self._held = False
            outside_records().release()

    def remove(self) -> None:
        """The extension is unloaded: nothing records any more, and no thread is left."""
        self._settings.unobserve(self._changed, names=["outside"])
        self._held = False
        outside_records().close()
