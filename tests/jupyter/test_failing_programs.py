"""Exceptions in backward passes are the same under every option, also with the bug in PyTorch 2.11."""

from __future__ import annotations

import pytest
import torch._dynamo  # noqa: F401 (binds names of torch._C, which must happen before a fake GPU replaces them)

from fakes.allocation_mode import AllocationMode
from fakes.failing_programs import compare
from ipygpumem.sources import pytorch


@pytest.fixture
def discarding_gpu(fake_gpu, monkeypatch):
    fake_gpu.discard_exceptions()
    monkeypatch.setattr(pytorch, "discards_exceptions", lambda torch: True)
    fake_gpu.free(fake_gpu.alloc(1 << 20))
    return fake_gpu


def test_error_in_backward_is_the_same_under_every_option(discarding_gpu, notebook, tmp_path):
    notebook.shell.run_line_magic("xmode", "Plain")  # faster
    with AllocationMode(discarding_gpu):
        expected, differences = compare(
            notebook.shell, "error in backward of a function", "cpu", tmp_path, ("snapshot", "lines")
        )
    assert expected[0] == "KeyError"
    assert not differences, "\n".join(differences.values())
