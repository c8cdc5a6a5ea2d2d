"""What is drawn in which colour: the lines of code that hold most of the peak, each with a colour of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.snapshot.export.text import many, share
from ipygpumem.snapshot.queries.group_keys import label_rows
from ipygpumem.snapshot.queries.groups import add_up
from ipygpumem.viewer.detail import SMALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.queries.groups import Group
    from ipygpumem.snapshot.snapshot import Snapshot

    Colour = tuple[int, int, int]

__all__ = ["Entry", "Parts", "parts"]

# The viewer's own colours (js/snapshot/palette.js): told apart by every kind of colour vision, calm on large areas
_COLOURS: tuple[Colour, ...] = (
    (119, 170, 221),
    (238, 136, 102),
    (68, 187, 153),
    (238, 221, 136),
    (185, 160, 220),
    (153, 221, 255),
    (170, 170, 0),
    (255, 170, 187),
    (143, 183, 168),
)
# what has no line, by the beginning of its label
_UNNAMED: dict[str, Colour] = {
    "(older": (180, 191, 204),
    "(no stack": (201, 194, 180),
    "(no frame": (191, 200, 210),
    "(no Python": (216, 207, 180),
}
_OTHERS: Colour = (196, 201, 208)
_SHADES = (0.0, 0.14, 0.28, 0.5)
"""How much white is mixed in: by turns, so that neighbours of one colour are told apart; the last is a band's."""
_TURNS = len(_SHADES) - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the legend.

    Attributes:
        label: The line of code.
        share: Its share of the peak, in words.
        bytes: Requested bytes at the peak.
        colour: ``#rrggbb``.
    """

    label: str
    share: str
    bytes: int
    colour: str


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The colours of a device's allocations.

    Attributes:
        kind: uint8 for each allocation: what `strata` writes where it is drawn as itself.
        band: uint8 for each allocation: what it writes for a run of low ones of one line.
        colours: Red, green, blue by kind.
        entries: The legend.
    """

    kind: NDArray[np.uint8]
    band: NDArray[np.uint8]
    colours: dict[int, Colour]
    entries: tuple[Entry, ...]


def parts(snapshot: Snapshot, timeline: Timeline) -> Parts:
    """Colour a device's allocations by line."""
    allocations = timeline.allocations
    rows = np.arange(len(allocations))
    _, line = label_rows(snapshot, timeline, rows, "line")
    live = snapshot.live(device=timeline.device)
    # both are ordered by bytes, and equal ones in the same way
    groups = live.by("line")
    sums = add_up(line[live.rows], allocations.size[live.rows])
    place = np.full(int(line.max(initial=-1)) + 1, len(_COLOURS), np.int64)
    for number, (code, _, _) in enumerate(sums[: len(_COLOURS)]):
        place[code] = number
    rank = np.empty(len(allocations), np.int64)
    rank[np.argsort(allocations.start, kind="stable")] = rows
    first = SMALL + 1 + place[line] * len(_SHADES)
    whole = live.bytes
    shown = _coloured(groups[: len(_COLOURS)])
    entries = [
        Entry(group.label, _share(group.bytes, whole), group.bytes, _hexadecimal(colour))
        for group, colour in zip(groups, shown, strict=False)
    ]
    shown += [_OTHERS] * (len(_COLOURS) + 1 - len(shown))
    others = groups[len(_COLOURS) :]
    if others:
        held = sum(group.bytes for group in others)
        entries.append(Entry(f"{many(len(others), 'other line')}", _share(held, whole), held, _hexadecimal(_OTHERS)))
    gone = len(np.unique(line)) - len(groups)
    if gone > 0:
        label = f"{many(gone, 'line')} not alive at the peak"
        entries.append(Entry(label, "", 0, _hexadecimal(_OTHERS)))
    colours = {
        SMALL + 1 + number * len(_SHADES) + turn: _lighter(colour, white)
        for number, colour in enumerate(shown)
        for turn, white in enumerate(_SHADES)
    }
    kind, band = (first + rank % _TURNS).astype(np.uint8), (first + _TURNS).astype(np.uint8)
    return Parts(kind, band, colours, tuple(entries))


def _coloured(groups: Sequence[Group]) -> list[Colour]:
    """Lines have strong colours, the largest the first; what has no line a dull one of its own."""
    strong = iter(_COLOURS)
    dull = (next((one for begin, one in _UNNAMED.items() if group.label.startswith(begin)), None) for group in groups)
    return [
        one if one is not None and group.line is None else next(strong) for group, one in zip(groups, dull, strict=True)
    ]


def _share(part: int, whole: int) -> str:
    return "< 1 %" if 0 < part < whole // 100 else share(part, whole).strip()


def _lighter(colour: Colour, white: float) -> Colour:
    red, green, blue = (round(part + (255 - part) * white) for part in colour)
    return red, green, blue


def _hexadecimal(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
