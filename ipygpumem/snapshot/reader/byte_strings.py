"""Byte strings that lie in one piece of data, numbered so that equal ones get the same number."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Chunks = list[tuple[Any, Words]]

__all__ = ["gathered", "intern"]

_WORD = 8
_FEW = 8
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_SHIFT = np.uint64(29)
_FACTOR = np.uint64(secrets.randbits(64) | 1)  # new in each process: no file can be made for the sake of collisions


def intern(data: bytes, first: Ints, last: Ints, chunks: Chunks, unique: dict[bytes, int]) -> Ints:
    """Number the strings between positions; those not seen before are added to ``unique``.

    Args:
        data: The bytes.
        first: Where each string begins.
        last: Where it ends (excluded).
        chunks: All their bytes, in words with zeros where other bytes are: which of the strings, and a word of each.
        unique: The strings known so far, with their numbers.
    """
    size = last - first
    key = size.astype(np.uint64)
    for some, chunk in chunks:
        mixed = (key[some] ^ chunk) * _FACTOR
        key[some] = mixed ^ (mixed >> _SHIFT)
    sample, which = _groups(key)
    good = size == size[sample][which]
    place = np.zeros(len(first), np.int64)
    for some, chunk in chunks:
        place[some] = np.arange(len(chunk))
        reached = np.minimum(place[sample], len(chunk) - 1)  # a sample that ends before is told by its size
        good[some] &= chunk == chunk[reached][which[some]]
    number = _numbers(data, first[sample], last[sample], unique)[which]
    if not good.all():  # a collision: the slow way, which needs no luck
        bad = np.flatnonzero(~good)
        number[bad] = _numbers(data, first[bad], last[bad], unique)
    return number


def gathered(words: Words, first: Ints, last: Ints) -> Chunks:
    """The words of strings that lie anywhere, out of ``words``, the eight bytes at every position."""
    size = last - first
    found = []
    some: Any = slice(None)
    ahead = 0
    while ahead == 0 or len(first[some]):
        left = size[some] - ahead
        spare = (8 * np.maximum(_WORD - left, 0)).astype(np.uint64)
        found.append((some, words[first[some] + ahead] & (_ALL >> spare)))
        ahead += _WORD
        some = np.flatnonzero(size > ahead) if ahead == _WORD else some[left > _WORD]
    return found


def _groups(key: Words) -> tuple[Ints, Ints]:
    """A sample of each distinct key, and for each key the number of its sample."""
    which = np.zeros(len(key), np.int64)
    samples: list[Ints] = []
    rest = np.arange(len(key))
    while len(rest) and len(samples) < _FEW:  # mostly there are few: cheaper than to sort
        samples.append(rest[:1])
        same = key[rest] == key[rest[0]]
        which[rest[same]] = len(samples) - 1
        rest = rest[~same]
    if len(rest):
        _, where, inverse = np.unique(key[rest], return_index=True, return_inverse=True)
        order = np.argsort(where)  # in the order of the file: the same file has the same numbers in every process
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        which[rest] = rank[inverse] + len(samples)
        samples.append(rest[where[order]])
    return np.concatenate(samples), which


def _numbers(data: bytes, first: Ints, last: Ints, unique: dict[bytes, int]) -> Ints:
    spans = zip(first.tolist(), last.tolist(), strict=True)
    return np.array([unique.setdefault(data[a:b], len(unique)) for a, b in spans], np.int64)
