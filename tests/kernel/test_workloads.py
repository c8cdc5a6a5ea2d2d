"""The runner of tests/gpu/workloads finds what the extension changes in a real kernel."""

from tests.gpu.workloads.compare import differences
from tests.gpu.workloads.kernel import run_program
from tests.gpu.workloads.program import read_program

PROGRAM = '''"""A program that behaves differently if the extension is loaded."""
ANSWER = {"who": "x"}

# %%
import sys
import warnings
import torch
changed = "ipygpumem" in sys.modules and ENABLED
result = []

# %% measured
result.append(1.0)
if changed:
    result.append(2.0)
    torch.rand(1)
    print("changed")
    warnings.warn("changed")
    y = 1
len(result)

# %%
raise ValueError("changed" if changed else "")
'''


def _run(path, option, *, enabled):
    path.write_text(PROGRAM.replace("ENABLED", str(enabled)), encoding="utf-8")
    return run_program(read_program(path), option)


def test_changes_are_found(tmp_path):
    reference = _run(tmp_path / "program.py", "without", enabled=True)
    found = differences(reference, _run(tmp_path / "program.py", "limit", enabled=True))
    assert set(found) == {
        "values",
        "rng",
        "printed text",
        "warnings",
        "values of cells",
        "exceptions and tracebacks",
        "names",
    }
    assert differences(reference, _run(tmp_path / "program.py", "limit", enabled=False)) == {}
