"""The result of ``%gpumem free``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipygpumem.core.reading import Reading

__all__ = ["Release"]


@dataclass(frozen=True, slots=True)
class Release:
    """The readings before and after, descriptions of what was removed, and notes for the user."""

    before: Reading
    after: Reading
    removed: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def freed(self, device: str) -> int | None:
        """Bytes of tensors freed on a device; None if unknown."""
        before, after = self.before.devices.get(device), self.after.devices.get(device)
        if before is None or after is None or before.allocated is None or after.allocated is None:
            return None
        return before.allocated - after.allocated
