"""Make text from files, paths and names safe to print or to open in a spreadsheet."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_FORMULA = re.compile(r"(^|;)(?=[\s\x22\u00ad\u180e\u200b-\u200d\u2060-\u2064\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""Start of a formula after invisible characters or quotation marks, including full-width signs.

In some languages, ``;`` separates the cells of a CSV file. Because a CSV file contains each quotation mark of a text
twice, the cell after a ``;`` can then start with an empty string in quotation marks.
"""
_LONG_WORD = re.compile(r"\S{501,}")
_MESSAGE = 1000
_LABEL = 100
_CLIPPED = 20


def printable(text: str) -> str:
    """Replace control characters (except tabs), bidirectional controls, line separators and surrogates with ``?``."""
    return _CONTROL.sub("?", text)


def error_line(text: str) -> str:
    """Return the text of an error as one line of at most 1,000 characters, without control characters other than tabs.

    Long words and lines are shortened in the middle, because the file name and the reason are usually at the end.
    """
    line = _LONG_WORD.sub(lambda word: f"{word[0][:100]}…{word[0][-399:]}", printable(" ".join(text.splitlines())))
    return line if len(line) <= _MESSAGE else f"{line[: _MESSAGE // 2]}…{line[1 - _MESSAGE // 2 :]}"


def csv_text(text: str) -> str:
    """Replace control characters, which terminals interpret, and escape spreadsheet formulas."""
    return _FORMULA.sub(r"\1'", _CONTROL.sub(" ", text).replace("\t", " "))


def clip(text: str, width: int = _LABEL) -> str:
    text = text[: _CLIPPED * width]  # avoids processing a long text that is truncated anyway
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= width else line[: width - 1] + "…"
