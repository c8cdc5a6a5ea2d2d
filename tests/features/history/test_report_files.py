"""Rows of logs and of executed notebooks, including invalid files."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.sessions import cell
from ipygpumem import ReportError
from ipygpumem.features.history import load
from ipygpumem.features.history.load import read_notebook, read_rows, short_names
from ipygpumem.features.history.model import MIME, output_metadata
from ipygpumem.features.history.plot import history_plot
from ipygpumem.features.history.reports import Reports


def output(report):
    return {"output_type": "display_data", "data": {"text/plain": "x"}, "metadata": output_metadata(report)}


def notebook(*cells, **changes):
    content = [
        {"cell_type": "code", "id": f"id{number}", "source": ["%%gpumem\n", f"step({number})"], "outputs": outputs}
        for number, outputs in enumerate(cells, 1)
    ]
    return {"cells": [{"cell_type": "markdown", "source": "# x"}, *content], "metadata": {}, "nbformat": 4, **changes}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ipynb"


def test_values_of_a_notebook(path):
    path.write_text(json.dumps(notebook([output(cell(5, held=3, peak=9)), {"output_type": "stream", "text": "x"}], [])))
    result = read_rows(path)
    assert (result.name, result.faults) == ("run.ipynb", ())
    (row,) = result.rows
    assert (row.cell, row.cell_id, row.code) == (5, "id1", "step(1)")
    assert (row.held, row.peak, row.seconds) == (3 << 20, 9 << 20, 2.31)


def test_notebook_with_another_extension(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(notebook([output(cell(5))]), indent=1))
    assert len(read_rows(path).rows) == 1


def test_log_and_unrelated_file(tmp_path):
    path = tmp_path / "s.jsonl"
    reports = Reports([])
    reports.log = path
    reports.append(cell(1))
    with path.open("a") as file:
        file.write("half")
    result = read_rows(path)
    assert [row.code for row in result.rows] == ["step(1)"]
    assert result.faults == (f"{path}: line 2: invalid JSON: Expecting value",)
    path.write_text("import torch\nimport numpy\n")
    with pytest.raises(ReportError, match="line 1: invalid JSON"):
        read_rows(path)
    path.write_text("")
    assert read_rows(path).rows == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "invalid JSON: Expecting value"),
        ('{"cells": [', "the JSON data is incomplete"),
        ("[]", "not an nbformat 4 notebook"),
        ("5", "not an nbformat 4 notebook"),
        ('{"nbformat": 3, "worksheets": []}', "not an nbformat 4 notebook"),
        ('{"nbformat": 4, "cells": {}}', "not an nbformat 4 notebook"),
        ('{"nbformat": "4", "cells": []}', "not an nbformat 4 notebook"),
        ("[" * 200_000, "the JSON data is nested too deeply"),
    ],
)
def test_invalid_notebooks(path, text, message):
    path.write_text(text)
    with pytest.raises(ReportError) as exc_info:
        read_notebook(path)
    assert str(exc_info.value) == f"{path}: {message}"


def test_invalid_outputs_are_skipped(path):
    broken = output(cell(2))
    broken["metadata"][MIME]["devices"] = {"cuda:0\x1b[2J": {"held": 1 << 70}}
    content = notebook([output(cell(1))], [broken, output(cell(2))], [{"metadata": 5}, "x", {"metadata": {MIME: None}}])
    content["cells"].insert(1, 5)
    content["cells"] += [{"outputs": 5}, {"source": 5, "id": {}, "outputs": [output(cell(9))]}]
    path.write_text(json.dumps(content))
    result = read_notebook(path)
    assert [(row.cell, row.code) for row in result.rows] == [(1, "step(1)"), (2, "step(2)"), (9, "")]
    assert result.faults == (
        f"{path}: cell 2 is not a JSON object",
        f"{path}: cell 4: devices.cuda:0?[2J.held must be between -2**60 and 2**60",
        f"{path}: cell 5: the report is null, not an object",
    )


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["cells", "outputs", "metadata", MIME, "devices", "schema", "source", "id"]), inner
        )
    ),
    max_leaves=12,
)


@settings(max_examples=75)
@given(cells=st.lists(JUNK, max_size=4), values=JUNK)
def test_arbitrary_notebooks_are_read_or_reported(path, cells, values):
    content = notebook([{"metadata": {MIME: values}}], nbformat=4)
    content["cells"] += cells
    path.write_text(json.dumps(content))
    try:
        result = read_notebook(path)
    except ReportError as error:
        messages = [str(error)]
    else:
        messages = list(result.faults)
    assert all(len(message.splitlines()) == 1 for message in messages)


def test_short_names():
    assert short_names("/x/a.jsonl", "b.jsonl") == ("a.jsonl", "b.jsonl")
    assert short_names("/x/a.jsonl", "/y/a.jsonl") == ("/x/a.jsonl", "/y/a.jsonl")
    assert short_names("a.jsonl", "a.jsonl") == ("a.jsonl", "a.jsonl")


def test_code_of_a_cell_is_read_once(path, monkeypatch):
    codes = []
    monkeypatch.setattr(load, "code_label", lambda code: codes.append(code) or "x")
    path.write_text(json.dumps(notebook([{"metadata": {MIME: 0}}] * 20, [])))
    assert len(read_notebook(path).faults) == 20
    assert codes == ["%%gpumem\nstep(1)"]


def test_sums_of_the_largest_values_fit_in_64_bits(path):
    content = notebook([output(cell(1))])
    largest = (1 << 60) - 1
    (summary,) = content["cells"][-1]["outputs"]
    summary["metadata"][MIME]["devices"] = {"cuda:0": {"held": -largest, "peak": largest, "allocated": largest}}
    path.write_text(json.dumps(content))
    rows = read_notebook(path).rows
    assert rows[0].peak_level == 3 * largest < 1 << 63
    assert history_plot(rows, "x")
