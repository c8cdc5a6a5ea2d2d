"""The replacements for functions of zeta.utils."""

from __future__ import annotations

import os
import pickle
import re

import pytest
import torch

from fakes.builds import NO_GPU
from ipygpumem import OptionError, RecordingError, print_cuda_memory_usage, save_memory_snapshot

MIB = 1 << 20


def test_directory_is_created_for_snapshot(fake_gpu, tmp_path):
    with save_memory_snapshot(tmp_path / "a" / "b") as path:
        fake_gpu.alloc(MIB)
    assert path == tmp_path / "a" / "b" / "snapshot.pickle"
    assert pickle.loads(path.read_bytes())["ipygpumem"]["recording"]["own"] is True
    assert not torch._C._cuda_isHistoryEnabled()


@pytest.mark.parametrize("name", ["x.pickle", "x.pkl"])
def test_file_name(fake_gpu, tmp_path, name):
    with save_memory_snapshot(str(tmp_path / name)) as path:
        pass
    assert path == tmp_path / name
    assert path.is_file()


def test_existing_directory(fake_gpu, tmp_path):
    (tmp_path / "run.pickle").mkdir()
    with save_memory_snapshot(tmp_path / "run.pickle") as path:
        pass
    assert path == tmp_path / "run.pickle" / "snapshot.pickle"


def test_home_directory_is_expanded(fake_gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with save_memory_snapshot("~/runs") as path:
        pass
    assert path == tmp_path / "runs" / "snapshot.pickle"
    assert os.fspath(path) in {str(file) for file in tmp_path.rglob("*")}


def test_snapshot_is_saved_when_block_raises(fake_gpu, tmp_path):
    with pytest.raises(ZeroDivisionError), save_memory_snapshot(tmp_path / "runs") as path:
        raise ZeroDivisionError
    assert path.is_file()
    assert not torch._C._cuda_isHistoryEnabled()


def test_invalid_path_raises_before_block(fake_gpu, tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OptionError, match="cannot create the directory"),
        save_memory_snapshot(tmp_path / "file" / "runs"),
    ):
        raise AssertionError("the block ran")


def test_no_directory_is_created_without_gpu(tmp_path):
    with pytest.raises(RecordingError, match=re.escape(NO_GPU)), save_memory_snapshot(tmp_path / "runs"):
        raise AssertionError("the block ran")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RecordingError, match=re.escape(NO_GPU)), print_cuda_memory_usage():
        raise AssertionError("the block ran")


def test_usage_is_printed_in_the_original_format(fake_gpu, capsys):
    with print_cuda_memory_usage():
        block = fake_gpu.alloc(400 * MIB)
    assert capsys.readouterr().out == "CUDA memory usage: 0.39 GB\n"
    with pytest.raises(ZeroDivisionError), print_cuda_memory_usage():
        fake_gpu.free(block)
        raise ZeroDivisionError
    assert capsys.readouterr().out == "CUDA memory usage: -0.39 GB\n"


def test_nested_usage(fake_gpu, capsys):
    with print_cuda_memory_usage():
        fake_gpu.alloc(1024 * MIB)
        with print_cuda_memory_usage():
            fake_gpu.alloc(512 * MIB)
    assert capsys.readouterr().out == "CUDA memory usage: 0.50 GB\nCUDA memory usage: 1.50 GB\n"


def test_usage_of_device_current_at_start(two_gpus, capsys):
    two_gpus.alloc(MIB, 1)
    with print_cuda_memory_usage():
        two_gpus.alloc(512 * MIB, 0)
        torch.cuda.set_device(1)
    assert capsys.readouterr().out == "CUDA memory usage: 0.50 GB\n"
