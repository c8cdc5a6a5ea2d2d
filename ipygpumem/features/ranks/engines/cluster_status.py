"""Who is under watch, in words: how many on which machines, who is not and why, who is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.features.ranks.notes_table import named

if TYPE_CHECKING:
    from ipygpumem.features.ranks.engines.collect import Engines

__all__ = ["roll"]


def roll(engines: Engines) -> str:
    """A sentence for each thing that is to be said; of a client that is closed only that."""
    if engines.closed:
        return engines.gone
    from ipygpumem import __version__

    origins = engines.origins
    hosts = {origin.host for origin in origins.values()}
    cards = {(one.host, card.uuid) for one in origins.values() for card in one.cards if card.uuid}
    there = "" if not cards else f", {_many(len(cards), 'GPU')}"
    lines = [f"{_many(len(engines.joined), 'engine')} under watch on {_many(len(hosts), 'host')}{there}"]
    lines += [f"engine {number} is not under watch: {note}" for number, note in sorted(engines.notes.items())]
    lost = [str(number) for number in engines.lost]
    if lost:
        several = len(lost) > 1
        lines.append(f"no longer there, {'they were' if several else 'it was'} stopped or died: engine {named(lost)}")
    others = {number: one.version for number, one in origins.items() if one.version != __version__}
    if others:
        told = ", ".join(f"engine {number} has {version}" for number, version in others.items())
        lines.append(f"another version of ipygpumem than {__version__} here: {told}")
    return "\n".join(lines)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
