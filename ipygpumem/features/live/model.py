"""Memory levels while code is running: fewer figures than a reading has, at a lower cost."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeviceLevels", "Levels"]


@dataclass(frozen=True, slots=True)
class DeviceLevels:
    """One device at one instant. Sizes are in bytes; None means unknown.

    ``outside`` belongs to this process if ``own`` is True. Otherwise it includes other processes, and ``others`` is
    unknown. ``others`` is neither this process's nor the driver's. ``used`` and ``capacity`` exclude the memory that
    the driver reserves.
    """

    name: str
    allocated: int | None = None
    cached: int | None = None
    outside: int | None = None
    others: int | None = None
    used: int | None = None
    capacity: int | None = None
    own: bool = True

    @property
    def reserved(self) -> int | None:
        """Memory that PyTorch has reserved: tensors and cache."""
        return None if self.allocated is None or self.cached is None else self.allocated + self.cached


@dataclass(frozen=True, slots=True)
class Levels:
    """All devices in use at one instant, and the host: ``rss`` of this process, ``total`` of the machine.

    ``time`` is in seconds since 1970.
    """

    time: float
    devices: tuple[DeviceLevels, ...]
    rss: int | None
    total: int | None
