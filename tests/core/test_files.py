"""Tests of path checks and of files that are written atomically."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import check_path, replacing

ROOT = Path(__file__).parents[2]


def test_path_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check_path("x.pickle") == tmp_path / "x.pickle"
    assert check_path(tmp_path / "y z.pickle") == tmp_path / "y z.pickle"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_path("~/x.pickle") == tmp_path / "x.pickle"
    assert list(tmp_path.iterdir()) == []


def test_existing_file(tmp_path):
    existing = tmp_path / "x.pickle"
    existing.write_text("old")
    assert check_path(existing) == existing
    assert existing.read_text() == "old"


def test_symbolic_link(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "link.pickle").symlink_to(tmp_path / "target" / "x.pickle")
    path = check_path(tmp_path / "link.pickle")
    with replacing(path) as temporary:
        temporary.touch()
    assert (tmp_path / "link.pickle").is_symlink()
    assert (tmp_path / "target" / "x.pickle").is_file()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        (".", "is a directory: add a file name"),
        ("here/", "is a directory"),
        ("missing/x.pickle", "does not exist"),
        ("file/x.pickle", "does not exist"),
        ("/dev/null", "not a regular file"),
        ("/proc/x.pickle", "cannot write to /proc"),
        ("x" * 300, "x"),
        ("~no-such-user/x", "no-such-user"),
        ("a\0b", "path"),
    ],
)
def test_invalid_paths(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OptionError) as exc_info:
        check_path(path)
    assert message in str(exc_info.value)
    assert "\n" not in str(exc_info.value)
    assert sorted(tmp_path.iterdir()) == before


def test_long_names_are_rejected_or_written(tmp_path):
    for length in range(225, 256):
        path = tmp_path / ("x" * length)
        try:
            checked = check_path(path)
        except OptionError:
            continue
        with replacing(checked) as temporary:
            temporary.touch()
        checked.unlink()


def test_path_as_bytes(tmp_path):
    assert check_path(os.fsencode(tmp_path / "x.pickle")) == tmp_path / "x.pickle"


def test_no_permission(tmp_path):
    """Run a script as another user, because root can write everywhere."""
    closed, locked = tmp_path / "closed", tmp_path / "locked.pickle"
    closed.mkdir()
    locked.write_text("old")
    tmp_path.chmod(0o777)
    closed.chmod(0o555)
    locked.chmod(0o444)
    script = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from ipygpumem.core.files import check_path
from ipygpumem.core.errors import OptionError
if os.getuid() == 0:
    os.setuid(65534)
for path in ({str(closed / "x.pickle")!r}, {str(locked)!r}):
    try:
        check_path(path)
    except OptionError as error:
        print(error)
"""
    for folder in tmp_path.parents:
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)  # pytest closes its folders to other users
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert process.stdout.splitlines() == [
        f"cannot write to {closed}: Permission denied",
        f"{locked} is write-protected",
    ], process.stderr
