"""Limits on the size of a snapshot file."""

from __future__ import annotations

from dataclasses import dataclass

from ipygpumem.core.units import GIB, MIB

__all__ = ["Limits"]

_BYTES_PER_OBJECT = 8
_EXTRA_OBJECTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for reading one file. A file beyond them is refused with `SnapshotLimitError`.

    Reading takes time and memory in proportion to the size of the file, whatever its contents, so only sizes need
    limits.

    Attributes:
        size: Bytes of the file after decompression.
        ratio: Maximum compression ratio beyond the first 8 MiB. Real snapshots have 15 to 100, decompression bombs
            1,000 to 7,000.
        depth: Maximum nesting of lists and dicts. Real snapshots have eight levels.
        devices: Maximum number of devices.
    """

    size: int = 8 * GIB
    ratio: int = 250
    depth: int = 100
    devices: int = 1024

    def decompressed(self, compressed: int) -> int:
        """The size in bytes to which a file of ``compressed`` bytes may decompress."""
        return min(self.size, max(8 * MIB, self.ratio * compressed))

    @staticmethod
    def objects(length: int) -> int:
        """The number of lists, dicts, tuples and texts in ``length`` bytes. Real snapshots use 15 bytes for each."""
        return _EXTRA_OBJECTS + length // _BYTES_PER_OBJECT
