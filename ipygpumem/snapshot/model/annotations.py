"""Annotated regions: ``record_function`` and the optimizer's steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.model.intervals import Spans
from ipygpumem.snapshot.reader.checks import integer, mapping, sequence, text

__all__ = ["Annotation", "innermost", "read_annotations"]

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STAGES = ("START", "END")
_NO_DEVICE = -1
_FOREVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Annotation:
    """One region.

    Attributes:
        name: Its name, ``Optimizer.step#AdamW.step``.
        device: The device that was current; -1 for none.
        start_us: Microseconds since 1970; None if it began before recording.
        end_us: Microseconds since 1970; None if it had not ended.
        depth: How many regions it lies in.
        ambiguous: It overlaps another region without lying in it. The file names no threads: several were at work, or
            an entry was lost, and START and END of the same name may be paired wrongly.
    """

    name: str
    device: int
    start_us: int | None
    end_us: int | None
    depth: int
    ambiguous: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Open:
    name: str
    device: int
    start: int
    depth: int


def read_annotations(value: Any) -> tuple[Annotation, ...]:
    """Pair the file's START and END entries. An END closes the youngest open region of its name and device.

    Raises:
        SnapshotFormatError: A value of the wrong type; the message names it.
    """
    entries = []
    for place, item in enumerate(sequence(value, "external_annotations")):
        where = f"external_annotations[{place}]"
        entry = mapping(item, where)
        stage = text(entry.get("stage"), f"{where}: stage")
        if stage not in _STAGES:
            continue  # of a later PyTorch
        time = integer(entry.get("time_us", 0), f"{where}: time_us", 0)
        device = entry.get("device", 0)
        device = _NO_DEVICE if device is None else integer(device, f"{where}: device")
        entries.append((time, place, stage == "START", text(entry.get("name"), f"{where}: name"), device))
    found: list[Annotation] = []
    opened: dict[int, _Open] = {}
    order: list[int] = []  # those opened, by age; closed ones leave it when they come to its end
    youngest: dict[tuple[str, int], list[int]] = {}
    for time, place, begins, name, device in sorted(entries):
        same = youngest.setdefault((name, device), [])
        if begins:
            same.append(place)
            opened[place] = _Open(name, device, time, len(opened))
            order.append(place)
        elif not same:
            found.append(Annotation(name, device, None, time, 0, ambiguous=bool(opened)))
        else:
            while order[-1] not in opened:
                order.pop()
            last = order[-1]
            key = same.pop()
            region = opened.pop(key)
            # as many regions are open around it as when it began, and none inside it
            nested = key == last and len(opened) == region.depth
            found.append(Annotation(name, device, region.start, time, region.depth, not nested))
    for around, region in enumerate(opened.values()):
        found.append(Annotation(region.name, region.device, region.start, None, region.depth, around != region.depth))
    return tuple(sorted(found, key=lambda a: (-1 if a.start_us is None else a.start_us, a.depth)))


def innermost(annotations: tuple[Annotation, ...], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each time the number of the deepest region around it, the younger of two; -1 outside of all."""
    found = np.full(len(times), -1, np.int64)
    if not annotations or not len(times):
        return found
    starts = [-1 if a.start_us is None else a.start_us for a in annotations]
    ends = [_FOREVER if a.end_us is None else a.end_us for a in annotations]
    ranks = [(a.depth, start) for a, start in zip(annotations, starts, strict=True)]
    # a region that began before recording does not hold at unknown times, which are -1 as well
    return np.where(times < 0, -1, Spans(starts, ends, ranks).at(times))
