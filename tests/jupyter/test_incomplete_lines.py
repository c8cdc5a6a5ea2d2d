"""Detection of incomplete lines in output streams."""

from __future__ import annotations

import io
import sys

import pytest

from ipygpumem.jupyter.live_display import IncompleteLineTracker

pytestmark = pytest.mark.ipython


class Stream(io.StringIO):
    """A stream with attributes, like the streams of a kernel."""


def put(monkeypatch):
    """Replace stdout and stderr. A fixture cannot do so, because pytest replaces them again before the test."""
    out, err = Stream(), Stream()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    return out, err


@pytest.mark.parametrize(
    ("texts", "still_open"),
    [([], False), (["done\n"], False), (["loading "], True), (["loading ", "done\n"], False), (["\r 3%"], True)],
)
def test_incomplete_line_is_detected(monkeypatch, texts, still_open):
    out, _ = put(monkeypatch)
    tail = IncompleteLineTracker()
    tail.install()
    for text in texts:
        sys.stdout.write(text)
    assert tail.incomplete is still_open
    sys.stderr.write("a bar 3%")
    assert tail.incomplete
    tail.remove()
    assert out.getvalue() == "".join(texts)


def test_streams_are_restored(monkeypatch):
    out, err = put(monkeypatch)
    tail = IncompleteLineTracker()
    tail.install()
    tail.remove()
    assert "write" not in vars(out)
    assert "write" not in vars(err)
    calls = []
    out.write = calls.append
    tail.install()
    print("x", end="")
    tail.remove()
    assert out.write == calls.append
    assert "".join(calls) == "x"


def test_later_patches_are_kept(monkeypatch):
    out, _ = put(monkeypatch)
    tail = IncompleteLineTracker()
    tail.install()
    own_write = out.write
    out.write = lambda text: own_write(text.upper())
    tail.remove()
    print("x", end="")
    assert out.getvalue() == "X"


def test_errors_of_the_stream_are_raised(monkeypatch):
    put(monkeypatch)
    tail = IncompleteLineTracker()
    tail.install()
    with pytest.raises(TypeError):
        sys.stdout.write(5)
    assert not tail.incomplete
    tail.remove()


def test_streams_that_cannot_be_patched(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", object())
    tail = IncompleteLineTracker()
    tail.install()
    assert not tail.incomplete
    tail.remove()
