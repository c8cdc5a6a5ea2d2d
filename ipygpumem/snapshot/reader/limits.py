"""How large a snapshot file may be."""

from __future__ import annotations

from dataclasses import dataclass

from ipygpumem.core.units import GIB, MIB

__all__ = ["Limits"]

_BYTES_PER_OBJECT = 8
_SPARE_OBJECTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds for reading one file. What goes beyond is refused with `SnapshotLimitError`.

    Reading takes time and memory in proportion to the file, whatever the file says, so that its size is all there is
    to bound.

    Attributes:
        size: Bytes of the file after unpacking gz or xz.
        ratio: How many times its own size a packed file may unpack to, beyond the first 8 MiB. A real snapshot packs
            15 to 100 times, a bomb 1,000 to 7,000 times.
        depth: Lists and dicts open inside one another. A real snapshot has eight.
        devices: Devices in the file.
    """

    size: int = 8 * GIB
    ratio: int = 250
    depth: int = 100
    devices: int = 1024

    def unpacked(self, packed: int) -> int:
        """The most bytes that a packed file of ``packed`` bytes may unpack to."""
        return min(self.size, max(8 * MIB, self.ratio * packed))

    @staticmethod
    def objects(length: int) -> int:
        """The most lists, dicts, tuples and texts in ``length`` bytes: a real snapshot spends 15 and more on each."""
        return _SPARE_OBJECTS + length // _BYTES_PER_OBJECT
