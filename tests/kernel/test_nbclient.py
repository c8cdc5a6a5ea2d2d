"""Notebooks run by nbclient, as papermill and CI do."""

from __future__ import annotations

import json
import sys

import nbclient
import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

pytestmark = [pytest.mark.ipython, pytest.mark.filterwarnings("ignore:Proactor")]


@pytest.fixture(scope="module")
def manager(make_manager):
    """Return a kernel that executes one notebook after the other, because starting a kernel takes seconds."""
    manager = make_manager()
    manager.start_kernel(extra_arguments=["--HistoryManager.enabled=False"])
    return manager


@pytest.fixture
def execute(manager):
    """Return a function that executes the cells of a notebook and returns the notebook and the error of a cell."""

    def execute_cells(*cells, **options):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        client = nbclient.NotebookClient(notebook, timeout=200, km=manager, **options)
        try:
            client.execute()
        except CellExecutionError as error:
            return notebook, error
        finally:
            client.kc.stop_channels()
        return notebook, None

    yield execute_cells
    error = execute_cells(END)[1]
    assert error is None


def displays(cell):
    return [out["data"] for out in cell.outputs if out.output_type == "display_data"]


LOAD = "get_ipython().config.GPUMem.preload, get_ipython().config.GPUMem.report = 'off', 'always'\n%load_ext ipygpumem"
END = "%unload_ext ipygpumem\nget_ipython().config.GPUMem.clear()\n%reset -f"


@pytest.fixture(scope="module")
def executed():
    """Return a notebook that is executed once for all tests, in its own kernel and with default settings."""
    cells = (
        "%load_ext ipygpumem",
        "x = b'x' * (64 << 20)\nlen(x)",
        "1 + 1",
        "%%gpumem\ny = b'x' * (32 << 20)\nlen(y)",
        "1/0",
        "import ipygpumem\n[(report.cell, report.cell_id, report.success) for report in ipygpumem.reports]",
        "%gpumem",
        "%unload_ext ipygpumem\nz = b'x' * (64 << 20)",
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    return nbclient.NotebookClient(notebook, timeout=200, allow_errors=True).execute()


def test_outputs(executed):
    cells = executed.cells
    assert cells[0].outputs[0]["text"].startswith("ipygpumem: no GPU (torch ")
    assert [out.output_type for out in cells[1].outputs] == ["execute_result", "display_data"]
    (bundle,) = displays(cells[1])
    assert bundle["text/plain"].startswith("host memory (RSS)  +64.")
    assert "In [2]" in bundle["text/plain"]
    assert displays(cells[2]) == []
    (bundle,) = displays(cells[3])
    assert bundle["text/plain"].startswith("host memory of this process   In [4], ")
    assert cells[4].outputs[0].output_type == "error"
    assert len(displays(cells[6])) == 1
    assert displays(cells[7]) == []


def test_notebook_size(executed):
    """Reports add less than a limit to the size of a notebook file."""
    for cell in executed.cells:
        for bundle in displays(cell):
            assert set(bundle) == {"text/plain", "text/html"}
            limit = 4096 if not bundle["text/plain"].startswith("host memory of") else 8192
            assert len(bundle["text/html"].encode()) <= limit
    assert len(nbformat.writes(executed)) < 16_000
    assert "widgets" not in executed.metadata


def test_html_shows_in_an_untrusted_notebook(executed):
    from html.parser import HTMLParser

    names = set()

    class Parser(HTMLParser):
        def handle_starttag(self, tag, attrs):
            names.add(tag)
            names.update(f"@{name}" for name, _ in attrs)

    for cell in executed.cells:
        for bundle in displays(cell):
            Parser().feed(bundle["text/html"])
    assert names <= {"div", "span", "b", "table", "tr", "td", "th", "tbody", "@class", "@style", "@title"}


def test_numbers_and_names_of_cells(executed):
    cells = executed.cells
    (result,) = [out["data"]["text/plain"] for out in cells[5].outputs if out.output_type == "execute_result"]
    reports = eval(result)  # noqa: S307 (numbers and names)
    assert [(cell, success) for cell, _, success in reports] == [(2, True), (3, True), (4, True), (5, False)]
    ids = [identity for _, identity, _ in reports]
    assert ids == [cell.id for cell in cells[1:5]] or ids == [None] * 4  # older versions of nbclient send none


@pytest.mark.parametrize("head", ["", "%%gpumem\n"])
def test_failing_cell_fails(execute, head):
    notebook, error = execute(LOAD, f"{head}x = b'x' * (64 << 20)\n1/0", "ran = True")
    assert error is not None
    assert error.ename == "ZeroDivisionError"
    assert notebook.cells[2].outputs == []
    assert notebook.cells[2].execution_count is None
    assert len(displays(notebook.cells[1])) == 1  # the report is present


def test_invalid_options_fail_the_run(execute):
    _, error = execute(LOAD, "%%gpumem --no-such\nran = True")
    assert error.ename == "UsageError"


def test_reports_are_plain_data(execute):
    notebook, error = execute(LOAD, "6 * 7", "import ipygpumem, json\nprint(ipygpumem.last.to_json())")
    assert error is None
    facts = json.loads(notebook.cells[2].outputs[0]["text"])
    assert facts["cell"] == notebook.cells[1].outputs[0]["execution_count"]
    assert facts["devices"] == {}
    assert facts["host"]["after"]["rss"] > 0


RESET = (
    "get_ipython().config.GPUMem.preload, get_ipython().config.GPUMem.host_peak = 'off', 'reset'\n%load_ext ipygpumem"
)


@pytest.mark.parametrize("wait", ["", "import asyncio\nawait asyncio.sleep(0)\n"], ids=["sync", "await"])
def test_limit_stops_notebook(execute, wait):
    notebook, error = execute(
        RESET,
        "%%gpumem --limit-host 200MiB\nx = b'x' * (64 << 20)\nlen(x)",
        f"%%gpumem --limit-host 20MiB\n{wait}y = b'y' * (64 << 20)\nlen(y)",
        "'never'",
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("the high-water mark can be reset on Linux")
    within_limit, over_limit, not_run = notebook.cells[1:]
    start = f"In [{over_limit.outputs[0]['execution_count']}]: host peak +6"
    assert error.ename == "GPUMemLimitExceeded"
    assert start in error.evalue
    assert [out.output_type for out in within_limit.outputs] == ["execute_result", "display_data"]
    assert [out.output_type for out in over_limit.outputs] == ["execute_result", "display_data", "error"]
    assert over_limit.outputs[0]["data"]["text/plain"] == str(64 << 20)
    (line,) = over_limit.outputs[2]["traceback"]
    assert line.startswith(f"GPUMemLimitExceeded: {start}")
    assert not_run.outputs == []
