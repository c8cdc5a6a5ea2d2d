from __future__ import annotations

import pytest
from IPython import version_info
from IPython.core.completer import provisionalcompleter

from ipygpumem.jupyter.commands import candidates, matcher

pytestmark = pytest.mark.ipython

CELL = [
    "--collect",
    "--device",
    "--engines",
    "--function",
    "--help",
    "--history",
    "--limit",
    "--limit-held",
    "--limit-host",
    "--limit-outside",
    "--lines",
    "--max-entries",
    "--modules",
    "--outside",
    "--quiet",
    "--snapshot",
    "--stacks",
    "--table",
    "--timeline",
    "--trace",
    "--var",
    "--view",
    "-d",
    "-f",
    "-h",
    "-q",
    "-v",
]

ENGINE_OPTIONS = {"--engines", "--collect"}
"""Options that only ``%%gpumem`` supports."""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%%gpumem --s", ["--snapshot", "--stacks"]),
        ("%%gpumem -q --max", ["--max-entries"]),
        ("%%gpumem ", CELL),
        ("%%gpumem --stacks ", ["all", "none", "python"]),
        ("%%gpumem --stacks p", ["python"]),
        ("%%gpumem --stacks x", None),
        ("%%gpumem --max-entries ", None),
        ("  %gpumem o", ["off", "on"]),
        ("%gpumem r", ["ranks", "record"]),
        ("%gpumem v", ["view"]),
        (
            "%gpumem ",
            [
                "compare",
                "engines",
                "env",
                "explain",
                "fit",
                "free",
                "history",
                "monitor",
                "off",
                "on",
                "processes",
                "ranks",
                "record",
                "view",
                "whatif",
                "who",
            ],
        ),
        ("%gpumem -", [*sorted({*CELL} - ENGINE_OPTIONS), "-o"]),
        ("%gpumem -q --dev", ["--device"]),
        ("%gpumem torch.o", None),
        ("%gpumem x = torch.o", None),
        ("%gpumem record ", ["save", "start", "stop"]),
        ("%gpumem record st", ["start", "stop"]),
        ("%gpumem record start --st", ["--stacks"]),
        ("%gpumem record stop ", ["--help", "-h"]),
        ("%gpumemo", None),
        ("%gpumem", None),
        ("x = %gpumem o", None),
        ("%%gpumem\nx", None),
        ("%%time --s", None),
    ],
)
def test_candidates(line, expected):
    completions = candidates(line)
    assert (sorted(completions) if completions else None) == (expected and sorted(expected))


@pytest.mark.parametrize(
    "line", ["%%gpumem --snapshot ", "%gpumem record save ", "%gpumem -q --snapshot ", "%%gpumem --snapshot="]
)
def test_paths(line, tmp_path, monkeypatch):
    (tmp_path / "one.pickle").touch()
    (tmp_path / "one[1].pickle").touch()
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert candidates(f"{line}on") == ["one.pickle", "one[1].pickle"]
    assert candidates(f"{line}one[") == ["one[1].pickle"]
    assert candidates(f"{line}r") == ["runs/"]


def completions(shell, text):
    """Return the lines after each possible completion of ``text``."""
    with provisionalcompleter():
        completions = shell.Completer.completions(text, len(text))
        return [text[: part.start] + part.text + text[part.end :] for part in completions]


@pytest.mark.skipif(version_info < (8, 6), reason="this version of IPython has no matchers")
def test_completion_by_ipython(cpu_notebook, tmp_path, monkeypatch):
    assert set(completions(cpu_notebook.shell, "%%gpumem --s")) >= {"%%gpumem --snapshot", "%%gpumem --stacks"}
    assert "%gpumem on" in completions(cpu_notebook.shell, "%gpumem o")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one[1].pickle").touch()
    for line, typed in (
        ("%%gpumem --snapshot ", "on"),
        ("%%gpumem --snapshot ", "one["),
        ("%%gpumem -q --snapshot=", "o"),
    ):
        assert f"{line}one[1].pickle" in completions(cpu_notebook.shell, line + typed)
    cpu_notebook.run("%unload_ext ipygpumem")
    assert "%%gpumem --snapshot" not in completions(cpu_notebook.shell, "%%gpumem --s")


@pytest.mark.skipif(version_info < (8, 6), reason="this version of IPython has no matchers")
def test_python_is_completed_in_a_statement(cpu_notebook):
    cpu_notebook.run("some_long_name = 1")
    own_completions, ipython_completions = (
        completions(cpu_notebook.shell, f"%{magic} some_lo") for magic in ("gpumem", "time")
    )
    assert own_completions == ["%gpumem some_long_name"]
    assert ipython_completions == ["%time some_long_name"]
    assert completions(cpu_notebook.shell, "x = some_lo") == ["x = some_long_name"]


@pytest.mark.skipif(version_info >= (8, 6), reason="this version of IPython has matchers")
def test_ipython_without_matchers(cpu_notebook):
    assert matcher() is None
    assert completions(cpu_notebook.shell, "impo")


def test_magic_names_are_completed(cpu_notebook):
    assert "%gpumem" in completions(cpu_notebook.shell, "%gpum")
    assert "%%gpumem" in completions(cpu_notebook.shell, "%%gpum")
    assert "%%_gpumem_begin" not in completions(cpu_notebook.shell, "%_gpum")
