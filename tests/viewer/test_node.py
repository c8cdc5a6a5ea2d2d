"""The JavaScript of the pages: types, style, unit tests, and bundles that match their sources."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

VIEWER = Path(__file__).parents[2] / "ipygpumem" / "viewer"
TESTS = Path(__file__).parent / "js"
MAX_BUNDLE_SIZE = 200_000

pytestmark = pytest.mark.node


@pytest.fixture(scope="session")
def node():
    """Run a command in the directory of the viewer, with its packages installed."""
    installed = VIEWER / "node_modules" / ".package-lock.json"
    lock = VIEWER / "package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < lock.stat().st_mtime:
        completed = run("npm", "ci", "--no-audit", "--no-fund")
        if completed.returncode and os.environ.get("CI") != "true":
            pytest.skip(f"npm ci failed: {completed.stdout[-300:]}")
        assert completed.returncode == 0, completed.stdout
        installed.touch()
    return run


def run(*command):
    return subprocess.run(
        command,
        cwd=VIEWER,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=240,
    )


def test_unit_tests(node):
    tests = sorted(str(path) for path in TESTS.glob("*.test.mjs"))
    completed = node("node", "--test", *tests)
    assert completed.returncode == 0, completed.stdout[-4000:]
    assert "\n# fail 0" in completed.stdout
    assert "\n# pass 0" not in completed.stdout


def test_types(node):
    completed = node("npx", "--no-install", "tsc", "-p", ".")
    assert completed.returncode == 0, completed.stdout


def test_style(node):
    completed = node("npx", "--no-install", "biome", "check", "js", "build.mjs", str(TESTS))
    assert completed.returncode == 0, completed.stdout


def test_bundles_match_the_sources(node, tmp_path):
    completed = node("node", "build.mjs", "--out", str(tmp_path))
    assert completed.returncode == 0, completed.stdout
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    licenses = VIEWER.parents[1] / "THIRD_PARTY_LICENSES"
    committed = {path.name: path.read_bytes() for path in (*(VIEWER / "static").iterdir(), licenses)}
    assert sorted(built) == sorted(committed)
    stale = [name for name, data in built.items() if committed[name] != data]
    assert stale == [], "run `make viewer` to update the bundles"


@pytest.mark.parametrize(
    ("name", "limit"), [("page.js", MAX_BUNDLE_SIZE), ("widget.js", MAX_BUNDLE_SIZE), ("monitor.js", 30_000)]
)
def test_bundles_are_small(name, limit):
    assert (VIEWER / "static" / name).stat().st_size <= limit
