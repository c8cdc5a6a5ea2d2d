"""Call stacks without the import of torch.compile's backend."""

import contextlib
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch._C._profiler import gather_traceback, symbolize_tracebacks  # noqa: E402

from ipygpumem.sources.allocator import inductor_unloaded  # noqa: E402


def format_stack():
    return symbolize_tracebacks([gather_traceback(python=True, script=False, cpp=False)])


@pytest.fixture
def without_inductor(monkeypatch):
    for name in [name for name in sys.modules if name.partition("torch._inductor")[1]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(torch), "_inductor", raising=False)


def test_formatting_a_stack_does_not_import_inductor(without_inductor):
    with inductor_unloaded():
        assert any(frame["name"] == "format_stack" for frame in format_stack()[0])
        assert not hasattr(torch._inductor, "codecache")
    assert "torch._inductor" not in sys.modules and "_inductor" not in vars(torch)


@pytest.mark.parametrize("is_imported_meanwhile", [False, True])
def test_imported_inductor_is_kept(without_inductor, monkeypatch, is_imported_meanwhile):
    requests = []
    codecache = SimpleNamespace(
        PyCodeCache=SimpleNamespace(stack_frames_for_code=lambda *place: requests.append(place))
    )
    module = SimpleNamespace(codecache=codecache)
    with inductor_unloaded() if is_imported_meanwhile else contextlib.nullcontext():
        monkeypatch.setitem(vars(torch), "_inductor", module)
    with inductor_unloaded():
        format_stack()
    assert torch._inductor is module and requests


def test_other_attributes_import_inductor(without_inductor, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._inductor", SimpleNamespace(config=5))
    with inductor_unloaded():
        assert torch._inductor.config == 5
