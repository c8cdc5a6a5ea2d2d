"""Name of an object, stored as a reference from another object."""

from __future__ import annotations

from dataclasses import dataclass

from ipygpumem.features.holders.labels import ReferenceLabel
from ipygpumem.features.holders.model import Place


@dataclass(slots=True)
class ObjectName:
    """Name of an object, stored as the last reference on a path from a root to the object.

    Attributes:
        parent_id: The id of the referrer; None for a root.
        holder: Name of the holder; empty if the next reference on the path determines it.
        graph: Whether the path passes through an autograd graph.
    """

    parent_id: int | None
    label: ReferenceLabel
    holder: str
    place: Place
    graph: bool = False
    depth: int = 0
