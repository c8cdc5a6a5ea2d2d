"""Limits on a real GPU, in notebooks run by nbclient and in pytest."""

import subprocess
import sys
import textwrap

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ALLOCATE = "torch.ones({} << 20, dtype=torch.uint8, device='cuda')"


def execute(*cells):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    try:
        nbclient.NotebookClient(notebook, timeout=240).execute()
    except nbclient.exceptions.CellExecutionError as error:
        return notebook, error
    return notebook, None


LOAD = "%load_ext ipygpumem\nimport torch"


def test_peak_over_limit_stops_notebook():
    notebook, error = execute(
        LOAD,
        f"def make(n):\n    return {ALLOCATE.format('n')}",
        "%%gpumem --limit 100MiB\nx = make(64)\n'within'",
        "%%gpumem --limit 100MiB\nimport asyncio\nawait asyncio.sleep(0)\ny = make(128); del y\n'over'",
        "'never'",
    )
    assert error.ename == "GPUMemLimitExceeded"
    assert (
        "cuda:0 peak +128.0 MiB, over the limit of 100.0 MiB (peak reached by In [2]:2 make(): return torch.ones"
        in str(error)
    )
    within_limit, over_limit, not_run = notebook.cells[2:]
    assert [out["data"]["text/plain"] for out in within_limit.outputs if out.output_type == "execute_result"] == [
        "'within'"
    ]
    kinds = [out.output_type for out in over_limit.outputs]
    assert kinds == ["execute_result", "display_data", "error"], "a value, a report and an error"
    assert not not_run.outputs


def test_held_and_outside():
    _, error = execute(LOAD, f"%%gpumem --limit-held 0\nx = {ALLOCATE.format(8)}")
    assert "cuda:0 held +8.0 MiB, over the limit of 0 (largest part allocated by In [2]:2" in str(error)
    assert "largest holders now: x 8.0 MiB" in str(error)
    _, error = execute(LOAD, f"%%gpumem --limit-held 0\nx = {ALLOCATE.format(8)}; del x")
    assert error is None
    _, error = execute(LOAD, "%%gpumem --limit-outside 50MiB\ntorch.linalg.svd(torch.randn(64, 64, device='cuda'));")
    assert "memory outside PyTorch +" in str(error)


def test_setting_applies_to_every_cell():
    notebook, error = execute(
        LOAD, "%config GPUMem.limit = '1 GiB'", f"x = {ALLOCATE.format(64)}", f"y = {ALLOCATE.format(2048)}"
    )
    assert error.ename == "GPUMemLimitExceeded"
    assert "In [4]: cuda:0 peak +2.0 GiB, over the limit of 1.0 GiB" in str(error)
    assert [out.output_type for out in notebook.cells[2].outputs] == ["display_data"]


def test_pytest_markers(tmp_path):
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(
            """
            import pytest, torch

            def make(mib):
                return torch.ones(mib << 20, dtype=torch.uint8, device="cuda")

            @pytest.mark.gpumem_limit("64 MiB", held=0, outside="8 MiB")
            def test_within():
                make(64)

            @pytest.mark.gpumem_limit("64 MiB")
            def test_over():
                make(128)

            @pytest.mark.gpumem_limit(outside="50 MiB")
            def test_outside():
                torch.linalg.svd(torch.randn(64, 64, device="cuda"))
            """
        )
    )
    options = ["-p", "ipygpumem.pytest_plugin", "-p", "no:cacheprovider", "--gpumem", "-q", str(tmp_path)]
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert "2 failed, 1 passed" in completed.stdout, completed.stdout + completed.stderr
    assert (
        "GPUMemLimitExceeded: cuda:0 peak +128.0 MiB, over the limit of 64.0 MiB (peak reached by" in completed.stdout
    )
    assert "GPUMemLimitExceeded: cuda:0 memory outside PyTorch +" in completed.stdout
    assert "memory usage of the tests (ipygpumem)" in completed.stdout
