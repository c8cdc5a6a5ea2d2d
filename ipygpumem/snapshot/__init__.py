"""Reads and analyzes PyTorch memory snapshots without importing torch, CUDA or IPython."""

from pathlib import Path

from ipygpumem.snapshot.export.event_table import to_frame
from ipygpumem.snapshot.queries.diff import Change, Diff, diff
from ipygpumem.snapshot.queries.groups import KEYS
from ipygpumem.snapshot.reader.load import ReadLimits
from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["KEYS", "Change", "Diff", "ReadLimits", "Snapshot", "diff", "sample", "to_frame"]


def sample() -> Path:
    """Return the path of an example snapshot, recorded during three training steps of a small GPT model."""
    return Path(__file__).parent.parent / "data" / "gpt_small.pickle.xz"
