"""The options of a recording, which ``%%gpumem``, ``%gpumem STATEMENT`` and ``%gpumem record start`` share."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.features.commands.command import Option, positive
from ipygpumem.measurement.allocation_history import HistoryOptions

if TYPE_CHECKING:
    import argparse

__all__ = ["RECORDING", "history_options"]


def _key_value(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise OptionError(f"must be KEY=VALUE, not {text!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


RECORDING = (
    Option(
        ("--stacks",),
        "{python,all,none}",
        "stacks to record: python (default), all (C++ too, slow to save), none",
        choices=("python", "all", "none"),
    ),
    Option(("--max-entries",), "N", "maximum number of events per device (default 1000000)", type=positive),
    Option(
        ("--history",),
        "KEY=VALUE",
        "another option of torch's _record_memory_history, such as compile_context=True; may be repeated",
        many=True,
        type=_key_value,
    ),
)


def history_options(arguments: argparse.Namespace) -> HistoryOptions:
    """How to record, from parsed arguments."""
    return HistoryOptions(
        stacks=arguments.stacks or "python",
        max_entries=arguments.max_entries or 1_000_000,
        extra=dict(arguments.history),
    )
