"""Tests of the choice and format of the stack frame that a table shows."""

from __future__ import annotations

import sys

import pytest

from ipygpumem.core import introspection
from ipygpumem.core.introspection import frame_label, is_library_file, release_free_memory, user_frame
from ipygpumem.sources.host import read_host


def test_innermost_frame_of_user_code():
    frames = [("/x/site-packages/torch/nn/linear.py", 9, "forward"), ("/home/me/train.py", 12, "step")]
    assert user_frame(frames) == frames[1]
    assert user_frame(frames[:1]) == frames[0]
    assert user_frame(()) is None


def test_frame_label():
    assert frame_label("/home/me/train.py", 12, "step") == "train.py:12 step"
    assert frame_label("train.py", 12, "") == "train.py:12"


def test_files_of_ordinary_packages_are_not_cached():
    """A search for holders looks up the files of thousands of modules."""
    introspection._is_in_installation_folder.cache_clear()
    assert is_library_file(sys.modules["sysconfig"].__file__)
    assert is_library_file("/home/me/env/lib/site-packages/package/module.py")
    assert introspection._is_in_installation_folder.cache_info().currsize == 0


def test_packages_in_other_folders_are_libraries(tmp_path, monkeypatch):
    """``pip install --target FOLDER`` installs packages into a folder that does not have a special name."""
    installed, own, working = (tmp_path / name for name in ("installed", "own", "working"))
    for folder in (installed, own, working):
        folder.mkdir()
        monkeypatch.syspath_prepend(folder)
    (installed / "package-1.0.dist-info").mkdir()
    (working / "package-1.0.dist-info").mkdir()
    monkeypatch.chdir(working)
    assert is_library_file(str(installed / "package" / "module.py"))
    assert not is_library_file(str(own / "package" / "module.py"))
    assert not is_library_file(str(tmp_path / "installed_too" / "module.py"))
    assert not is_library_file(str(working / "package" / "module.py"))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(installed / "train.py"), raising=False)
    assert not is_library_file(str(installed / "package" / "step.py"))


@pytest.mark.skipif(sys.platform != "linux", reason="requires glibc")
def test_free_memory_of_the_heap_is_released():
    size = 32 << 20
    blocks = [bytearray(4_000) for _ in range(size // 4_000)]
    last = bytearray(4_000)  # otherwise, the end of the heap is released immediately
    in_use = read_host().rss
    del blocks
    release_free_memory()
    assert in_use - read_host().rss > size // 2
    del last
