"""What was let go, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipygpumem.core.reading import Reading

__all__ = ["Release"]


@dataclass(frozen=True, slots=True)
class Release:
    """The readings around a release, what was let go, in words, and what the reader should know."""

    before: Reading
    after: Reading
    gone: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def given_back(self, device: str) -> int | None:
        """Bytes less allocated on a device: what tensors gave back."""
        before, after = self.before.devices.get(device), self.after.devices.get(device)
        if before is None or after is None or before.allocated is None or after.allocated is None:
            return None
        return before.allocated - after.allocated

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "before": self.before.to_dict(), "after": self.after.to_dict()}
