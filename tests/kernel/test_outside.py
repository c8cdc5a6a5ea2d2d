"""Memory outside PyTorch by library in a real kernel."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat


def test_notebook_runs_without_gpu(tmp_path):
    notebook = nbformat.read(Path(__file__).parents[2] / "notebooks" / "outside_pytorch.ipynb", as_version=4)
    executed = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("NCCL" in output.get("data", {}).get("text/plain", "") for output in executed), "as run on a GPU"
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    text = "".join(output.get("text", "") for output in outputs)
    assert "ipygpumem: memory outside PyTorch cannot be broken down by library: " in text
    assert "outside PyTorch, by library" in text
    assert list(tmp_path.iterdir()) == []
