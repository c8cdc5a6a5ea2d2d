"""Values stored in executed notebooks, and cells that a front end runs again."""

from __future__ import annotations

import json

import nbclient
import nbformat
import pytest

from ipygpumem import load_reports
from ipygpumem.features.history.load import read_notebook, read_rows
from ipygpumem.features.history.model import LIMIT, MIME

pytestmark = pytest.mark.filterwarnings("ignore:Proactor")
LOAD = "get_ipython().config.GPUMem.update(preload='off', report='always', log={log!r})\n%load_ext ipygpumem"
CELLS = ("x = b'x' * (64 << 20)", "%%gpumem\n# why\ny = b'y' * (32 << 20)", "%gpumem 6 * 7", "1/0")


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Return the directory of a notebook that nbclient has executed and saved, as papermill does."""
    folder = tmp_path_factory.mktemp("run")
    cells = [LOAD.format(log=str(folder / "s.jsonl")), *CELLS]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=200, allow_errors=True).execute()
    nbformat.validate(notebook)
    nbformat.write(notebook, folder / "run.ipynb")
    return folder


@pytest.mark.ipython
def test_notebook_and_log_have_the_same_values(executed):
    log, notebook = read_rows(executed / "s.jsonl"), read_notebook(executed / "run.ipynb")
    assert notebook.faults == log.faults == ()
    assert [row.code for row in notebook.rows] == [
        "x = b'x' * (64 << 20)",
        "y = b'y' * (32 << 20)",
        "%gpumem 6 * 7",
        "1/0",
    ]
    for stored, logged in zip(notebook.rows, log.rows, strict=True):
        for name in ("cell", "device", "held", "peak", "peak_trust", "success"):
            assert getattr(stored, name) == getattr(logged, name)
        assert stored.seconds == pytest.approx(logged.seconds, abs=1e-4)
    assert notebook.rows[0].held >= 64 << 20
    assert [row.success for row in notebook.rows] == [True, True, True, False]


def test_each_output_carries_at_most_2_kb(executed):
    notebook = nbformat.read(executed / "run.ipynb", as_version=4)
    values = [
        output["metadata"][MIME]
        for cell in notebook.cells
        for output in cell.outputs
        if MIME in output.get("metadata", {})
    ]
    assert len(values) == len(CELLS)
    assert all(len(json.dumps(data).encode()) <= LIMIT for data in values)


def test_html_conversion_of_notebook_with_metadata(executed):
    exporters = pytest.importorskip("nbconvert.exporters")
    try:
        page, _ = exporters.HTMLExporter(template_name="basic").from_filename(str(executed / "run.ipynb"))
    except ValueError as error:
        pytest.skip(str(error))  # environments that import nbconvert from another environment lack its templates
    assert "vnd.ipygpumem" not in page
    assert "resident (RSS)" in page


def run_cell(kernel, code, cell_id):
    """Run a cell as JupyterLab and VS Code do, with the cell ID in the request's metadata."""
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": False}
    message = kernel.client.session.msg(
        "execute_request", content | {"user_expressions": {}}, metadata={"cellId": cell_id}
    )
    kernel.client.shell_channel.send(message)
    return kernel.answer(message["header"]["msg_id"])


@pytest.mark.ipython
def test_rerun_cell_is_compared_with_its_last_run(kernel):
    first = run_cell(kernel, "x = b'x' * (64 << 20)", "one")
    assert "previous run" not in first.reports[0]
    run_cell(kernel, "y = 1", "two")
    rerun = run_cell(kernel, "x = b'x' * (200 << 20)", "one")
    number = first.reply["execution_count"]
    assert f"previous run, In [{number}]: +64." in rerun.reports[0]


def test_log_outlives_kernel(tmp_path, make_manager):
    """If the kernel is killed during a cell, the reports of earlier cells in the log are complete."""
    path = tmp_path / "s.jsonl"
    manager = make_manager()
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=200)
        for code in (LOAD.format(log=str(path)), "x = 1", "y = 2"):
            client.execute_interactive(code, timeout=200, output_hook=lambda message: None)
        client.execute("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        manager.shutdown_kernel(now=True)
    finally:
        client.stop_channels()
    assert [report.code for report in load_reports(path)] == ["x = 1", "y = 2"]
