"""Public names, and the cost of importing the package."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import ipygpumem

MODULES = ["", ".compat.ipyexperiments", ".compat.zeta", ".errors", ".mem", ".parallel", ".snapshot"]
"""The modules that users import."""
HEAVY = ("torch", "IPython", "numpy", "pynvml", "psutil", "anywidget", "matplotlib", "jinja2", "humanize", "traitlets")


@pytest.mark.parametrize("name", MODULES)
def test_all_lists_the_public_names(name):
    module = importlib.import_module(f"ipygpumem{name}")
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


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200).stdout


def test_import_loads_no_heavy_library():
    modules = json.loads(run("import sys, json, ipygpumem; print(json.dumps(sorted(sys.modules)))"))
    assert [name for name in modules if name.partition(".")[0] in HEAVY] == []
