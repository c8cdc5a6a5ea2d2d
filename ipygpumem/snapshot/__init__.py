"""Read and analyze PyTorch memory snapshots without importing torch, CUDA or IPython."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.snapshot.queries.groups import KEYS
from ipygpumem.snapshot.reader.load import ReadLimits
from ipygpumem.snapshot.snapshot import Snapshot

if TYPE_CHECKING:
    from ipygpumem.snapshot.export.event_table import to_frame
    from ipygpumem.snapshot.queries.diff import Change, Diff, diff

__all__ = ["KEYS", "Change", "Diff", "ReadLimits", "Snapshot", "diff", "sample", "to_frame"]


def sample() -> Path:
    """Return the path of an example snapshot, recorded during three training steps of a small GPT model."""
    return Path(__file__).parent.parent / "data" / "gpt_small.pickle.xz"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ipygpumem.snapshot' has no attribute {name!r}")
    from ipygpumem.snapshot.export import event_table
    from ipygpumem.snapshot.queries import diff

    return getattr(event_table if name == "to_frame" else diff, name)
