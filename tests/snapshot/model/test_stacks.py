"""Classification of files as user code or library code."""

# ruff: noqa: S108 (names of cells in kernels, not of files)
from __future__ import annotations

import time

import pytest

from ipygpumem.snapshot.model.stacks import Frame, is_user_file


@pytest.mark.parametrize(
    ("file", "is_user"),
    [
        ("/home/user/train.py", True),
        ("/tmp/ipykernel_1/2.py", True),
        ("<ipython-input-1-0a1b2c3d4e5f>", True),
        ("<timed exec>", True),
        ("C:\\Users\\me\\train.py", True),
        ("??", False),
        ("", False),
        ("/opt/conda/lib/python3.12/site-packages/torch/nn/functional.py", False),
        ("/usr/lib/python3/dist-packages/x.py", False),
        ("/opt/conda/lib/python3.12/contextlib.py", False),
        ("/workspace/pytorch/torch/nn/functional.py", False),
        ("<frozen runpy>", False),
        ("<eval_with_key>.3", False),
        ("fx_generated__0a1b.py", False),
        ("/home/user/fx_generated_/train.py", True),
        ("/tmp/torchinductor_me/ab/cab.py", False),
        ("/tmp/pyg/torch_geometric.nn.conv.gcn_conv_GCNConv_propagate_tc9lwn9b.py", False),
        ("CUDACachingAllocator.cpp", False),
        ("/home/user/ipygpumem/ipygpumem/sources/pytorch.py", False),  # an editable installation of this package
        ("/home/user/ipygpumem/train.py", True),
    ],
)
def test_is_user_file(file, is_user):
    assert is_user_file(file) is is_user


def test_time_for_a_long_file_name():
    file, begin = "/torch_geometric.a" + "_propagate_" * 30_000, time.process_time()
    assert is_user_file(file)
    assert time.process_time() - begin < 10


def test_libraries_of_other_python_installations():
    for file in (
        "/opt/py/lib/python3.13t/copy.py",
        r"C:\Python312\Lib\copy.py",
        r"C:\Users\me\miniconda3\envs\ml\Lib\copy.py",
        r"C:\Users\me\.pyenv\pyenv-win\versions\3.12.1\Lib\copy.py",
        "/home/me/pytorch/torch/functional.py",
        "<lambdifygenerated-1>",
    ):
        assert not is_user_file(file), file
    for file in ("/home/me/torch/train.py", r"D:\me\Lib\train.py", "/home/me/lib/copy.py", "<stdin>"):
        assert is_user_file(file), file


def test_hashes_of_frames_without_names_are_not_predictable():
    assert hash(Frame("", 5, "")) != hash(("", 5, ""))
    assert hash(Frame("", 5, "")) == hash(Frame("", 5, ""))
