"""``%gpumem record start | save | stop``: one allocation history across cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ipygpumem.commands.command import Command, Verb
from ipygpumem.features.report.notes import recording_text
from ipygpumem.jupyter.options import RECORD, Option, history_options, parse, split_words
from ipygpumem.jupyter.paths import expanded

if TYPE_CHECKING:
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["RECORD_COMMAND"]


def _run(magics: GPUMem, rest: str) -> None:
    verb, _, words = rest.partition(" ")
    if verb == "start":
        asked = parse("%gpumem record start", RECORD, words)
        magics.cells.ooms.history.pause()
        text = magics.record.start(history_options(asked))
    elif verb == "save":
        text = _save(magics, words.strip())
    elif verb == "stop" and not words.strip():
        text = magics.record.stop()
    else:
        raise UsageError("%gpumem record start [OPTIONS] | save PATH | stop")
    print(f"ipygpumem: {text}")  # noqa: T201 (its purpose)


def _save(magics: GPUMem, words: str) -> str:
    paths = split_words("%gpumem record save", words)
    if len(paths) != 1:
        raise UsageError("%gpumem record save takes one path")
    facts = magics.record.save(expanded(magics.shell, paths[0]), magics.cells.numbers.known())
    if facts.path is None:
        raise UsageError(f"%gpumem record: {facts.error}")
    return recording_text(facts)


_PATH = Option(("path",), "PATH", "where to write the snapshot", path=True)

RECORD_COMMAND = Command(
    "record",
    "record across cells: start [OPTIONS], save PATH, stop",
    _run,
    verbs=(Verb("start", RECORD), Verb("save", (_PATH,)), Verb("stop")),
)
