"""Paths proved before any work, files written whole or not at all."""

from __future__ import annotations

import gc
import os
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path

import pytest

from ipygpumem.core.errors import OptionError, RecordingError
from ipygpumem.core.garbage_collection import collector_paused
from ipygpumem.measurement.recording_file import check_path, write

ROOT = Path(__file__).parents[2]


def test_a_good_path_is_made_absolute_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check_path("x.pickle") == tmp_path / "x.pickle"
    assert check_path(tmp_path / "y z.pickle") == tmp_path / "y z.pickle"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_path("~/x.pickle") == tmp_path / "x.pickle"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_may_be_written_again(tmp_path):
    old = tmp_path / "x.pickle"
    old.write_text("old")
    assert check_path(old) == old
    assert old.read_text() == "old"


def test_a_link_is_followed_to_its_file(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link.pickle").symlink_to(tmp_path / "far" / "x.pickle")
    path = check_path(tmp_path / "link.pickle")
    write(path, {})
    assert (tmp_path / "link.pickle").is_symlink()
    assert (tmp_path / "far" / "x.pickle").is_file()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "needs a path"),
        ("  ", "needs a path"),
        (".", "is a folder: name a file in it"),
        ("here/", "is a folder"),
        ("missing/x.pickle", "does not exist"),
        ("file/x.pickle", "does not exist"),
        ("/dev/null", "not a plain file"),
        ("/proc/x.pickle", "cannot write into /proc"),
        ("x" * 300, "x"),
        ("~nobody-of-that-name/x", "nobody-of-that-name"),
        ("a\0b", "path"),
    ],
)
def test_a_bad_path_is_one_clear_line(tmp_path, monkeypatch, path, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OptionError) as caught:
        check_path(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_a_name_too_long_for_the_temporary_file_is_refused_at_once_or_written(tmp_path):
    for length in range(225, 256):
        path = tmp_path / ("x" * length)
        try:
            checked = check_path(path)
        except OptionError:
            continue
        write(checked, {})
        checked.unlink()


def test_bytes_are_a_path(tmp_path):
    assert check_path(os.fsencode(tmp_path / "x.pickle")) == tmp_path / "x.pickle"


def test_a_folder_or_file_without_permission(tmp_path):
    """Root may write everywhere: so as nobody, where the test runs as root."""
    closed, locked = tmp_path / "closed", tmp_path / "locked.pickle"
    closed.mkdir()
    locked.write_text("old")
    tmp_path.chmod(0o777)
    closed.chmod(0o555)
    locked.chmod(0o444)
    script = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from ipygpumem.measurement.recording_file import check_path
from ipygpumem.core.errors import OptionError
if os.getuid() == 0:
    os.setuid(65534)
for path in ({str(closed / "x.pickle")!r}, {str(locked)!r}):
    try:
        check_path(path)
    except OptionError as error:
        print(error)
"""
    for folder in tmp_path.parents[:2]:  # pytest's own, closed to others
        folder.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [
        f"cannot write into {closed}: Permission denied",
        f"{locked} may not be overwritten",
    ], done.stderr


def test_what_is_written_is_protocol_4_and_whole(tmp_path):
    path = tmp_path / "x.pickle"
    path.write_text("old")
    size = write(path, {"segments": [1, 2]})
    assert size == path.stat().st_size
    assert pickle.loads(path.read_bytes()) == {"segments": [1, 2]}
    assert next(pickletools.genops(path.read_bytes()))[1] == 4
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_gets_the_rights_that_the_users_files_get(tmp_path):
    (tmp_path / "plain").write_text("")
    write(tmp_path / "x.pickle", {})
    assert (tmp_path / "x.pickle").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_that_vanished(tmp_path):
    (tmp_path / "gone").mkdir()
    path = check_path(tmp_path / "gone" / "x.pickle")
    (tmp_path / "gone").rmdir()
    with pytest.raises(RecordingError, match="was not written: No such file or directory"):
        write(path, {})


def test_a_snapshot_that_cannot_be_pickled_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.pickle"
    path.write_text("old")
    with pytest.raises(Exception, match="pickle"):
        write(path, {"segments": list(range(100_000)), "x": lambda: None})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("running", [True, False])
def test_the_collector_is_left_as_it_was(running):
    was = gc.isenabled()
    (gc.enable if running else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), collector_paused():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is running
    finally:
        (gc.enable if was else gc.disable)()
