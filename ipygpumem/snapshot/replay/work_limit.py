"""Limit on the work of replays, so that every file is replayed or rejected within a time proportional to its size.

Most requests take about the same time. However, PyTorch's allocator examines many free blocks in some cases, for
example before a request fails, and a file can contain many such requests.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

STEPS_PER_SECOND = 10_000_000
_SECONDS, _SECONDS_PER_ITEM = 15.0, 2e-4
_SINGLE_REPLAY_SHARE = 1 / 8
_MIN_SECONDS, _MAX_SLOWDOWN = 1.0, 2.0
"""Time in seconds that is always allowed, and maximum ratio of additional time to the counted work.

The hash of integers is predictable: a file can contain addresses with which each access to a dict takes a long time.
This time is not counted.
"""


class WorkLimitExceededError(Exception):
    """Raised if replays exceed their work limit."""


class WorkLimit:
    """Limit on the work of replays. The work is counted, because measured times would differ between machines.

    Args:
        items: Number of events and blocks.
        share: Number of events of this device as a fraction of the events of all devices.

    Attributes:
        seconds: Approximate duration of the work that is allowed for a comparison of settings.
        replay_seconds: Approximate duration that is allowed for a single replay of this device. The sum over all
            devices is the duration for one device with the same number of events.
    """

    def __init__(self, items: int = 0, share: float = 1.0) -> None:
        self.seconds = _SECONDS + _SECONDS_PER_ITEM * items
        self.replay_seconds = _SINGLE_REPLAY_SHARE * (_SECONDS * share + _SECONDS_PER_ITEM * items)
        self._left = self._deadline = math.inf

    @property
    def left(self) -> float:
        """Approximate duration in seconds of the work that is still allowed."""
        return self._left / STEPS_PER_SECOND

    def count(self, steps: float) -> None:
        """Count steps, each of which takes about 0.1 µs. Raises `WorkLimitExceededError` if the limit is exceeded."""
        self._left -= steps
        if self._left < 0:
            raise WorkLimitExceededError

    def check_time(self) -> None:
        """Raise `WorkLimitExceededError` if the work has taken much more time than its count allows."""
        if time.thread_time() > self._deadline:
            raise WorkLimitExceededError

    @contextmanager
    def limited(self, seconds: float | None = None) -> Iterator[None]:
        """Limit the work in this context to ``seconds``.

        The default is the limit of the outer context or, if there is none, ``self.seconds``.
        """
        outer = self._left, self._deadline
        if seconds is None and self._left < math.inf:
            yield
            return
        seconds = self.seconds if seconds is None else seconds
        self._left = seconds * STEPS_PER_SECOND
        self._deadline = time.thread_time() + _MIN_SECONDS + _MAX_SLOWDOWN * seconds
        try:
            yield
        finally:
            self._left, self._deadline = outer
