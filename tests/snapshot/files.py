"""Real snapshots for the tests: small ones beside the tests, large ones where a checkout has them."""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path

import pytest

SMALL = Path(__file__).parents[1] / "data"
LARGE = Path(__file__).parents[3] / "shared" / "data"
NAMES = ("resnet50", "gpt_small", "gpt_cpp", "oom_fragmented")


def path(name):
    for folder in (SMALL, LARGE):
        found = folder / f"{name}.pickle.xz"
        if found.is_file():
            return found
    pytest.skip(f"{name}.pickle.xz is not in tests/data, and there is no ../shared/data")


def raw(name):
    """The file's dict, by Python's own unpickler: these files are ours."""
    with lzma.open(path(name)) as file:
        return pickle.load(file)
