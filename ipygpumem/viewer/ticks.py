"""Round numbers for axes: bytes in powers of two, counts in powers of ten."""

from __future__ import annotations

__all__ = ["byte_ticks", "count_ticks"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_BITS = 10
_MOST_BYTE_TICKS = 6
_MOST_COUNT_TICKS = 9


def byte_ticks(top: float) -> list[tuple[int, str]]:
    """Values from 0 up to ``top`` bytes, at most seven, and how each is written."""
    step = 1
    while top / step > _MOST_BYTE_TICKS:
        step *= 2
    bits = min(max(step.bit_length() - 1, 0) // _BITS, len(_UNITS) - 1)
    if top >= 1 << (bits + 1) * _BITS and bits + 1 < len(_UNITS):
        bits += 1  # 0.5 GiB beside 1.5 GiB, not 512 MiB
    unit = 1 << bits * _BITS
    return [(value, "0" if not value else f"{value / unit:g} {_UNITS[bits]}") for value in range(0, int(top) + 1, step)]


def count_ticks(count: int) -> list[tuple[int, str]]:
    """Places from 0 up to below ``count``, at most nine, and how each is written."""
    if count <= 0:
        return []
    step, turn = 1, 0
    while count / step > _MOST_COUNT_TICKS:
        step = step * (2, 5, 2)[turn % 3] // (1, 2, 1)[turn % 3]
        turn += 1
    return [(value, f"{value:,}") for value in range(0, count, step)]
