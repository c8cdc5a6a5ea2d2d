"""``%gpumem ranks DIRECTORY``, and ``{rank}`` in a path."""

from __future__ import annotations

from pathlib import Path

import pytest
from IPython.core.error import UsageError

from ipygpumem.features.ranks.rank_files import FallbackRank
from ipygpumem.measurement.runtime import current

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def run(tmp_path):
    for rank, source in enumerate(("gpt_small", "gpt_small", "resnet50")):
        (tmp_path / f"rank_{rank}.pickle.xz").write_bytes((DATA / f"{source}.pickle.xz").read_bytes())
    return tmp_path


def test_tables(notebook, run):
    notebook.load()
    notebook.shell.user_ns["folder"] = str(run)
    result = notebook.run("%gpumem ranks {folder}")
    assert result.success, result
    assert "rank 2 deviates most; rank 0 is the most typical" in result.text
    assert "<table" in result.displays[0]["text/html"]
    error = notebook.run("%gpumem ranks $folder").error
    assert str(error) == "%gpumem ranks: '$folder' contains $folder: use {folder} to insert the value of the variable"


def test_image_and_viewer(notebook, run):
    notebook.load()
    result = notebook.run(f"%gpumem ranks {run} --plot")
    assert "rank 2 deviates most" in result.displays[0]["text/plain"]
    assert result.displays[1]["image/png"]
    result = notebook.run(f"%gpumem ranks {run} --view")
    assert result.success and any("rank_2.pickle.xz" in text for text in result.texts)


def test_tables_are_shown_if_the_image_fails(notebook, tmp_path):
    notebook.load()
    notebook.run(
        f"import ipygpumem\nwith ipygpumem.measure(rank_reports={str(tmp_path)!r}, rank=0, snapshot=False): pass"
    )
    result = notebook.run(f"%gpumem ranks {tmp_path} --plot")
    assert result.text.startswith("1 rank on ")
    assert isinstance(result.error, UsageError) and "no rank has a snapshot with timestamps" in result.stderr


@pytest.mark.parametrize("line", ["ranks", "ranks a b", "ranks nowhere", "ranks {run} -n 0", "ranks {run} --by color"])
def test_invalid_arguments(notebook, run, line):
    notebook.load()
    result = notebook.run(f"%gpumem {line.replace('{run}', str(run))}")
    assert isinstance(result.error, UsageError) and result.stderr.count("\n") == 1


def test_rank_in_path(notebook):
    from ipygpumem.jupyter.namespace import expand_path

    notebook.load()
    assert isinstance(notebook.run("%gpumem view x_{rank}.pickle").error, UsageError)
    current().state(FallbackRank).rank = 7
    assert expand_path(notebook.shell, "x_{rank}.pickle") == "x_7.pickle"
    notebook.shell.user_ns["rank"] = "mine"
    assert expand_path(notebook.shell, "x_{rank}.pickle") == "x_mine.pickle"
    assert expand_path(notebook.shell, "$no_such$5_{rank}.pickle") == "$no_such$5_mine.pickle"
    notebook.shell.user_ns["rank"] = "a{1 / 0}b"
    assert expand_path(notebook.shell, "x_{rank}") == "x_a{1 / 0}b", "the value of a variable is not expanded again"
