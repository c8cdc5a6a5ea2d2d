"""Real snapshots for tests: small ones in tests/data, large ones in ../shared/data if it exists."""

from __future__ import annotations

import functools
import lzma
import pickle
from pathlib import Path

import pytest

from ipygpumem.snapshot import Snapshot

SMALL = Path(__file__).parents[1] / "data"
LARGE = Path(__file__).parents[3] / "shared" / "data"
NAMES = ("resnet50", "gpt_small", "gpt_cpp", "oom_fragmented")


def path(name):
    for folder in (SMALL, LARGE):
        file = folder / f"{name}.pickle.xz"
        if file.is_file():
            return file
    pytest.skip(f"{name}.pickle.xz is not in tests/data, and there is no ../shared/data")


def raw(name):
    with lzma.open(path(name)) as file:
        return pickle.load(file)


@functools.cache
def snapshot(name):
    return Snapshot.load(path(name))
