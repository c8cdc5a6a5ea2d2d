"""``%gpumem record``, ``%gpumem view``, and the recording options, which ``%%gpumem`` also supports."""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
from typing import Any

from ipygpumem.core.errors import OptionError, RecordingError
from ipygpumem.features.commands.command import HELP, Command, Notebook, Option, positive
from ipygpumem.measurement.allocation_history import RecordingOptions


def _key_value(text: str) -> list[tuple[str, Any]]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise OptionError(f"the value must have the form KEY=VALUE, but got {text!r}")
    with contextlib.suppress(ValueError, SyntaxError):  # not a Python literal
        return [(key, ast.literal_eval(value))]
    return [(key, value)]


RECORDING = (
    Option(
        ("--stacks",),
        "{python,all,none}",
        "stacks to record: python (default), all (Python and C++; slow to save), none",
        choices=("python", "all", "none"),
    ),
    Option(("--max-entries",), "N", "maximum number of events per device (default: 1,000,000)", type=positive),
    Option(
        ("--history",),
        "KEY=VALUE",
        "another argument of torch.cuda.memory._record_memory_history, such as compile_context=True; can be repeated",
        accepts_many=True,
        type=_key_value,
    ),
)


def recording_options(arguments: argparse.Namespace) -> RecordingOptions:
    extra = dict(arguments.history)
    return RecordingOptions(arguments.stacks or "python", arguments.max_entries or 1_000_000, extra)


def _start(notebook: Notebook, arguments: argparse.Namespace) -> None:
    notebook.cells.ooms.recording.pause()
    notebook.print(f"ipygpumem: {notebook.record.start(recording_options(arguments))}")


def _save(notebook: Notebook, arguments: argparse.Namespace) -> None:
    info = notebook.record.save(notebook.output_path(arguments.path), notebook.cells.numbers.by_filename())
    if info.path is None:
        raise RecordingError(info.error)
    notebook.print(f"ipygpumem: {info.sentence()}")


def _stop(notebook: Notebook, arguments: argparse.Namespace) -> None:  # noqa: ARG001 (has no options)
    if notebook.record.recorder is None:
        raise RecordingError("no recording is running")
    notebook.record.close()
    notebook.print("ipygpumem: recording stopped")


def _settings(text: str) -> str:
    from ipygpumem.snapshot.replay.settings import AllocatorSettings

    AllocatorSettings.parse(text)
    return text


def _view(notebook: Notebook, arguments: argparse.Namespace) -> None:
    from ipygpumem.viewer.write import check_snapshot_count

    check_snapshot_count(len(arguments.files))
    notebook.claim_cell()
    # unlike Path.expanduser, this does not raise for an unknown user; the file is then reported as missing
    files = [os.path.expanduser(notebook.expand(file)) for file in arguments.files]  # noqa: PTH111
    notebook.show_snapshots(files, arguments.set)


RECORD = Command(
    "record",
    "record the allocation history across cells: start [OPTIONS], save PATH, stop",
    subcommands=(
        Command("start", "start recording", (*RECORDING, HELP), _start),
        Command("save", "save the recording", (Option(("path",), "PATH", "snapshot file", is_path=True), HELP), _save),
        Command("stop", "stop recording", (HELP,), _stop),
    ),
)
VIEW = Command(
    "view",
    "open snapshots in the viewer, up to eight side by side",
    (
        Option(("files",), "FILE", "snapshot file (pickle, JSON, .gz or .xz)", accepts_many=True, is_path=True),
        Option(
            ("--set",),
            "SETTINGS",
            "also show a replay with these allocator settings, such as max_split_size_mb:64",
            type=_settings,
        ),
        HELP,
    ),
    magic=_view,
)
