"""The command ``whatif`` of ``%gpumem`` and of the shell."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.tables import Table, TableRepr
from ipygpumem.features.commands.command import HELP, Command, Notebook, Option, byte_count
from ipygpumem.features.commands.output import print_json, print_lines, progress

if TYPE_CHECKING:
    from ipygpumem.snapshot.replay.settings_comparison import SettingsComparison


class _ComparisonTables(TableRepr):
    def __init__(self, result: SettingsComparison) -> None:
        self._result = result

    def tables(self) -> list[Table]:
        from ipygpumem.features.whatif.table import blockers_table, comparison_table

        blockers = self._result.blockers
        tables = [comparison_table(self._result), *([] if blockers is None else [blockers_table(blockers)])]
        return [table for table in tables if table.rows or table.notes]


def _settings(text: str) -> list[str]:
    from ipygpumem.snapshot.replay.settings import AllocatorSettings

    AllocatorSettings.parse(text)
    return [text]


def _read(arguments: argparse.Namespace, file: str) -> SettingsComparison:
    from ipygpumem.snapshot import Snapshot
    from ipygpumem.snapshot.replay.settings_comparison import compare_settings

    snapshot = Snapshot.load(file)
    return compare_settings(snapshot, arguments.device, arguments.set, arguments.capacity)


def _magic(notebook: Notebook, arguments: argparse.Namespace) -> Any:
    file = os.path.expanduser(notebook.expand(arguments.file))  # noqa: PTH111 (as in the command view)
    notebook.claim_cell()
    result = _read(arguments, file)
    if arguments.json:
        print_json({"file": file, **result.to_dict()})
    else:
        notebook.show_object(_ComparisonTables(result))


def _shell(arguments: argparse.Namespace) -> int:
    with progress(f"reading {arguments.file}"):
        result = _read(arguments, arguments.file)
    if arguments.json:
        print_json({"file": arguments.file, **result.to_dict()})
    else:
        print_lines(str(_ComparisonTables(result)))
    return 0


def _index(text: str) -> int:
    if not text.isdecimal() or not text.isascii():
        raise OptionError(f"the device index must be an integer, but got {text!r}")
    return int(text[:9])


WHATIF = Command(
    "whatif",
    "replay a recording with other allocator settings, to find settings that save memory",
    (
        Option(("file",), "FILE", "snapshot file (pickle or JSON, optionally compressed: .gz, .xz)", is_path=True),
        Option(
            ("--set",),
            "SETTINGS",
            "settings to try, such as expandable_segments:True,max_split_size_mb:128; can be repeated",
            accepts_many=True,
            type=_settings,
        ),
        Option(
            ("--capacity",),
            "SIZE",
            "show which settings are enough if only this amount of memory is available to PyTorch, such as 23GiB",
            type=byte_count,
        ),
        Option(
            ("--device",),
            "N",
            "device index (default: the device that ran out of memory, otherwise the one with the highest peak)",
            type=_index,
        ),
        Option(("--json",), None, "print the result as JSON", only_interface="magic"),
        HELP,
    ),
    magic=_magic,
    shell=_shell,
)
