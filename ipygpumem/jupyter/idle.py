"""Reports that are created after the kernel has replied to the request of a cell, because they are not displayed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from ipygpumem.jupyter.cell_report import print_exceptions

_DELAY = 0.005  # time in seconds in which the kernel sends its reply, for which its threads need the GIL


class IdleCall:
    """Function call that is postponed until the kernel is idle.

    Attributes:
        function: The postponed function; None if there is none.

    Args:
        shell: IPython shell. Calls are postponed only if a kernel runs its cells in the event loop of the main thread.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.function: Callable[[], object] | None = None

    def postpone(self, function: Callable[[], object]) -> bool:
        """Call ``function`` when the kernel is idle, or on the next call to `run`. Return False if this is impossible.

        The expressions that a front end evaluates after a cell can use the report of this cell, so that calls are not
        postponed for these requests.
        """
        if getattr(self._shell, "kernel", None) is None or threading.current_thread() is not threading.main_thread():
            return False
        if self._shell.get_parent().get("content", {}).get("user_expressions"):
            return False
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        loop.call_later(_DELAY, self.run)
        self.function = function
        return True

    @print_exceptions
    def run(self) -> None:
        """Call the postponed function now, if there is one."""
        function, self.function = self.function, None
        if function is not None:
            function()
