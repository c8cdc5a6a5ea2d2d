"""The books of one device while something runs: fewer figures than a reading has, at less cost."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeviceLevels", "Levels"]


@dataclass(frozen=True, slots=True)
class DeviceLevels:
    """One device at one instant, in bytes; what is not known is None.

    ``outside`` is this process's where ``own``, else everybody's; ``others`` is then unknown. ``others``: what is
    neither this process's nor the driver's. ``used`` and ``capacity`` are without the driver's reserve.
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
        """What PyTorch has taken: tensors and cache."""
        return None if self.allocated is None or self.cached is None else self.allocated + self.cached


@dataclass(frozen=True, slots=True)
class Levels:
    """Every device in use at one instant, or without any the host: ``rss`` of this process, ``total`` of the machine.

    ``time`` in seconds since 1970.
    """

    time: float
    devices: tuple[DeviceLevels, ...]
    rss: int | None
    total: int | None
