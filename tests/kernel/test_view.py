"""The viewer in notebooks that are executed without a front end, and in interactive kernels."""

from __future__ import annotations

import base64
from pathlib import Path

import nbclient
import nbformat
import pytest

SAMPLE = "from ipygpumem.snapshot import Snapshot, sample\nsnapshot = Snapshot.load(sample())\n"
LOAD = "get_ipython().config.GPUMem.preload = 'off'\n%load_ext ipygpumem"
WIDGET = "application/vnd.jupyter.widget-view+json"
DATA = Path(__file__).parents[1] / "data"


@pytest.mark.ipython
def test_unattended_notebook_has_the_image_and_no_widget():
    sources = [
        LOAD,
        f"{SAMPLE}snapshot.view()",
        f"%gpumem view {DATA / 'resnet50.pickle.xz'}",
        "snapshot.view().widget;",
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=200).execute()
    for cell, name in ((notebook.cells[1], "gpt_small"), (notebook.cells[2], "resnet50")):
        (output,) = cell.outputs
        assert output.output_type == "display_data"
        assert set(output.data) == {"image/png", "text/plain"}
        assert f"{name}.pickle.xz" in output.data["text/plain"]
        png = base64.b64decode(output.data["image/png"])
        assert png.startswith(b"\x89PNG")
        assert len(png) <= 60_000
        assert output.metadata["image/png"]["width"] == 880
    # nbclient stores the state of a widget that the user creates: the loader, but none of the data
    assert len(str(notebook.metadata["widgets"])) < 8_000
    assert len(nbformat.writes(notebook)) < 250_000


@pytest.fixture
def answering(kernel):
    """Return a kernel whose front end allows input requests, which implies that a user is present."""

    def run(code):
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": True}
        message = kernel.client.session.msg("execute_request", content)
        kernel.client.shell_channel.send(message)
        return kernel.answer(message["header"]["msg_id"])

    return run


def ask(kernel, comm, question):
    """Send a request as the page does, and return the answer and its bytes."""
    client = kernel.client
    content = {"comm_id": comm, "data": {"method": "custom", "content": question}}
    message = client.session.msg("comm_msg", content)
    client.shell_channel.send(message)
    while True:
        answer = client.get_iopub_msg(timeout=200)
        if answer["msg_type"] == "comm_msg" and answer["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            data = answer["content"]["data"]
            assert data["method"] == "custom"
            return data["content"], b"".join(map(bytes, answer["buffers"]))


@pytest.mark.ipython
def test_widget_in_an_interactive_notebook(kernel, answering):
    from ipygpumem import Snapshot
    from ipygpumem.snapshot import sample

    answer = answering(f"{SAMPLE}snapshot.view()")
    assert answer.reply["status"] == "ok"
    opened = {content["comm_id"]: content["data"]["state"] for kind, content in answer.outputs if kind == "comm_open"}
    displays = [content["data"] for kind, content in answer.outputs if kind == "display_data"]
    image, viewer = displays[0], displays[1]
    assert set(image) == {"image/png", "text/plain"}
    comm = viewer[WIDGET]["model_id"]
    assert len(str(opened[comm])) < 4096
    about, _ = ask(kernel, comm, {"id": "a", "get": "about"})
    assert about["names"] == ["gpt_small.pickle.xz"]
    assert image["image/png"].endswith(about["images"][0])
    facts, data = ask(kernel, comm, {"id": "b", "get": "0"})
    assert facts == {"id": "b", "size": len(data)}
    assert data == Snapshot.load(sample()).encode()
    assert ask(kernel, comm, {"id": "c", "get": "7"}) == ({"id": "c", "error": "unknown request: '7'"}, b"")


@pytest.mark.ipython
def test_closed_view_sends_no_messages(kernel, answering):
    answering(f"{SAMPLE}view = snapshot.view()\nview")
    closed = answering("view.close()")
    assert [kind for kind, _ in closed.outputs if kind.startswith("comm")].count("comm_close") >= 1
    restored = answering("view")
    assert WIDGET in [content["data"] for kind, content in restored.outputs if kind == "display_data"][1]


def test_snapshot_notebook_runs_without_gpu(tmp_path):
    """Only cells with the tag ``gpu`` record snapshots. The others use the sample file of the package."""
    notebook = nbformat.read(Path(__file__).parents[2] / "notebooks" / "snapshots.ipynb", as_version=4)
    notebook.cells = [cell for cell in notebook.cells if "gpu" not in cell.metadata.get("tags", [])]
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    assert any("training.html" in output.get("data", {}).get("text/plain", "") for output in outputs)
    assert list(tmp_path.iterdir()) == []
    assert len(nbformat.writes(notebook)) < 300_000
