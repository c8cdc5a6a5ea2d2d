"""Numbers for byte strings in a piece of data: equal strings get the same number."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]
    SelectedWords = list[tuple[Any, Words]]

__all__ = ["intern", "words_of"]

_WORD = 8
_FEW_GROUPS = 8
_ALL_BITS = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_SHIFT = np.uint64(29)
_FACTOR = np.uint64(secrets.randbits(64) | 1)  # new in each process, so that no file can be made to cause collisions


def intern(data: bytes, first: Ints, last: Ints, words: SelectedWords, numbers: dict[bytes, int]) -> Ints:
    """Number the strings between positions.

    Args:
        data: The bytes.
        first: Where each string starts.
        last: Where it ends (excluded).
        words: The bytes of the strings as 8-byte words with zeros in place of other bytes: which of the strings have
            such a word, and the words.
        numbers: The numbers of known strings; new strings are added.
    """
    size = last - first
    key = size.astype(np.uint64)
    for selected, chunk in words:
        mixed = (key[selected] ^ chunk) * _FACTOR
        key[selected] = mixed ^ (mixed >> _SHIFT)
    sample, group = _groups(key)
    equal = size == size[sample][group]
    place = np.zeros(len(first), np.int64)
    for selected, chunk in words:
        place[selected] = np.arange(len(chunk))
        sample_place = np.minimum(place[sample], len(chunk) - 1)  # a shorter sample is detected by its size
        equal[selected] &= chunk == chunk[sample_place][group[selected]]
    number = _look_up(data, first[sample], last[sample], numbers)[group]
    if not equal.all():  # a hash collision
        rest = np.flatnonzero(~equal)
        number[rest] = _look_up(data, first[rest], last[rest], numbers)
    return number


def words_of(words: Words, first: Ints, last: Ints) -> SelectedWords:
    """The bytes of strings at any positions, for `intern`; ``words`` are the eight bytes at every position."""
    size = last - first
    result = []
    selected: Any = slice(None)
    offset = 0
    while offset == 0 or len(first[selected]):
        left = size[selected] - offset
        spare = (8 * np.maximum(_WORD - left, 0)).astype(np.uint64)
        result.append((selected, words[first[selected] + offset] & (_ALL_BITS >> spare)))
        offset += _WORD
        selected = np.flatnonzero(size > offset) if offset == _WORD else selected[left > _WORD]
    return result


def _groups(key: Words) -> tuple[Ints, Ints]:
    """The position of one sample of each distinct key, and for each key the number of its sample."""
    group = np.zeros(len(key), np.int64)
    samples: list[Ints] = []
    rest = np.arange(len(key))
    while len(rest) and len(samples) < _FEW_GROUPS:  # usually there are few: this is cheaper than sorting
        samples.append(rest[:1])
        same = key[rest] == key[rest[0]]
        group[rest[same]] = len(samples) - 1
        rest = rest[~same]
    if len(rest):
        _, sample, inverse = np.unique(key[rest], return_index=True, return_inverse=True)
        order = np.argsort(sample)  # in the order of the file, so that every process gives the same numbers
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        group[rest] = rank[inverse] + len(samples)
        samples.append(rest[sample[order]])
    return np.concatenate(samples), group


def _look_up(data: bytes, first: Ints, last: Ints, numbers: dict[bytes, int]) -> Ints:
    spans = zip(first.tolist(), last.tolist(), strict=True)
    return np.array([numbers.setdefault(data[start:end], len(numbers)) for start, end in spans], np.int64)
