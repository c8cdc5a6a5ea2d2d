"""What is public, and what an import costs."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
import time

import pytest

import ipygpumem

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(ipygpumem.__path__, "ipygpumem.") if "__main__" not in module.name
)
HEAVY = ("torch", "IPython", "numpy", "pynvml", "psutil", "anywidget", "matplotlib", "jinja2", "humanize", "traitlets")


@pytest.mark.parametrize("name", ["ipygpumem", *MODULES])
def test_all_is_sorted_and_is_what_is_public(name):
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])  # a module of constants, or a folder's empty face, may do without
    assert len(set(names)) == len(names)
    assert all(hasattr(module, one) for one in names)
    if name != "ipygpumem.core.units":  # by size
        assert list(names) == sorted(names, key=_order)
    own = {
        one
        for one, value in vars(module).items()
        if not one.startswith("_") and getattr(value, "__module__", None) == name and callable(value)
    }
    assert own <= set(names), "what is not for others begins with an underscore"


def _order(name):
    """Constants, classes, the rest: as ruff sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_every_public_name_of_the_package_is_there():
    assert ipygpumem.__all__ == sorted(ipygpumem.__all__)
    assert dir(ipygpumem) == ipygpumem.__all__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ipygpumem.nonsense  # noqa: B018 (the look is the test)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_import_brings_nothing_along():
    loaded = json.loads(run("import sys, json, ipygpumem; print(json.dumps(sorted(sys.modules)))"))
    assert [name for name in loaded if name.partition(".")[0] in HEAVY] == []


def test_import_costs_less_than_50_ms():
    """Best of several, without what Python itself needs; on a loaded machine the best is still the import's own."""

    def best(code):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            run(code)
            times.append(time.perf_counter() - start)
        return min(times)

    assert best("import ipygpumem") - best("pass") < 0.050
