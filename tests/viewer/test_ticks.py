"""Round numbers for axes."""

from __future__ import annotations

import pytest

from ipygpumem.core.units import GIB, KIB, MIB
from ipygpumem.viewer.ticks import byte_ticks, count_ticks


@pytest.mark.parametrize(
    ("top", "labels"),
    [
        (2 * GIB, ["0", "0.5 GiB", "1 GiB", "1.5 GiB", "2 GiB"]),
        (700 * MIB, ["0", "128 MiB", "256 MiB", "384 MiB", "512 MiB", "640 MiB"]),
        (5.5 * KIB, ["0", "1 KiB", "2 KiB", "3 KiB", "4 KiB", "5 KiB"]),
        (5, ["0", "1 B", "2 B", "3 B", "4 B", "5 B"]),
        (1.2, ["0", "1 B"]),
        (140 * GIB, ["0", "32 GiB", "64 GiB", "96 GiB", "128 GiB"]),
    ],
)
def test_bytes(top, labels):
    assert [label for _, label in byte_ticks(top)] == labels


@pytest.mark.parametrize("top", [2.0**power * factor for power in range(0, 63, 3) for factor in (1, 1.3, 1.99)])
def test_bytes_are_few_and_inside(top):
    values = [value for value, _ in byte_ticks(top)]
    assert values[0] == 0
    assert values[-1] <= top
    assert len(values) <= 7
    assert len({label for _, label in byte_ticks(top)}) == len(values)


@pytest.mark.parametrize(
    ("count", "labels"),
    [
        (0, []),
        (1, ["0"]),
        (5, ["0", "1", "2", "3", "4"]),
        (8088, ["0", "1,000", "2,000", "3,000", "4,000", "5,000", "6,000", "7,000", "8,000"]),
        (10001, ["0", "2,000", "4,000", "6,000", "8,000", "10,000"]),
        (2_500_000, ["0", "500,000", "1,000,000", "1,500,000", "2,000,000"]),
    ],
)
def test_counts(count, labels):
    assert [label for _, label in count_ticks(count)] == labels
