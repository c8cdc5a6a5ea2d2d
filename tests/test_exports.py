"""Public names, and the cost of importing the package."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ipygpumem

MODULES = ["", ".compat.ipyexperiments", ".compat.zeta", ".errors", ".mem", ".parallel", ".snapshot"]
"""The modules that users import."""
HEAVY = ("torch", "IPython", "numpy", "pynvml", "psutil", "anywidget", "matplotlib", "jinja2", "humanize", "traitlets")


@pytest.mark.parametrize("name", MODULES)
def test_all_lists_the_public_names(name):
    module = _module(name)
    assert list(module.__all__) == sorted(set(module.__all__), key=_order)
    assert all(hasattr(module, public) for public in module.__all__)


def _order(name):
    """Return ruff's sort key: constants precede classes, and classes precede other names."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_public_names_of_the_package():
    assert ipygpumem.__all__ == sorted(ipygpumem.__all__)
    assert dir(ipygpumem) == ipygpumem.__all__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ipygpumem.nonsense  # noqa: B018 (attribute access is tested)


def test_docstrings_of_the_documented_api():
    """ruff does not check these docstrings, because internal code needs none if names and types say enough."""
    names = {f"ipygpumem{module}.{name}" for module in MODULES for name in _module(module).__all__}
    reference = Path(__file__).parents[1] / "docs" / "api.md"
    names.update(re.findall(r"auto(?:class|function):: (\S+)", reference.read_text(encoding="utf-8")))
    assert not {undocumented for name in names for undocumented in _without_docstring(pkgutil.resolve_name(name))}


def _module(name):
    return importlib.import_module(f"ipygpumem{name}")


def _without_docstring(documented_object):
    """Yield the name of the function or class, and those of its public methods and properties."""
    if inspect.isfunction(documented_object) and not documented_object.__doc__:
        yield documented_object.__qualname__
    if inspect.isclass(documented_object):
        signature = f"{documented_object.__name__}("  # the docstring that data classes and named tuples create
        if (documented_object.__doc__ or signature).startswith(signature):
            yield documented_object.__qualname__
        for cls in documented_object.__mro__:
            for name, member in vars(cls).items():
                wrapped = (getattr(member, attribute, None) for attribute in ("fget", "func", "__func__"))
                function = next(filter(None, wrapped), member)
                is_public_function = inspect.isfunction(function) and not name.startswith("_")
                if is_public_function and cls.__module__.startswith("ipygpumem.") and not function.__doc__:
                    yield f"{cls.__qualname__}.{name}"


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200).stdout


def test_import_loads_no_heavy_library():
    modules = json.loads(run("import sys, json, ipygpumem; print(json.dumps(sorted(sys.modules)))"))
    assert [name for name in modules if name.partition(".")[0] in HEAVY] == []
