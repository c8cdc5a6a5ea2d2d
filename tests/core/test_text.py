"""Text from files that is safe to print or to open in a spreadsheet."""

from __future__ import annotations

import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.core.tables import Table, TableRow, html_tables, text_tables
from ipygpumem.core.text import csv_text, printable

UNSAFE = "\x00\x07\n\x1b[2J\x7f\x85\x9b\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ud800\ufeff"


def unsafe_characters(text):
    """Return the characters of a text that may change the state of a terminal or the order of the text."""
    return sorted({character for character in text if character in UNSAFE.replace("[2J", "") and character != "\n"})


def test_unsafe_characters_are_replaced():
    assert printable("a\tb é 中") == "a\tb é 中"
    assert printable(UNSAFE).replace("[2J", "") == "?" * (len(UNSAFE) - 3)


def test_errors_are_one_printable_line():
    assert str(OptionError("a\r\nb\u2028c\x1b[2J\u202e")) == "a b c?[2J?"


def test_errors_are_short():
    """The file name and the reason, which are at the end of a message, are kept."""
    name = "n" * 250 + ".pickle"
    for directory in ("d" * 3000, "/".join(["directory"] * 400), " ".join(["word"] * 800)):
        text = str(OptionError(f"%gpumem view: {directory}/{name}: No such file or directory"))
        assert len(text) <= 1000
        assert text.startswith("%gpumem view: ")
        assert text.endswith(f"{name}: No such file or directory")
    for text in ("x" * 500, " ".join(["word"] * 200)):
        assert str(OptionError(text)) == text


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@x", "\t=1", " =1", "\r\n=1", "\uff1d1", "\u202e=1", "\u200b=1", '"=1']
)
def test_formulas_are_escaped_in_csv(text):
    escaped = csv_text(text)
    assert escaped.startswith("'")
    assert not unsafe_characters(escaped)
    assert not {"\t", "\r", "\n"} & set(escaped)
    assert csv_text(f"a; b;{text}") == f"a; b;{escaped}", "spreadsheets may split cells at semicolons"


def test_tables_contain_no_unsafe_characters():
    row = TableRow(f"label{UNSAFE}\t", ("1",), 0, note=f"\tnote{UNSAFE}")
    table = Table(f"title{UNSAFE}\t", ("bytes",), (row,), notes=(f"end{UNSAFE}\t",))
    for text in (text_tables([table]), html_tables([table])):
        assert "\t" not in text
        assert "label????[2J" in text
        assert unsafe_characters(text) == []
    assert len(text_tables([table]).splitlines()) == 4


def test_long_names_do_not_widen_all_rows():
    """The size of a table must not be proportional to the product of the longest name and the number of rows."""
    rows = [TableRow("x" * 100_000, ("y" * 100_000,), 0), *(TableRow("short", ("1",), 0) for _ in range(1000))]
    for text in (text_tables([Table("t", ("c",), tuple(rows))]), html_tables([Table("t", ("c",), tuple(rows))])):
        assert len(text) < 600_000
        assert "x…" in text and "y…" in text


def test_numbers_do_not_determine_the_size_of_tables():
    """Reports that are read from files can contain any numbers."""
    rows = [TableRow("large", ("1",), 50_000, bar=5e3, light_bar=9e3), TableRow("small", ("1",), -5, bar=-1.0)]
    for render in (text_tables, html_tables):
        assert len(render([Table("t", ("c",), tuple(rows))])) < 3000
    assert "large" in text_tables([Table("t", ("c",), tuple(rows))])
    assert "width:96px" in html_tables([Table("t", ("c",), tuple(rows))])
