"""Imports run one way, and each outside library has one door."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "ipygpumem"
BELOW = {
    "errors": set(),
    "units": {"errors"},
    "files": {"errors"},
    "ledger": {"errors", "units"},
    "probes": {"errors", "units", "ledger"},
    "recording": {"errors", "units", "files", "ledger", "probes", "features"},
    "render": {"errors", "units", "ledger"},
    "snapshot": {"errors", "units", "ledger"},
    "viewer": {"errors", "units", "files", "ledger", "snapshot"},
    "features": {"errors", "units", "files", "ledger", "snapshot", "viewer"},
}
FACES = {"notebook", "parallel", "cli", "mem", "pytest_plugin", "__init__", "__main__", "environment"}
UPWARDS = {("snapshot/show.py", "ipygpumem.viewer")}
"""A snapshot shows itself: one file of the room asks the viewer above it, and only when it is called."""
DOORS = {
    "torch": {"probes/pytorch.py"},
    "pynvml": {"probes/nvml.py"},
    "psutil": {"probes/host.py", "probes/processes.py"},
    "cuda": {"probes/cuda.py"},
    "llvmlite": {"probes/buffers.py"},
    "IPython": {"notebook", "parallel/engine.py", "viewer/display_target.py"},
    "traitlets": {"notebook", "viewer"},
    "anywidget": {"viewer", "features/live"},
    "ipyparallel": {"parallel"},
}


def imports():
    """(file, module) of every import that runs; what stands under TYPE_CHECKING is for readers."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        unread = {
            id(inner) for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            for inner in ast.walk(node)
        }  # fmt: skip
        for node in ast.walk(tree):
            if id(node) in unread:
                continue
            file = path.relative_to(PACKAGE).as_posix()
            if isinstance(node, ast.ImportFrom):
                yield file, node.module
            elif isinstance(node, ast.Import):
                yield from ((file, alias.name) for alias in node.names)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                yield from ((file, one.value) for one in node.args if isinstance(one, ast.Constant))


def test_imports_run_one_way():
    wrong = []
    for file, module in imports():
        room, (root, _, rest) = file.partition("/")[0].removesuffix(".py"), module.partition(".")
        other = rest.partition(".")[0]
        if root != "ipygpumem" or not other or other == room or room in FACES:
            continue
        allowed = BELOW.get(room, set(BELOW) | {"session"})
        if other not in allowed and (file, module) not in UPWARDS:
            wrong.append((file, module))
    assert wrong == []


def test_each_library_has_one_door():
    wrong = [
        (file, module)
        for file, module in imports()
        for name in (module.partition(".")[0],)
        if name in DOORS and not any(file == door or file.startswith(f"{door}/") for door in DOORS[name])
    ]
    assert wrong == []


def test_the_one_way_up_is_taken_by_call_only():
    code = "import sys, ipygpumem.snapshot; print([one for one in sys.modules if one.startswith('ipygpumem.viewer')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "[]\n"
    assert {path for path in imports() if path in UPWARDS} == UPWARDS, "what is not used is no exception"
