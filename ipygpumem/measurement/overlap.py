"""Measurements of several threads at one time: each reads the whole process, and so tells of the others' work, too."""

from __future__ import annotations

import threading

__all__ = ["Overlaps", "Span"]


class Span:
    """One open interval of one thread, and those of other threads that were open when it began."""

    __slots__ = ("main", "met", "thread")

    def __init__(self, met: set[Span]) -> None:
        self.thread = threading.get_ident()
        self.main = threading.current_thread() is threading.main_thread()
        self.met = met


class Overlaps:
    """The intervals that are open now. One per process; without a lock, which a fork could leave closed."""

    def __init__(self) -> None:
        self._open: set[Span] = set()

    def begin(self) -> Span:
        """An interval of this thread, from now on."""
        span = Span(self._open.copy())
        self._open.add(span)
        return span

    def end(self, span: Span | None) -> bool:
        """Whether another thread's interval ran beside this one, which ends; a second time says no.

        One that lay inside it is a part of it. So is it a part of the main thread's that lies around it: the cell.
        """
        if span is None or span not in self._open:
            return False
        self._open.discard(span)
        beside = (self._open - span.met) | {one for one in span.met if not one.main or one not in self._open}
        span.met = set()
        return any(one.thread != span.thread for one in beside)
