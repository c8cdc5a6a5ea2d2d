"""The notebook's side of a cluster: who is under watch, and the merged report below each ``%%px`` cell."""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

from ipygpumem.core.code_label import first_code
from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.units import MIB
from ipygpumem.display.html import html_tables
from ipygpumem.display.table import text_tables
from ipygpumem.features.ranks.collect import Ranks
from ipygpumem.features.ranks.engines.cluster_status import roll
from ipygpumem.features.ranks.engines.handshake import client_of, first_word, wait, why
from ipygpumem.features.ranks.engines.runs import Run, member_of, settle
from ipygpumem.features.ranks.table import ranks_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.features.ranks.model import RankInfo, RankResult

__all__ = ["Engines", "active", "disable", "enable"]

_JOIN = "from ipygpumem.features.ranks.engines.engine import join as _gpumem_join; _gpumem_join({}); del _gpumem_join"
_LEAVE = (
    "from ipygpumem.features.ranks.engines.engine import leave as _gpumem_leave; _gpumem_leave(); del _gpumem_leave"
)
_MOST_RUNS = 100


class Engines:
    """The engines of a client under watch. Made by `enable`.

    Attributes:
        last: The merged report of the newest run; None before the first.
        origins: What each engine told of itself, by its number.
        notes: Why an engine is not under watch, by its number.
    """

    def __init__(self, target: Any, shell: Any = None) -> None:
        self.client, self._targets = client_of(target)
        self.view = self.client.direct_view(self._targets if self._targets is not None else "all")
        self.last: Ranks | None = None
        self.origins: dict[int, RankInfo] = {}
        self.notes: dict[int, str] = {}
        self._shell = shell
        self._runs: list[Run] = []
        self._cell = 0
        self._outer: weakref.ref[Any] | None = None
        self._send: Callable[..., Any] | None = None

    @property
    def numbers(self) -> list[int]:
        """The engines that are there and meant."""
        there = list(self.client.ids)
        if self.closed:
            return []
        return there if self._targets is None else [number for number in self._targets if number in there]

    @property
    def lost(self) -> list[int]:
        """Engines that were under watch, and are no longer there."""
        return [number for number in sorted(self.origins.keys() - set(self.client.ids)) if self._meant(number)]

    def _meant(self, number: int) -> bool:
        return self._targets is None or number in self._targets

    def start(self, timeout: float = 60) -> None:
        """Let the engines join, and watch what is sent to them from now on.

        Raises:
            OptionError: There is no engine.
        """
        if not self.numbers:
            raise OptionError("this client has no engines: start a cluster, and wait for its engines")
        self._join(self.numbers, timeout)
        self._send = self.client.send_execute_request
        self.client.send_execute_request = self._watching(self._send)
        if self._shell is not None:
            self._shell.events.register("pre_run_cell", self._before)
            self._shell.events.register("post_run_cell", self._after)

    def stop(self, timeout: float = 10) -> None:
        """Let the engines go, and leave the client as it was."""
        self.detach()
        with contextlib.suppress(Exception):  # a client that is closed, a hub that is gone: there is nobody to let go
            wait([self.client[one].execute(_LEAVE, silent=True, block=False) for one in self.joined], timeout)

    def detach(self) -> None:
        """Stop watching here; the engines are left as they are."""
        if self._send is not None:
            del self.client.send_execute_request
            self._send = None
        if self._shell is not None:
            for event, callback in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
                with contextlib.suppress(ValueError):
                    self._shell.events.unregister(event, callback)

    @property
    def joined(self) -> list[int]:
        """The engines that are under watch."""
        return [number for number in self.numbers if number in self.origins]

    def _join(self, numbers: list[int], timeout: float) -> None:
        asked = {
            number: self.client[number].execute(_JOIN.format(number), silent=True, block=False) for number in numbers
        }
        wait(asked.values(), timeout)
        for number, answer in asked.items():
            self.notes.pop(number, None)
            if not answer.done():
                self.notes[number] = "busy: it joins when it is free"
                continue
            answer.wait_for_output(1)
            try:
                answer.get(0)
                member = first_word(answer)
            except Exception as error:
                self.notes[number] = why(error)
                continue
            if member.origin is not None:
                self.origins[number] = member.origin

    def _watching(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def watched(socket: Any, code: str, *arguments: Any, **options: Any) -> Any:
            reply = send(socket, code, *arguments, **options)
            silent, ident = options.get("silent", True), options.get("ident")
            if not silent and ident is not None:
                number = next((one for one, uuid in self.client._engines.items() if uuid.encode() == ident), None)
                if number is not None:
                    self._sent(code, number, reply)
            return reply

        return watched

    def _sent(self, code: str, number: int, reply: Any) -> None:
        runs = self._runs
        if not runs or runs[-1].code != code or number in runs[-1].replies:
            runs.append(Run(code, self._cell))
            del runs[:-_MOST_RUNS]
        runs[-1].replies[number] = reply

    @property
    def waiting(self) -> list[str]:
        """A sentence for each run that is still going on somewhere."""
        found = []
        for run in self._runs:
            late = [str(number) for number, reply in sorted(run.replies.items()) if not reply.done()]
            if late:
                found.append(f"still running on engine {', '.join(late)}: {first_code(run.code)}")
        return found

    def collect(self, *, partly: bool = False, cell: int | None = None) -> list[Ranks]:
        """The merged reports of runs that have ended since the last time; nothing is told twice.

        Args:
            partly: Also of runs that are still going on somewhere, where another engine has ended meanwhile.
            cell: Of these only the runs that this cell of the notebook has sent, the one that ends; None for all.
        """
        found = []
        for run in list(self._runs):
            done = run.done
            if not done and not (partly and cell in {None, run.cell}):
                continue
            settle(run)
            if done:
                self._runs.remove(run)
            if run.reported and not run.refused and run.news():
                self._late()
                members = tuple(
                    member_of(number, reply, self.origins, self.notes)
                    for number, reply in sorted(run.replies.items())
                    if self._meant(number)
                )
                self._heard(members)
                late = run.cell != (self._cell if cell is None else cell)
                found.append(Ranks(members, "engine", code=first_code(run.code) if late else ""))
        if found:
            self.last = found[-1]
        return found

    def _heard(self, members: tuple[RankResult, ...]) -> None:
        """An engine that was busy has joined by now; one whose CUDA has started knows its cards."""
        for member in members:
            if member.report is not None and member.origin is not None:
                self.origins[int(member.name)] = member.origin
                self.notes.pop(int(member.name), None)

    def _late(self) -> None:
        """Engines that came after the others are asked in."""
        new = [number for number in self.numbers if number not in self.origins and number not in self.notes]
        if new and self._send is not None:
            self._join(new, timeout=5)

    def _before(self, info: Any) -> None:
        """A cell of the notebook begins; one inside another, as of ``%%px --local``, is a part of that."""
        if self._outer is None or self._outer() is None:
            self._outer = weakref.ref(info)

    def _ends(self, result: Any) -> bool:
        """Whether it is the outermost cell that has ended. IPython may tell of its end with other facts, or without."""
        outer = None if self._outer is None else self._outer()
        info = getattr(result, "info", None)
        return outer is None or info in {None, outer} or info.raw_cell == outer.raw_cell

    def _after(self, result: Any) -> None:
        """A cell of the notebook has ended: what the engines sent is shown below it."""
        if not self._ends(result):
            return
        cell, self._outer = self._cell, None
        self._cell += 1
        failed = result is not None and not result.success
        try:
            found = self.collect(partly=failed, cell=cell)
        except Exception as error:  # never in the place of the cell's own outcome
            print(f"ipygpumem: no report of the engines ({first_line(error)})")  # noqa: T201 (where it would stand)
            return
        settings = self._shell.magics_manager.registry.get("GPUMem")
        for ranks in found:
            if _shown(ranks, settings):
                self.show(ranks)

    def show(self, ranks: Ranks) -> None:
        """Display a merged report in the notebook; without one, print it."""
        tables = ranks_tables(ranks.members, ranks.what, code=ranks.code)
        if self._shell is None:
            print(text_tables(tables))  # noqa: T201 (its purpose)
            return
        self._shell.display_pub.publish(data={"text/plain": text_tables(tables), "text/html": html_tables(tables)})

    @property
    def gone(self) -> str:
        """Why no engine is there, in a sentence; empty where one is."""
        if self.closed:
            return "the client is closed: %gpumem engines CLIENT with another one, or %gpumem engines off"
        return "" if self.numbers else "the engines are gone: %gpumem engines CLIENT once others are there"

    @property
    def closed(self) -> bool:
        """Whether the client is: nothing can be sent, and nothing is heard."""
        return bool(getattr(self.client, "_closed", False))

    def __str__(self) -> str:
        return roll(self)

    def __repr__(self) -> str:
        return f"<{str(self).splitlines()[0]}>"


def _shown(ranks: Ranks, settings: Any) -> bool:
    """Whether a merged report is worth a place below the cell: as the notebook's own reports are."""
    when = "changed" if settings is None else settings.report
    least = MIB if settings is None else settings.min_change
    if when != "changed":
        return bool(when == "always")
    return any(
        member.report is None
        or bool(member.peaks)
        or any(device.moved(least) for device in member.report.devices.values())
        or (not member.report.devices and abs(member.report.host.held or 0) >= least)
        for member in ranks.members
    )


_active: list[Engines] = []


def active() -> Engines | None:
    """The engines that are under watch; None without any."""
    return _active[0] if _active else None


def enable(target: Any, *, timeout: float = 60) -> Engines:
    """Load ipygpumem on every engine; ``%%px`` cells then come back with one merged report.

    So do the cells under ``%autopx``. What is sent through a broadcast view comes back without one: it does not tell
    here which engine a reply is to come from.

    Args:
        target: An ``ipyparallel.Client``, or a direct view of some of its engines. With a client, engines that come
            later join, too.
        timeout: Seconds to wait for engines that are busy.

    Returns:
        The engines; ``print`` tells which are under watch, and why others are not. In a script `Engines.collect` gives
        the merged reports.

    Raises:
        OptionError: ipyparallel is not installed, this is no client, or it has no engines.
    """
    import sys

    disable()
    ipython = sys.modules.get("IPython")
    engines = Engines(target, None if ipython is None else ipython.get_ipython())
    engines.start(timeout)
    _active.append(engines)
    return engines


def disable() -> None:
    """Let the engines go; nothing where none are under watch."""
    while _active:
        _active.pop().stop()
