"""Temporary replacements for attributes and items, undone in reverse order."""

from __future__ import annotations

import contextlib

_ABSENT = object()


class Patches:
    def __init__(self):
        self._undo = []

    def set(self, owner, name, value):
        self._undo.append((setattr, delattr, owner, name, getattr(owner, name, _ABSENT)))
        setattr(owner, name, value)

    def item(self, mapping, key, value):
        set_item, remove = type(mapping).__setitem__, type(mapping).__delitem__
        self._undo.append((set_item, remove, mapping, key, mapping.get(key, _ABSENT)))
        mapping[key] = value

    def restore(self):
        while self._undo:
            set_value, remove, owner, name, old = self._undo.pop()
            if old is not _ABSENT:
                set_value(owner, name, old)
            else:
                with contextlib.suppress(AttributeError, KeyError):
                    remove(owner, name)
