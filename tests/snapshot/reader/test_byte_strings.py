"""Equal byte strings get equal numbers, with and without hash collisions."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipygpumem.snapshot.reader import byte_strings
from ipygpumem.snapshot.reader.byte_strings import intern, words_of
from snapshot import files

strings = st.lists(st.text("ab", max_size=40).map(str.encode), min_size=1, max_size=60)


def numbered(texts, unique):
    data = b"".join(texts) + bytes(8)
    last = np.cumsum([len(text) for text in texts], dtype=np.int64)
    first = last - [len(text) for text in texts]
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    return intern(data, first, last, words_of(words, first, last), unique).tolist()


@pytest.mark.parametrize("factor", [byte_strings._FACTOR, np.uint64(0), np.uint64(1)], ids=["random", "zero", "one"])
def test_numbers_of_strings(factor):
    @given(strings)
    def check(texts):
        unique = {b"ab": 0}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(byte_strings, "_FACTOR", factor)
            numbers = numbered(texts, unique)
        assert numbers == [unique[text] for text in texts]
        assert sorted(unique.values()) == list(range(len(unique)))

    check()


def test_numbers_are_the_same_in_every_process():
    """Strings are compared by a hash with a random factor, which must not affect their order."""
    code = (
        "import hashlib, sys; from ipygpumem import Snapshot;"
        "print(hashlib.sha256(Snapshot.load(sys.argv[1]).encode()).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(files.path("gpt_small"))]
    numbers = {subprocess.run(command, capture_output=True, check=True, timeout=60).stdout for _ in range(3)}
    assert len(numbers) == 1
