"""``%gpumem record``: one allocation history across cells; ``%gpumem view``: snapshots in the viewer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError, RecordingError
from ipygpumem.features.commands.command import HELP, Command, Option
from ipygpumem.features.recordings.options import RECORDING, history_options
from ipygpumem.features.report.notes import recording_text

if TYPE_CHECKING:
    import argparse

    from ipygpumem.features.commands.notebook import Notebook

__all__ = ["RECORD", "VIEW"]


def _start(notebook: Notebook, arguments: argparse.Namespace) -> None:
    notebook.cells.ooms.history.pause()
    notebook.print(f"ipygpumem: {notebook.record.start(history_options(arguments))}")


def _save(notebook: Notebook, arguments: argparse.Namespace) -> None:
    facts = notebook.record.save(notebook.output_path(arguments.path), notebook.cells.numbers.known())
    if facts.path is None:
        raise RecordingError(facts.error)
    notebook.print(f"ipygpumem: {recording_text(facts)}")


def _stop(notebook: Notebook, arguments: argparse.Namespace) -> None:  # noqa: ARG001 (has no options)
    notebook.print(f"ipygpumem: {notebook.record.stop()}")


def _view(notebook: Notebook, arguments: argparse.Namespace) -> None:
    from ipygpumem.viewer.page import MAX_SNAPSHOTS

    if not 1 <= len(arguments.files) <= MAX_SNAPSHOTS:
        raise OptionError(f"name one snapshot, or up to {MAX_SNAPSHOTS} to show side by side")
    notebook.cells.claim()
    # Path.expanduser raises for an unknown user; here that is a missing file
    notebook.show_snapshots([os.path.expanduser(notebook.expand(file)) for file in arguments.files])  # noqa: PTH111


RECORD = Command(
    "record",
    "record across cells: start [OPTIONS], save PATH, stop",
    subcommands=(
        Command("start", "start recording", (*RECORDING, HELP), _start),
        Command("save", "save what was recorded", (Option(("path",), "PATH", "the file", path=True), HELP), _save),
        Command("stop", "stop recording", (HELP,), _stop),
    ),
)
VIEW = Command(
    "view",
    "show a snapshot in the viewer, or several side by side",
    (Option(("files",), "FILE", "a snapshot; more to compare with", many=True, path=True), HELP),
    magic=_view,
)
