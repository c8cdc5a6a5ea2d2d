"""Snapshot files, and the pause of garbage collection while they are written."""

from __future__ import annotations

import gc
import pickle
import pickletools

import pytest

from ipygpumem.core.errors import RecordingError
from ipygpumem.core.files import check_path
from ipygpumem.core.introspection import pause_gc
from ipygpumem.measurement.recorder import _recorded_file_names, write_snapshot


def test_file_is_a_pickle_of_protocol_4(tmp_path):
    path = tmp_path / "x.pickle"
    path.write_text("old")
    size = write_snapshot(path, {"segments": [1, 2]})
    assert size == path.stat().st_size
    assert pickle.loads(path.read_bytes()) == {"segments": [1, 2]}
    assert next(pickletools.genops(path.read_bytes()))[1] == 4
    assert list(tmp_path.iterdir()) == [path]


def test_file_permissions(tmp_path):
    (tmp_path / "other").write_text("")
    write_snapshot(tmp_path / "x.pickle", {})
    assert (tmp_path / "x.pickle").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_deleted_directory(tmp_path):
    (tmp_path / "deleted").mkdir()
    path = check_path(tmp_path / "deleted" / "x.pickle")
    (tmp_path / "deleted").rmdir()
    with pytest.raises(RecordingError, match="was not written: No such file or directory"):
        write_snapshot(path, {})


def test_failed_write_leaves_the_existing_file(tmp_path):
    path = tmp_path / "x.pickle"
    path.write_text("old")
    with pytest.raises(Exception, match="pickle"):
        write_snapshot(path, {"segments": list(range(100_000)), "x": lambda: None})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("running", [True, False])
def test_garbage_collection_is_restored(running):
    enabled = gc.isenabled()
    (gc.enable if running else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), pause_gc():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is running
    finally:
        (gc.enable if enabled else gc.disable)()


def test_files_in_stacks_of_pinned_memory():
    def event(action, *files):
        return {"action": action, "frames": [{"filename": file, "line": 1, "name": "f"} for file in files]}

    snapshot = {
        "device_traces": [[event("alloc", "a.py"), event("free_completed", "b.py")]],
        "host_traces": [event("segment_alloc", "c.py"), event("alloc", "d.py"), {"action": "alloc"}, {}, []],
    }
    assert _recorded_file_names(snapshot) == {"a.py", "d.py"}
