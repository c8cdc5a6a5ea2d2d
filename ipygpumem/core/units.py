"""Format sizes and durations, and parse sizes. Sizes use binary units (MiB, GiB), as in nvidia-smi and PyTorch."""

from __future__ import annotations

import re

from ipygpumem.core.errors import OptionError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
VISIBLE = MIB // 20  # smallest size in bytes that is not printed as 0.0 MiB

_SIZE = re.compile(r"\s*(\+?\d+(?:\.\d+)?)\s*((?:[kmgt]i?)?b|[kmgt])?\s*", re.IGNORECASE)
_DECIMAL_UNITS = ("kb", "mb", "gb", "tb")
_LARGEST = 1 << 63
_MINUTE = 60


def size(count: int) -> str:
    """Format a number of bytes in MiB or, if it is 1 GiB or more, in GiB: ``"400.0 MiB"``, ``"1.2 GiB"``."""
    if abs(count) >= GIB - VISIBLE:  # would otherwise be rounded to 1024.0 MiB
        return f"{count / GIB:.1f} GiB"
    return f"{count / MIB:.1f} MiB"


def size_with_unit(text: int | str) -> str:
    """Return a size unchanged if it has a unit; otherwise, format the number of bytes. See `parse_size`."""
    return text if isinstance(text, str) and text.strip()[-1:].isalpha() else size(parse_size(text))


def precise_size(count: int | None) -> str:
    """Format a number of bytes as `size` does, but small numbers in KiB or B, 0 as ``"0"``, None as ``"unknown"``."""
    if count is None:
        return "unknown"
    if count == 0 or abs(count) >= VISIBLE:
        return size(count) if count else "0"
    return f"{count / KIB:.1f} KiB" if abs(count) >= KIB else f"{count} B"


def signed(count: int) -> str:
    return f"{'-' if count < 0 else '+'}{size(abs(count))}"


def difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def change_text(count: int | None) -> str:
    """Format a change in bytes: ``"+400.0 MiB"``, ``"<0.1 MiB"`` if it is small, ``"0"``, or ``"unknown"`` for None."""
    if count is None:
        return "unknown"
    return signed(count) if abs(count) >= VISIBLE else "<0.1 MiB" if count else "0"


def usage_text(count: int | None) -> str:
    return "unknown" if count is None else size(count)


def many(count: int, noun: str, sign: str = "") -> str:
    """Format a count with its noun: ``"1 block"``, ``"2,000 blocks"``, or ``"+1 block"`` if ``sign`` is ``"+"``."""
    return f"{count:{sign},} {noun}{'' if abs(count) == 1 else 's'}"


def pair(part: int, whole: int) -> str:
    """Format two numbers of bytes, a part and a total, in the same unit: ``"3.1 of 139.8 GiB"``."""
    unit, name = (GIB, "GiB") if whole >= GIB else (MIB, "MiB")
    return f"{part / unit:.1f} of {whole / unit:.1f} {name}"


def duration(seconds: float) -> str:
    """Format a duration in seconds in a suitable unit: ``"3.1 ms"``, ``"2.31 s"``, ``"4 min 07 s"``."""
    if round(seconds, 4) < 1:
        return f"{seconds * 1000:.1f} ms"
    if round(seconds, 2) < _MINUTE:
        return f"{seconds:.2f} s"
    minutes, whole_seconds = divmod(round(seconds), _MINUTE)
    if minutes < _MINUTE:
        return f"{minutes} min {whole_seconds:02d} s"
    hours, minutes = divmod(minutes, _MINUTE)
    return f"{hours} h {minutes:02d} min"


def parse_size(text: str | int, name: str = "") -> int:
    """Convert a size such as ``4194304``, ``"4 MiB"``, ``"2G"`` (binary) or ``"2 GB"`` (decimal) to bytes.

    Raises `OptionError` if ``text`` is not a size, or is not below 8 EiB. The message begins with ``name``, if given.
    """
    prefix = f"{name}: " if name else ""
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        if text >= _LARGEST:
            raise OptionError(
                f"{prefix}a size of 2**{text.bit_length() - 1} bytes or more is too large: it must be below 8 EiB"
            )
        return text
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise OptionError(
            f"{prefix}{text!r} is not a size: write a number of bytes, or a number with a unit, such as '4 MiB'"
        )
    unit = (match[2] or "b").lower()
    count = float(match[1]) * (1000.0 if unit in _DECIMAL_UNITS else 1024.0) ** "bkmgt".index(unit[0])
    if count >= _LARGEST:
        raise OptionError(f"{prefix}{text!r} is too large: sizes must be below 8 EiB")
    return round(count)
