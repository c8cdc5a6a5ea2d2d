from __future__ import annotations

import torch

from ipygpumem.sources.first_kernels import run_first_kernels

MIB = 1 << 20


def test_workspace_stays_allocated_without_tensors(fake_gpu):
    torch.cuda.init()
    state = torch.get_rng_state()
    assert run_first_kernels(torch, 0) == ""
    assert fake_gpu[0].warm
    assert torch.cuda.memory_allocated() == 32 * MIB
    assert torch.equal(torch.get_rng_state(), state)


def test_user_modes_are_unchanged_and_have_no_effect(fake_gpu):
    torch.cuda.init()
    calls = []

    class RecordingMode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            calls.append(function)
            return function(*arguments, **(options or {}))

    torch.set_default_dtype(torch.float64)
    try:
        with RecordingMode(), torch.inference_mode():
            assert run_first_kernels(torch, 0) == ""
            assert torch.is_inference_mode_enabled()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert calls == []


def test_failed_operations_are_returned(fake_gpu, monkeypatch):
    torch.cuda.init()
    monkeypatch.setattr(torch, "softmax", _fail)
    assert run_first_kernels(torch, 0) == "softmax (no kernel image is available)"
    assert fake_gpu[0].warm


def _fail(*_, **__):
    raise RuntimeError("no kernel image is available\nfor execution on the device")
