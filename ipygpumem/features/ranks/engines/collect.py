"""Monitored engines of an ipyparallel cluster, and the merged reports of the cells that they run."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.report import code_label
from ipygpumem.core.text import printable
from ipygpumem.core.units import MIB, many
from ipygpumem.core.version import __version__
from ipygpumem.features.ranks.collect import Ranks
from ipygpumem.features.ranks.engines.submission import EngineSubmission, engine_identity, engine_result
from ipygpumem.features.ranks.model import RankInfo
from ipygpumem.features.ranks.table import join_names

_JOIN = "from ipygpumem.jupyter.engine import join as _gpumem_join; _gpumem_join({}); del _gpumem_join"
_LEAVE = "from ipygpumem.jupyter.engine import leave as _gpumem_leave; _gpumem_leave(); del _gpumem_leave"
_MAX_SUBMISSIONS = 100


class Engines:
    """The monitored engines of an ``ipyparallel.Client``. `enable` creates an instance.

    Attributes:
        client: The ``ipyparallel.Client``.
        view: Direct view of the engines that `enable` selected.
        last: The latest merged report; None before the first report.
        origins: Identity of each monitored engine, by engine ID.
        notes: Reasons why engines are not monitored, by engine ID.
    """

    def __init__(self, client: Any, targets: list[int] | None, shell: Any = None) -> None:
        self.client = client
        self._targets = targets
        self.view = client.direct_view("all" if targets is None else targets)
        self.last: Ranks | None = None
        self.origins: dict[int, RankInfo] = {}
        self.notes: dict[int, str] = {}
        self._shell = shell
        self._submissions: list[EngineSubmission] = []
        self._cell = 0
        self._open_cells = 0
        self._attached = False

    def _is_selected(self, number: int) -> bool:
        return self._targets is None or number in self._targets

    @property
    def numbers(self) -> list[int]:
        """IDs of the running engines that belong to the client or the view passed to `enable`."""
        return [] if self.closed else [number for number in self.client.ids if self._is_selected(number)]

    @property
    def joined(self) -> list[int]:
        """IDs of the monitored engines that are running."""
        return [number for number in self.numbers if number in self.origins]

    @property
    def lost(self) -> list[int]:
        """IDs of the engines that were monitored and are no longer running."""
        return [number for number in sorted(self.origins.keys() - set(self.client.ids)) if self._is_selected(number)]

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return bool(getattr(self.client, "_closed", False))

    @property
    def gone(self) -> str:
        """Reason why no engine is available; empty if at least one engine is available."""
        if self.closed:
            return "the client is closed: use %gpumem engines CLIENT with an open client, or %gpumem engines off"
        return "" if self.numbers else "no engines are running: use %gpumem engines CLIENT once engines have started"

    def start(self, timeout: float = 60) -> None:
        """Start monitoring cells. Wait at most ``timeout`` seconds for the engines to reply.

        Raises:
            OptionError: The client has no engines.
        """
        if not self.numbers:
            raise OptionError("this client has no engines: start a cluster, and wait until its engines are running")
        self._join(self.numbers, timeout)
        self._attached = True
        self.client.send_execute_request = self._send_execute_request
        if self._shell is not None:
            self._shell.events.register("pre_run_cell", self._pre_run_cell)
            self._shell.events.register("post_run_cell", self._post_run_cell)

    def stop(self, timeout: float = 10) -> None:
        """Stop monitoring on the engines, unload the extension where `start` loaded it, and remove the hooks."""
        self.detach()
        with contextlib.suppress(Exception):  # the client may be closed, or the hub may have stopped
            self._execute(dict.fromkeys(self.joined, _LEAVE), timeout)

    def detach(self) -> None:
        """Remove the hooks from the client and from IPython without contacting the engines."""
        if self._attached:
            del self.client.send_execute_request
            self._attached = False
        if self._shell is not None:
            for event, callback in (("pre_run_cell", self._pre_run_cell), ("post_run_cell", self._post_run_cell)):
                with contextlib.suppress(ValueError):
                    self._shell.events.unregister(event, callback)

    def _execute(self, code: dict[int, str], timeout: float) -> dict[int, Any]:
        end = time.monotonic() + timeout
        replies = {number: self.client[number].execute(text, silent=True, block=False) for number, text in code.items()}
        for reply in replies.values():
            reply.wait(max(end - time.monotonic(), 0))
        return replies

    def _join(self, numbers: list[int], timeout: float) -> None:
        for number, reply in self._execute({number: _JOIN.format(number) for number in numbers}, timeout).items():
            outcome = engine_identity(reply)
            if isinstance(outcome, str):
                self.notes[number] = outcome
            else:
                self.origins[number] = outcome

    def _send_execute_request(self, socket: Any, code: str, *arguments: Any, **options: Any) -> Any:
        reply = type(self.client).send_execute_request(self.client, socket, code, *arguments, **options)
        engine_ids = {uuid.encode(): engine_id for engine_id, uuid in self.client._engines.items()}
        engine_id = engine_ids.get(options.get("ident"))
        if engine_id is not None and not options.get("silent", True):
            submissions = self._submissions
            if not submissions or submissions[-1].code != code or engine_id in submissions[-1].replies:
                submissions.append(EngineSubmission(code, self._cell))
                del submissions[:-_MAX_SUBMISSIONS]
            submissions[-1].replies[engine_id] = reply
        return reply

    @property
    def running_messages(self) -> list[str]:
        """One message for each submission that is still running on some engines."""
        return [
            f"still running on {many(len(ids), 'engine')} ({', '.join(map(str, ids))}): {code_label(submission.code)}"
            for submission in self._submissions
            if (ids := submission.running)
        ]

    def collect(self, *, include_partial: bool = False, cell: int | None = None) -> list[Ranks]:
        """Return the merged reports of cells that have finished since the last call. Each report is returned once.

        Args:
            include_partial: Whether to include partial reports of cells that only some engines have finished.
            cell: Index of a notebook cell. If given, partial reports are included only if this cell submitted the code.
        """
        reports = []
        for submission in list(self._submissions):
            done = not submission.running
            if not done and not (include_partial and cell in {None, submission.cell}):
                continue
            submission.wait_for_output()
            if done:
                self._submissions.remove(submission)
            if submission.take_reports():
                reports.append(self._merge(submission, self._cell if cell is None else cell))
        if reports:
            self.last = reports[-1]
        return reports

    def _merge(self, submission: EngineSubmission, cell: int) -> Ranks:
        new_engines = [number for number in self.numbers if number not in self.origins and number not in self.notes]
        if new_engines and self._attached:
            self._join(new_engines, timeout=5)
        results = tuple(
            engine_result(number, reply, self.origins, self.notes)
            for number, reply in sorted(submission.replies.items())
            if self._is_selected(number)
        )
        for result in results:  # busy engines may have joined, and devices are known after CUDA has been initialized
            if result.report is not None and result.origin is not None:
                self.origins[int(result.name)] = result.origin
                self.notes.pop(int(result.name), None)
        return Ranks(results, "engine", code=code_label(submission.code) if submission.cell != cell else "")

    def _pre_run_cell(self, info: Any) -> None:  # noqa: ARG002 (IPython's signature)
        self._open_cells += 1

    def _post_run_cell(self, result: Any) -> None:
        self._open_cells = max(self._open_cells - 1, 0)  # the cell that ran %gpumem engines was not counted
        if self._open_cells:  # a nested cell, such as that of %%px --local
            return
        cell = self._cell
        self._cell += 1
        try:
            reports = self.collect(include_partial=result is not None and not result.success, cell=cell)
        except Exception as error:  # never replace the result of the user's cell
            print(f"ipygpumem: cannot merge the engines' reports: {first_line(error)}")  # noqa: T201 (instead of a report)
            return
        settings = self._shell.magics_manager.registry.get("GPUMem")
        for ranks in reports:
            if _should_show(ranks, settings):
                self.show(ranks)

    def show(self, ranks: Ranks) -> None:
        """Display a merged report in the notebook, or print it if IPython is not running."""
        if self._shell is None:
            print(ranks)  # noqa: T201 (its purpose)
        else:
            self._shell.display_pub.publish({"text/plain": str(ranks), "text/html": ranks._repr_html_()})

    def __str__(self) -> str:
        if self.closed:
            return self.gone
        origins = self.origins
        hosts = {info.host for info in origins.values()}
        devices = {(info.host, device.uuid) for info in origins.values() for device in info.devices if device.uuid}
        gpus = f", {many(len(devices), 'GPU')}" if devices else ""
        lines = [f"{many(len(self.joined), 'engine')} monitored on {many(len(hosts), 'host')}{gpus}"]
        lines += [f"engine {number} is not monitored: {note}" for number, note in sorted(self.notes.items())]
        if self.lost:
            lines.append(f"engines no longer running: {join_names([str(number) for number in self.lost])}")
        versions = {number: info.version for number, info in origins.items() if info.version != __version__}
        if versions:
            differing = ", ".join(f"engine {number} uses {version}" for number, version in versions.items())
            lines.append(f"this notebook uses ipygpumem {__version__}, but {differing}")
        return "\n".join(map(printable, lines))

    def __repr__(self) -> str:
        return f"<{str(self).splitlines()[0]}>"


def _should_show(ranks: Ranks, settings: Any) -> bool:
    when = "changed" if settings is None else settings.report
    threshold = MIB if settings is None else settings.min_change
    if when != "changed":
        return bool(when == "always")
    return any(
        result.report is None
        or bool(result.peaks)
        or any(device.has_changed(threshold) for device in result.report.devices.values())
        or (not result.report.devices and abs(result.report.host.held or 0) >= threshold)
        for result in ranks.members
    )
