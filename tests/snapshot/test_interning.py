"""Equal byte strings get equal numbers, by luck or without it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipygpumem.snapshot.model.unique_values import distinct, is_in
from ipygpumem.snapshot.reader import byte_strings
from ipygpumem.snapshot.reader.byte_strings import intern, words_of
from snapshot import files

strings = st.lists(st.text("ab", max_size=40).map(str.encode), min_size=1, max_size=60)
numbers = st.lists(st.sampled_from([0, 1, -1, 7, 1 << 62, -(1 << 63)]) | st.integers(-(1 << 63), (1 << 63) - 1))


def numbered(texts, unique):
    data = b"".join(texts) + bytes(8)
    last = np.cumsum([len(text) for text in texts], dtype=np.int64)
    first = last - [len(text) for text in texts]
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    return intern(data, first, last, words_of(words, first, last), unique).tolist()


@pytest.mark.parametrize("factor", [byte_strings._FACTOR, np.uint64(0), np.uint64(1)], ids=["lucky", "zero", "one"])
def test_each_string_has_its_number(factor):
    @given(strings)
    def check(texts):
        unique = {b"ab": 0}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(byte_strings, "_FACTOR", factor)
            found = numbered(texts, unique)
        assert found == [unique[text] for text in texts]
        assert sorted(unique.values()) == list(range(len(unique)))

    check()


@given(numbers)
def test_distinct(values):
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@given(numbers, numbers)
def test_among(values, table):
    found = is_in(np.array(values, np.int64), np.array(table, np.int64))
    assert found.tolist() == [value in table for value in values]


def test_the_same_file_has_the_same_numbers_in_every_process():
    """Strings are told apart by a hash with a secret; their order must not come from it."""
    code = (
        "import hashlib, sys; from ipygpumem import Snapshot;"
        "print(hashlib.sha256(Snapshot.load(sys.argv[1]).encode()).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(files.path("gpt_small"))]
    found = {subprocess.run(command, capture_output=True, check=True, timeout=60).stdout for _ in range(3)}
    assert len(found) == 1
