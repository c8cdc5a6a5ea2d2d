"""The notebook's side of an ipyparallel cluster: which engines are monitored, and the merged report of a cell."""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.tables import html_tables, text_tables
from ipygpumem.core.units import MIB
from ipygpumem.features.ranks.collect import Ranks
from ipygpumem.features.ranks.engines.client import client_and_targets, join_error, join_result, wait_for
from ipygpumem.features.ranks.engines.status import status_text
from ipygpumem.features.ranks.engines.submission import Submission, engine_result
from ipygpumem.features.ranks.table import ranks_tables
from ipygpumem.measurement.build_report import code_label

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.features.ranks.model import RankInfo

__all__ = ["Engines", "active", "disable", "enable"]

_JOIN = "from ipygpumem.jupyter.engine import join as _gpumem_join; _gpumem_join({}); del _gpumem_join"
_LEAVE = "from ipygpumem.jupyter.engine import leave as _gpumem_leave; _gpumem_leave(); del _gpumem_leave"
_MAX_SUBMISSIONS = 100


class Engines:
    """The monitored engines of a client; created by `enable`.

    Attributes:
        last: The newest merged report; None before the first.
        origins: The host, process and devices of each engine, by its number.
        notes: Why an engine is not monitored, by its number.
    """

    def __init__(self, target: Any, shell: Any = None) -> None:
        self.client, self._targets = client_and_targets(target)
        self.view = self.client.direct_view(self._targets if self._targets is not None else "all")
        self.last: Ranks | None = None
        self.origins: dict[int, RankInfo] = {}
        self.notes: dict[int, str] = {}
        self._shell = shell
        self._submissions: list[Submission] = []
        self._cell = 0
        self._outer_cell: weakref.ref[Any] | None = None
        self._original_send: Callable[..., Any] | None = None

    @property
    def numbers(self) -> list[int]:
        """The selected engines that are running."""
        running = list(self.client.ids)
        if self.closed:
            return []
        return running if self._targets is None else [number for number in self._targets if number in running]

    @property
    def joined(self) -> list[int]:
        """The engines that are monitored."""
        return [number for number in self.numbers if number in self.origins]

    @property
    def lost(self) -> list[int]:
        """Engines that were monitored and are no longer running."""
        return [number for number in sorted(self.origins.keys() - set(self.client.ids)) if self._is_selected(number)]

    def _is_selected(self, number: int) -> bool:
        return self._targets is None or number in self._targets

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return bool(getattr(self.client, "_closed", False))

    @property
    def gone(self) -> str:
        """Why no engine is available; empty if one is."""
        if self.closed:
            return "the client is closed: use %gpumem engines CLIENT with an open client, or %gpumem engines off"
        return "" if self.numbers else "no engines are running: use %gpumem engines CLIENT once engines have started"

    def start(self, timeout: float = 60) -> None:
        """Load ipygpumem on the engines, and monitor what is submitted to them from now on.

        Raises:
            OptionError: There is no engine.
        """
        if not self.numbers:
            raise OptionError("this client has no engines: start a cluster, and wait for its engines")
        self._join(self.numbers, timeout)
        self._original_send = self.client.send_execute_request
        self.client.send_execute_request = self._recording_send(self._original_send)
        if self._shell is not None:
            self._shell.events.register("pre_run_cell", self._pre_run_cell)
            self._shell.events.register("post_run_cell", self._post_run_cell)

    def stop(self, timeout: float = 10) -> None:
        """Unload ipygpumem from the engines, and restore the client."""
        self.detach()
        with contextlib.suppress(Exception):  # the client may be closed, or the hub may have stopped
            wait_for([self.client[number].execute(_LEAVE, silent=True, block=False) for number in self.joined], timeout)

    def detach(self) -> None:
        """Stop monitoring, without contacting the engines."""
        if self._original_send is not None:
            del self.client.send_execute_request
            self._original_send = None
        if self._shell is not None:
            for event, callback in (("pre_run_cell", self._pre_run_cell), ("post_run_cell", self._post_run_cell)):
                with contextlib.suppress(ValueError):
                    self._shell.events.unregister(event, callback)

    def _join(self, numbers: list[int], timeout: float) -> None:
        replies = {
            number: self.client[number].execute(_JOIN.format(number), silent=True, block=False) for number in numbers
        }
        wait_for(replies.values(), timeout)
        for number, reply in replies.items():
            self.notes.pop(number, None)
            if not reply.done():
                self.notes[number] = "busy: it joins once it is idle"
                continue
            reply.wait_for_output(1)
            try:
                reply.get(0)
                result = join_result(reply)
            except Exception as error:
                self.notes[number] = join_error(error)
                continue
            if result.origin is not None:
                self.origins[number] = result.origin

    def _recording_send(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def send_execute_request(socket: Any, code: str, *arguments: Any, **options: Any) -> Any:
            reply = send(socket, code, *arguments, **options)
            identity = options.get("ident")
            if not options.get("silent", True) and identity is not None:
                for number, uuid in self.client._engines.items():
                    if uuid.encode() == identity:
                        self._add_submission(code, number, reply)
            return reply

        return send_execute_request

    def _add_submission(self, code: str, number: int, reply: Any) -> None:
        submissions = self._submissions
        if not submissions or submissions[-1].code != code or number in submissions[-1].replies:
            submissions.append(Submission(code, self._cell))
            del submissions[:-_MAX_SUBMISSIONS]
        submissions[-1].replies[number] = reply

    @property
    def waiting(self) -> list[str]:
        """A message for each cell that is still running on an engine."""
        messages = []
        for submission in self._submissions:
            running = [str(number) for number, reply in sorted(submission.replies.items()) if not reply.done()]
            if running:
                messages.append(f"still running on engine {', '.join(running)}: {code_label(submission.code)}")
        return messages

    def collect(self, *, partly: bool = False, cell: int | None = None) -> list[Ranks]:
        """The merged reports of cells that have finished since the last call. Each is returned once.

        Args:
            partly: Whether to include cells that are still running on an engine, if another engine has finished.
            cell: Restricts ``partly`` to cells submitted by this cell of the notebook.
        """
        reports = []
        for submission in list(self._submissions):
            done = submission.done
            if not done and not (partly and cell in {None, submission.cell}):
                continue
            submission.wait_for_output()
            if done:
                self._submissions.remove(submission)
            if submission.has_report and not submission.refused and submission.update():
                reports.append(self._merge(submission, self._cell if cell is None else cell))
        if reports:
            self.last = reports[-1]
        return reports

    def _merge(self, submission: Submission, cell: int) -> Ranks:
        self._join_new_engines()
        results = tuple(
            engine_result(number, reply, self.origins, self.notes)
            for number, reply in sorted(submission.replies.items())
            if self._is_selected(number)
        )
        for result in results:  # an engine that was busy has joined; one whose CUDA has started knows its devices
            if result.report is not None and result.origin is not None:
                self.origins[int(result.name)] = result.origin
                self.notes.pop(int(result.name), None)
        return Ranks(results, "engine", code=code_label(submission.code) if submission.cell != cell else "")

    def _join_new_engines(self) -> None:
        new = [number for number in self.numbers if number not in self.origins and number not in self.notes]
        if new and self._original_send is not None:
            self._join(new, timeout=5)

    def _pre_run_cell(self, info: Any) -> None:
        """Remember the outermost cell: a nested one, as of ``%%px --local``, is part of it."""
        if self._outer_cell is None or self._outer_cell() is None:
            self._outer_cell = weakref.ref(info)

    def _is_outermost(self, result: Any) -> bool:
        """Whether the outermost cell has finished. IPython may report that with another or no ExecutionInfo."""
        outer = None if self._outer_cell is None else self._outer_cell()
        info = getattr(result, "info", None)
        return outer is None or info in {None, outer} or info.raw_cell == outer.raw_cell

    def _post_run_cell(self, result: Any) -> None:
        if not self._is_outermost(result):
            return
        cell, self._outer_cell = self._cell, None
        self._cell += 1
        failed = result is not None and not result.success
        try:
            reports = self.collect(partly=failed, cell=cell)
        except Exception as error:  # never replace the result of the user's cell
            print(f"ipygpumem: no report of the engines: {first_line(error)}")  # noqa: T201 (in place of the report)
            return
        settings = self._shell.magics_manager.registry.get("GPUMem")
        for ranks in reports:
            if _should_show(ranks, settings):
                self.show(ranks)

    def show(self, ranks: Ranks) -> None:
        """Display a merged report in the notebook; without a notebook, print it."""
        tables = ranks_tables(ranks.members, ranks.what, code=ranks.code)
        if self._shell is None:
            print(text_tables(tables))  # noqa: T201 (its purpose)
            return
        self._shell.display_pub.publish(data={"text/plain": text_tables(tables), "text/html": html_tables(tables)})

    def __str__(self) -> str:
        return status_text(self)

    def __repr__(self) -> str:
        return f"<{str(self).splitlines()[0]}>"


def _should_show(ranks: Ranks, settings: Any) -> bool:
    """Whether to show a merged report, by the settings that apply to the notebook's own reports."""
    when = "changed" if settings is None else settings.report
    threshold = MIB if settings is None else settings.min_change
    if when != "changed":
        return bool(when == "always")
    return any(
        result.report is None
        or bool(result.peaks)
        or any(device.moved(threshold) for device in result.report.devices.values())
        or (not result.report.devices and abs(result.report.host.held or 0) >= threshold)
        for result in ranks.members
    )


_active: list[Engines] = []


def active() -> Engines | None:
    """The monitored engines; None if there are none."""
    return _active[0] if _active else None


def enable(target: Any, *, timeout: float = 60) -> Engines:
    """Load ipygpumem on every engine, so that each ``%%px`` cell gets one merged report.

    This includes cells under ``%autopx``, but not code sent through a broadcast view, which does not reveal the engine
    that a reply comes from.

    Args:
        target: An ``ipyparallel.Client``, or a direct view of some of its engines. With a client, engines that start
            later join as well.
        timeout: Seconds to wait for busy engines.

    Returns:
        The engines. Printing them shows which are monitored, and why others are not. In a script, `Engines.collect`
        returns the merged reports.

    Raises:
        OptionError: ipyparallel is not installed, the target is neither a client nor a view, or it has no engines.
    """
    disable()
    ipython = sys.modules.get("IPython")
    engines = Engines(target, None if ipython is None else ipython.get_ipython())
    engines.start(timeout)
    _active.append(engines)
    return engines


def disable() -> None:
    """Stop monitoring engines, if there are any."""
    while _active:
        _active.pop().stop()
