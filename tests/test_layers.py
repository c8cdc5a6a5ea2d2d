"""Imports between packages run in one direction, modules and folders are small, and each library has one place."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "ipygpumem"
LOWER_PACKAGES = {
    "core": set(),
    "sources": {"core"},
    "snapshot": {"core"},
    "viewer": {"core", "snapshot"},
    "measurement": {"core", "sources", "snapshot"},
    "features": {"core", "sources", "snapshot", "viewer", "measurement"},
}
"""For each package the packages that it may import. Those not listed here may import every other one."""
EXCEPTIONS = {("snapshot/snapshot.py", f"ipygpumem.viewer.{name}") for name in ("view", "write")}
"""Imports on first use, by `Snapshot.view` and the methods that write a view."""
LIBRARIES = {
    "torch": {"sources/pytorch.py"},
    "pynvml": {"sources/nvml.py"},
    "psutil": {"sources/host.py"},
    "cuda": {"sources/cuda.py"},
    "llvmlite": {"sources/cupti/buffers.py"},
    "IPython": {"jupyter", "features/ranks/engines/engine.py", "viewer/display_target.py"},
    "traitlets": {"jupyter", "viewer", "features/live/widget.py"},
    "anywidget": {"viewer", "features/live/widget.py"},
    "ipyparallel": {"features/ranks/engines"},
}
"""For each third-party library the files or packages that may import it."""


@cache
def imports():
    """Return the file, the module and the imported names of all imports at run time."""
    return list(find_imports())


def find_imports():
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                yield file, node.module, [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                yield from ((file, alias.name, []) for alias in node.names)


def statements(block):
    """Yield the statements of a block and of the blocks inside it that run, in any order."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(block, name, ()):
            if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
                yield node
                yield from statements(node)


def test_imports_run_one_way():
    violations = []
    for file, module, _ in imports():
        package, (root, _, submodule) = file.partition("/")[0], module.partition(".")
        imported_package = submodule.partition(".")[0]
        if (
            root == "ipygpumem"
            and (file, module) not in EXCEPTIONS
            and imported_package != package
            and imported_package not in LOWER_PACKAGES.get(package, {imported_package})
        ):
            violations.append((file, module))
    assert violations == []


def test_only_command_list_imports_features():
    modules = [(file, module) for file, module, _ in imports() if file.startswith("features/commands/")]
    importers = {
        file for file, module in modules if module.startswith("ipygpumem.features.") and "commands" not in module
    }
    assert importers == {"features/commands/registry.py"}


def test_each_library_is_imported_in_one_place():
    violations = [
        (file, module)
        for file, module, _ in imports()
        for name in (module.partition(".")[0],)
        if name in LIBRARIES and not any(file == path or file.startswith(f"{path}/") for path in LIBRARIES[name])
    ]
    assert violations == []


def test_imports_by_name():
    """Imports by name, which the other tests do not detect.

    The package itself loads its public names, and reading a report loads the data classes of the features whose
    sections it contains.
    """
    pattern = re.compile(r"import_module\(f?\"ipygpumem")
    files = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if pattern.search(path.read_text(encoding="utf-8"))
    }
    assert files == {"__init__.py", "core/report.py"}


def test_size_of_modules_and_folders():
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert [str(path) for path, lines in sizes.items() if lines > 300] == []
    modules = Counter(path.parent for path in sizes)
    assert [str(folder) for folder, number in modules.items() if number > 20] == []
    names = {path.name: set() for path in sizes}
    for path in sizes:
        names[path.name].add(path.parent)
    pattern = {"__init__.py", "collect.py", "command.py", "model.py", "table.py"}  # of a feature
    assert [name for name in names.keys() - pattern if len(names[name]) > 2] == []
    assert len((PACKAGE.parent / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_no_import_cycles():
    modules = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[path.relative_to(PACKAGE).as_posix()] = name
    graph = {name: set() for name in modules.values()}
    for file, module, names in imports():
        submodules = {f"{module}.{name}" for name in names} & graph.keys()
        packages = {module} & graph.keys() if len(submodules) < max(len(names), 1) else set()
        graph[modules[file]] |= (submodules | packages) - {modules[file]}
    TopologicalSorter(graph).prepare()  # raises CycleError, which shows the cycle


def imported_with(name):
    """Return the modules of this package that an import of a module loads, without imports on first use."""
    loaded, pending = set(), [f"ipygpumem.{name}"]
    while pending:
        name = pending.pop()
        path = PACKAGE.parent / name.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in loaded or not path.exists():
            continue
        loaded.add(name)
        pending.append(name.rpartition(".")[0])
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module.startswith("ipygpumem"):
                pending += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return {name.removeprefix("ipygpumem.") for name in loaded}


def test_loading_the_extension_imports_only_what_cells_need():
    """Most notebooks use few features, and the code of all features would occupy several MiB in each kernel."""
    loaded = imported_with("jupyter.extension")
    lazy = ("snapshot", "viewer.view", "features.fit.collect", "features.modules.", "features.ranks.model")
    lazy += ("features.history.load", "features.history.table", "features.lines.", "features.outside.model")
    lazy += ("features.live.monitor", "features.outside.table", "features.profile.categories")
    lazy += ("features.profile.model", "features.profile.timeline")
    assert [name for name in loaded if name.startswith(lazy)] == []
    assert "features.report.short_report" in loaded


def test_reading_a_snapshot_imports_no_replay():
    loaded = imported_with("snapshot")
    assert [name for name in loaded if name.startswith(("snapshot.replay", "snapshot.export"))] == []
    assert "snapshot.reader.load" in loaded
