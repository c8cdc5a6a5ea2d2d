"""A list whose older items are compressed."""

from __future__ import annotations

import dataclasses
import io
import pickle
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any, Generic, TypeVar

_Item = TypeVar("_Item")

_BATCH = 32  # number of items that are compressed together: compressing 32 reports takes less than 1 ms


class _Pickler(pickle.Pickler):
    """A pickler that stores data classes as constructor calls, which takes a third of the time of the default."""

    def reducer_override(self, obj: Any) -> Any:
        cls: Any = type(obj)
        values = _positional_values(cls)
        return NotImplemented if values is None else (cls, values(obj))


@cache
def _positional_values(cls: Any) -> Callable[[Any], tuple[Any, ...]] | None:
    if not dataclasses.is_dataclass(cls) or hasattr(cls, "__post_init__"):
        return None
    fields = dataclasses.fields(cls)
    if len(fields) <= 1 or not all(field.init and not field.kw_only for field in fields):
        return None  # `attrgetter` with one name does not return a tuple
    return attrgetter(*(field.name for field in fields))


class CompactList(Generic[_Item]):
    """A list of immutable items that can be extended at the end and shortened at the start.

    Items are compressed in batches when enough newer items follow. Each access to a compressed item may return another
    object, which is equal to the original item. Other threads may read the list while it changes.

    Args:
        uncompressed: Number of newest items that are never compressed.
        compresses: Whether older items are compressed.
    """

    def __init__(self, uncompressed: int, *, compresses: bool) -> None:
        self._entries: deque[Any] = deque()  # items and compressed batches, which are `bytes`
        self._length = 0
        self._uncompressed = uncompressed
        self._compresses = compresses
        self._decompressed: tuple[bytes, list[_Item]] = (b"", [])
        """The last decompressed batch, and its items."""

    def append(self, item: _Item) -> None:
        self._length += 1  # first, because Ctrl-C could interrupt this method after a call
        self._entries.append(item)
        start = -self._uncompressed - _BATCH
        if not self._compresses or len(self._entries) < -start or isinstance(self._entries[start], bytes):
            return
        entries = list(self._entries)
        items = entries[start : start + _BATCH]
        if any(isinstance(entry, bytes) for entry in items):  # `popleft` has decompressed an older batch
            return
        try:
            file = io.BytesIO()
            _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(items)
            batch = zlib.compress(file.getvalue(), 1)
        except Exception:  # for example, because a module was reloaded, so that the items have outdated classes
            self._compresses = False
        else:
            self._entries = deque([*entries[:start], batch, *entries[start + _BATCH :]])

    def popleft(self) -> _Item:
        if isinstance(self._entries[0], bytes):
            batch, *entries = self._entries
            self._entries = deque([*self._items(batch), *entries])
        self._length -= 1
        item: _Item = self._entries.popleft()
        return item

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[_Item]:
        return (item for entry in list(self._entries) for item in self._items(entry))

    def __reversed__(self) -> Iterator[_Item]:
        return (item for entry in reversed(list(self._entries)) for item in reversed(self._items(entry)))

    def __getitem__(self, index: int) -> _Item:
        entries = self._entries
        if -min(self._uncompressed, len(entries)) <= index < 0:
            item: _Item = entries[index]
            return item
        if index < 0:
            index += self._length
        for entry in list(entries) if index >= 0 else ():
            count = _BATCH if isinstance(entry, bytes) else 1
            if index < count:
                return self._items(entry)[index]
            index -= count
        raise IndexError("list index out of range")

    def __setitem__(self, index: int, item: _Item) -> None:
        self._entries[index] = item

    def _items(self, entry: Any) -> list[_Item]:
        if not isinstance(entry, bytes):
            return [entry]
        batch, items = self._decompressed
        if batch is not entry:
            items = pickle.loads(zlib.decompress(entry))  # noqa: S301 (the data was created by `append`)
            self._decompressed = (entry, items)
        return items
