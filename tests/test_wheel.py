"""The contents of the wheel built from this checkout."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def can_build():
    """Return whether setuptools is recent enough for pyproject.toml; otherwise pip would have to download it."""
    try:
        return int(version("setuptools").split(".")[0]) >= 77
    except PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE", "THIRD_PARTY_LICENSES"):
        shutil.copy(ROOT / name, source)
    for name in ("ipygpumem", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(source)]
    if can_build():  # as pip does without build isolation
        code = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
        command = [sys.executable, "-c", code, str(out)]
    subprocess.run(command, check=True, timeout=240, cwd=source, stdout=subprocess.DEVNULL)
    (wheel,) = out.iterdir()
    with zipfile.ZipFile(wheel) as opened:
        yield opened


@pytest.fixture(scope="module")
def names(wheel):
    return wheel.namelist()


def test_every_module_is_included(names):
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ipygpumem").rglob("*.py")}
    assert modules <= set(names)


def test_marker_and_data_are_included(names):
    assert "ipygpumem/py.typed" in names
    for path in (ROOT / "ipygpumem" / "data").iterdir():
        assert f"ipygpumem/data/{path.name}" in names
    for path in (ROOT / "ipygpumem" / "viewer" / "static").iterdir():
        assert f"ipygpumem/viewer/static/{path.name}" in names
    for bundle in ("page.js", "widget.js", "loader.js", "monitor.js"):
        assert f"ipygpumem/viewer/static/{bundle}" in names


def test_nothing_else_is_included(names):
    unexpected = [
        name
        for name in names
        if not name.startswith(("ipygpumem/", "ipygpumem-")) or "__pycache__" in name or "tests" in name.lower()
    ]
    assert unexpected == []


def test_licenses_are_included(wheel, names):
    (license_file,) = [name for name in names if name.endswith("dist-info/licenses/LICENSE")]
    notices = wheel.read(license_file.replace("LICENSE", "THIRD_PARTY_LICENSES")).decode()
    assert "d3-scale" in notices
    assert "Permission to use, copy, modify, and/or distribute this software" in notices


def test_command_and_pytest_plugin_are_entry_points(wheel, names):
    (name,) = [name for name in names if name.endswith("dist-info/entry_points.txt")]
    points = configparser.ConfigParser()
    points.read_string(wheel.read(name).decode())
    assert dict(points["console_scripts"]) == {"ipygpumem": "ipygpumem.cli:main"}
    assert dict(points["pytest11"]) == {"ipygpumem": "ipygpumem.pytest_plugin"}
