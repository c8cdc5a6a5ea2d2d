"""Results of a comparison of allocator settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipygpumem.snapshot.replay.result import Replay


@dataclass(frozen=True, slots=True, eq=False)
class SettingsResult:
    """Result of replaying a recording with other allocator settings.

    Attributes:
        settings: Settings in the format of ``PYTORCH_ALLOC_CONF``; empty for the default and the recorded settings.
        replay: Replay without a limit, or within `SettingsComparison.limit` if the settings require a limit.
        peaks: For the recorded settings, the recorded peak of reserved memory, twice. For other settings,
            ``reserved_range`` of the replay; for a long recording, only the peak of this replay if they save less than
            5%.
        fits_bounds: Whether all requests are served within the lower and the upper bound of `SettingsComparison.limit`;
            None for a bound if it depends on unknown addresses, or on the unknown size of a request that failed. None
            instead of both if there is no limit.
        baseline: Peak with the recorded settings to which ``peaks`` are compared: the recorded one or, if the settings
            require a limit and a capacity was given, the one within this capacity. None if the recorded settings do
            not fit into it.
    """

    settings: str
    replay: Replay
    peaks: tuple[int, int]
    fits_bounds: tuple[bool | None, bool | None] | None
    baseline: int | None

    @property
    def collects(self) -> bool:
        """Whether the settings contain ``garbage_collection_threshold``, which has no effect without a limit."""
        return self.replay.settings.collection_threshold > 0

    @property
    def fits(self) -> bool | None:
        """Whether all requests are served within the limit; None if it is unknown, or if there is no limit."""
        low, high = self.fits_bounds or (None, None)
        return low if low == high else None

    @property
    def fits_reason(self) -> str:
        """Reason why it is unknown whether all requests are served; empty if it is known."""
        if self.fits_bounds is None:
            return "no limit is known"
        if self.fits is not None:
            return ""
        if self.replay.depends_on_requested_size:
            return "depends on size"
        return "depends on addresses" if None in self.fits_bounds else "depends on limit"

    def to_dict(self) -> dict[str, Any]:
        """Return the result without curves as JSON-serializable data. Sizes are in bytes."""
        return {
            "settings": self.settings,
            "fits": self.fits,
            "fits_reason": self.fits_reason,
            "peaks": list(self.peaks),
            "baseline": self.baseline,
            "replay": self.replay.to_dict(),
        }
