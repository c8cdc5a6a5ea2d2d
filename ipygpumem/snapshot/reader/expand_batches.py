"""Trace entries that were read as lanes, and stand where no events belong: made dicts again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.snapshot.reader.memo_table import Run

if TYPE_CHECKING:
    from ipygpumem.snapshot.reader.memo_table import Memo

__all__ = ["spread", "unfold"]

_EVENTS = ("device_traces", "host_traces")
_READ = ("segments", "external_annotations", "allocator_settings", "ipygpumem", "source_code")
_CONTAINERS = (dict, list, tuple)


def spread(items: list[Any], memo: Memo, last: int = 0) -> None:
    """Put dicts in place of the runs in a list, or in the ``last`` items of it."""
    some = items[-last:] if last else items
    if Run in map(type, some):
        items[-last:] = [one for item in some for one in (memo.entries(item) if type(item) is Run else (item,))]


def unfold(root: Any, memo: Memo) -> None:
    """Leave runs in the lists of events only, and where nobody looks: under keys that are not known."""
    keys = root if type(root) is dict else {"segments": root}
    if type(keys.get("device_traces")) is list:
        spread(keys["device_traces"], memo)  # where lists of events belong, not events
    events = _lists(keys)
    if sum(type(item) is Run for items in events for item in items) == len(memo.runs):
        return
    rest = [keys[key] for key in _READ if key in keys]
    seen: set[int] = set()
    while rest:
        value = rest.pop()
        if type(value) not in _CONTAINERS or id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is list:
            spread(value, memo)
        rest.extend(value.values() if type(value) is dict else value)


def _lists(keys: dict[str, Any]) -> list[list[Any]]:
    """The lists of events: one for each device, or one by itself for host memory."""
    found = [keys.get("host_traces")]
    for key in _EVENTS:
        value = keys.get(key)
        found.extend(value if type(value) is list or type(value) is tuple else ())
    return list({id(items): items for items in found if type(items) is list}.values())
