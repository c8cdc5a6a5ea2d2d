"""Messages that quote arguments of a magic are one line without control characters."""

from __future__ import annotations

import pytest

from core.test_text import unsafe_characters

pytestmark = pytest.mark.ipython

UNSAFE = "a\x1b[2J\u202e\u2066\x9b\x07b"


CELLS = (
    "%gpumem history {}",
    "%gpumem history --by {}",
    "%gpumem compare {} {}",
    "%gpumem view {}",
    "%gpumem ranks {}",
    "%gpumem who {}",
    "%gpumem who --{}",
    "%gpumem free {}",
    "%gpumem --device {} x = 1",
    "%gpumem --limit-held {} x = 1",
    "%gpumem record {}",
    "%gpumem {}",
    "%%gpumem --snapshot missing/{}.pickle\n1",
    "%%gpumem --modules {}\n1",
    "%%gpumem --trace missing/{}.json\n1",
    "%%gpumem --{}\n1",
    "%%gpumem -o {}\n1",
)


def test_messages(gpu_notebook):
    for cell in CELLS:
        result = gpu_notebook.run(cell.replace("{}", UNSAFE))
        output = "".join([str(result.error or ""), result.stdout, result.stderr, *map(str, result.texts)])
        assert output, cell
        assert unsafe_characters(output) == [], cell
        assert result.error is None or len(str(result.error).splitlines()) == 1
