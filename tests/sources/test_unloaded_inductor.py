"""Tests that call stacks are read without importing torch.compile's backend."""

import contextlib
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch._C._profiler import gather_traceback, symbolize_tracebacks  # noqa: E402

from ipygpumem.sources.allocator import without_inductor  # noqa: E402


def format_stack():
    return symbolize_tracebacks([gather_traceback(python=True, script=False, cpp=False)])


@pytest.fixture
def inductor_not_imported(monkeypatch):
    for name in [name for name in sys.modules if name.partition("torch._inductor")[1]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(torch), "_inductor", raising=False)


def test_formatting_a_stack_does_not_import_inductor(inductor_not_imported):
    with without_inductor():
        assert any(frame["name"] == "format_stack" for frame in format_stack()[0])
        assert not hasattr(torch._inductor, "codecache")
    assert "torch._inductor" not in sys.modules and "_inductor" not in vars(torch)


@pytest.mark.parametrize("is_imported_meanwhile", [False, True])
def test_imported_inductor_is_kept(inductor_not_imported, monkeypatch, is_imported_meanwhile):
    requests = []
    codecache = SimpleNamespace(
        PyCodeCache=SimpleNamespace(stack_frames_for_code=lambda *place: requests.append(place))
    )
    module = SimpleNamespace(codecache=codecache)
    with without_inductor() if is_imported_meanwhile else contextlib.nullcontext():
        monkeypatch.setitem(vars(torch), "_inductor", module)
    with without_inductor():
        format_stack()
    assert torch._inductor is module and requests


def test_other_attributes_import_inductor(inductor_not_imported, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._inductor", SimpleNamespace(config=5))
    with without_inductor():
        assert torch._inductor.config == 5
