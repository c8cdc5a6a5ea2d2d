"""Tests of formatted sizes, counts and durations, and of parsed sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import GIB, KIB, MIB, duration, many, pair, parse_size, signed, size, size_with_unit


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0.0 MiB"),
        (1, "0.0 MiB"),
        (400 * MIB, "400.0 MiB"),
        (1023 * MIB, "1023.0 MiB"),
        (GIB - MIB // 20, "1.0 GiB"),
        (GIB - MIB // 20 - 1, "1023.9 MiB"),
        (GIB, "1.0 GiB"),
        (1300 * MIB, "1.3 GiB"),
        (-400 * MIB, "-400.0 MiB"),
        (-3 * GIB, "-3.0 GiB"),
    ],
)
def test_size(count, text):
    assert size(count) == text


@given(st.integers(-(1 << 50), 1 << 50))
def test_size_is_not_rounded_to_1024_mib(count):
    assert "1024.0 MiB" not in size(count)


def test_signed_and_pair():
    assert [signed(count) for count in (MIB, 0, -MIB, -2 * GIB)] == ["+1.0 MiB", "+0.0 MiB", "-1.0 MiB", "-2.0 GiB"]
    assert pair(3 * GIB, 140 * GIB) == "3.0 of 140.0 GiB"
    assert pair(100 * MIB, 512 * MIB) == "100.0 of 512.0 MiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 ms"),
        (0.0031, "3.1 ms"),
        (0.9999, "999.9 ms"),
        (0.99996, "1.00 s"),
        (2.31, "2.31 s"),
        (59.99, "59.99 s"),
        (59.996, "1 min 00 s"),
        (247, "4 min 07 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (4194304, 4 * MIB),
        ("4194304", 4 * MIB),
        ("4 MiB", 4 * MIB),
        (" 4mib ", 4 * MIB),
        ("1.5GiB", GIB + GIB // 2),
        ("2G", 2 * GIB),
        ("2 GB", 2_000_000_000),
        ("1 kB", 1000),
        ("1K", KIB),
        ("3 B", 3),
        ("1 TiB", 1024 * GIB),
    ],
)
def test_parse_size(text, count):
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "4 PiB", "4 MiBs", "1e3", "four", "4,5 MiB", None, True, 4.5, "4 ib"])
def test_invalid_sizes(text):
    with pytest.raises(OptionError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", [1 << 63, 1 << 80, "9000000 TiB"])
def test_sizes_that_are_too_large(text):
    with pytest.raises(OptionError, match="must be below 8 EiB"):
        parse_size(text)


@given(st.integers(0, 1 << 50))
def test_bytes_round_trip(count):
    assert parse_size(str(count)) == parse_size(f"{count} B") == parse_size(count) == count


@pytest.mark.parametrize(("value", "text"), [("24 GiB", "24 GiB"), ("24g ", "24g "), (24 * GIB, "24.0 GiB")])
def test_size_with_unit(value, text):
    assert size_with_unit(value) == text
    assert size_with_unit(str(24 * GIB)) == "24.0 GiB"


def test_many():
    assert [many(0, "byte"), many(1, "byte"), many(5000, "byte")] == ["0 bytes", "1 byte", "5,000 bytes"]
    assert [many(1, "byte", "+"), many(-1, "byte", "+"), many(512, "byte", "+")] == ["+1 byte", "-1 byte", "+512 bytes"]
