"""How large a snapshot file may be."""

from __future__ import annotations

from dataclasses import dataclass

from ipygpumem.units import GIB, MIB

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds for reading one file. What goes beyond is refused with `SnapshotLimitError`.

    Reading takes time and memory in proportion to the file, whatever the file says, so that its size is all there is
    to bound.

    Attributes:
        size: Bytes of the file after unpacking gz or xz.
        ratio: How many times its own size a packed file may unpack to, beyond the first 64 MiB. A real snapshot packs
            25 to 100 times, a bomb 1,000 to 7,000 times.
        depth: Lists and dicts open inside one another. A real snapshot has eight.
        devices: Devices in the file.
    """

    size: int = 8 * GIB
    ratio: int = 250
    depth: int = 100
    devices: int = 1024

    def unpacked(self, packed: int) -> int:
        """The most bytes that a packed file of ``packed`` bytes may unpack to."""
        return min(self.size, max(64 * MIB, self.ratio * packed))
