from __future__ import annotations

import pytest

from ipygpumem.measurement.code_label import WIDTH, first_code


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("x = 1\ny = 2", "x = 1"),
        ("\n  # why\n\n  for i in x:\n    pass", "for i in x:"),
        ("%%gpumem --snapshot a\nx = 1", "x = 1"),
        ("%%time\n%%gpumem\n# c\nx", "x"),
        ("%load_ext ipygpumem", "%load_ext ipygpumem"),
        ("# only a comment", "# only a comment"),
        ("%%bash", "%%bash"),
        ("x\t=\x1b[2J1", "x =?[2J1"),
        ("", ""),
        ("\n \n", ""),
    ],
)
def test_the_first_line_that_does_something(text, first):
    assert first_code(text) == first


def test_a_long_line_is_clipped():
    assert first_code("x" * WIDTH) == "x" * WIDTH
    found = first_code("x" * (WIDTH + 1))
    assert (len(found), found[-2:]) == (WIDTH, "x…")
    assert first_code("x" * (1 << 24))[-1] == "…"
