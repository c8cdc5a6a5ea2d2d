"""Readings and pauses of the monitor in the kernel, and invalid requests."""

from __future__ import annotations

import gc
import threading
import time

import pytest

import ipygpumem
from ipygpumem.core.errors import OptionError
from ipygpumem.features.live import monitor as module
from ipygpumem.features.live.monitor import MemoryMonitor
from ipygpumem.measurement.runtime import current
from ipygpumem.viewer.display_target import DisplayTarget

pytestmark = [pytest.mark.ipython, pytest.mark.filterwarnings("ignore:Deprecated in traitlets:DeprecationWarning")]
pytest.importorskip("anywidget")


@pytest.fixture
def displayed(monkeypatch):
    displays = []
    monkeypatch.setattr(
        module, "shell_target", lambda shell: DisplayTarget("live", lambda *bundle: displays.append(bundle))
    )
    return displays


@pytest.fixture
def sent_messages(monkeypatch):
    from ipygpumem.features.live.widget import MonitorWidget

    messages = []
    monkeypatch.setattr(MonitorWidget, "send", lambda self, content, buffers=None: messages.append((content, buffers)))
    if MonitorWidget(dict, print).comm is None:
        pytest.skip("this version of ipywidgets creates no comm without a kernel")
    return messages


@pytest.fixture
def monitoring(fake_gpu, displayed, sent_messages):
    ipygpumem.preload_pytorch()
    cells = []
    monitor = MemoryMonitor(None, current(), lambda: cells[0] if cells else None)
    monitor.cells = cells
    yield monitor
    monitor.close()


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "ipygpumem-monitor"]


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_updates_are_sent_while_a_page_is_visible(monitoring, displayed, sent_messages, fake_gpu):
    monitoring.open(0.25)
    assert displayed[0][0]["text/plain"] == "(run this cell to monitor memory)"
    until(lambda: len(sent_messages) >= 2)
    outside = sent_messages[0][0]["now"]["devices"]["cuda:0"]["outside"]
    fake_gpu.outside(64 << 20)
    until(lambda: sent_messages[-1][0]["now"]["devices"]["cuda:0"]["outside"] == outside + (64 << 20))
    until(lambda: len(sent_messages) >= 5)
    monitoring._widget._receive(monitoring._widget, {"id": "a", "get": "history"}, None)
    history_message = next(content for content, _ in sent_messages if content.get("id") == "a")
    assert len(history_message["time"]) >= 5
    assert history_message["labels"] == {"cuda:0": "NVIDIA H200"}


def test_monitor_pauses_without_pages(monitoring, sent_messages):
    monitoring.open(0.25)
    widget = monitoring._widget
    widget._receive(widget, {"visible": "a"}, None)
    widget._receive(widget, {"visible": "b"}, None)
    widget._receive(widget, {"closed": "a"}, None)
    count = len(sent_messages)
    until(lambda: len(sent_messages) > count + 1)
    widget._receive(widget, {"closed": "b"}, None)
    count = len(sent_messages)
    time.sleep(0.6)
    assert len(sent_messages) <= count + 1, "one update may have been due"
    widget._receive(widget, {"visible": "c"}, None)
    until(lambda: len(sent_messages) > count + 1)


def test_page_without_messages_times_out(monitoring, sent_messages, monkeypatch):
    monitoring.open(0.25)
    monitoring._widget._receive(monitoring._widget, {"visible": "a"}, None)
    monitoring.cells.append((7, time.time()))
    monkeypatch.setattr(module, "_VIEW_TIMEOUT", 0.3)
    count = len(sent_messages)
    until(lambda: len(sent_messages) > count + 3)
    assert monitoring._active, "a busy kernel receives no messages"
    assert "a" in monitoring._last_seen
    assert sent_messages[-1][0]["now"]["running"][0] == 7
    monitoring.cells.clear()
    until(lambda: not monitoring._active)


def test_reopening_moves_monitor(monitoring, displayed, sent_messages, monkeypatch):
    monitoring.open(0.25)
    first = monitoring._widget
    closed = []
    gc.collect()  # close widgets of earlier tests now, not while closing is observed

    def close(widget):
        closed.append(widget)

    monkeypatch.setattr("ipygpumem.features.live.widget.MonitorWidget.close", close)
    until(lambda: len(sent_messages) >= 2)
    monitoring.open()
    assert closed == [first]
    assert len(displayed) == 2
    assert len(monitoring._data()["time"]) >= 2, "the history is moved as well"
    assert threads() == ["ipygpumem-monitor"]
    monitoring.close()
    assert threads() == []
    assert len(closed) == 2


def test_invalid_requests(monitoring, sent_messages):
    monitoring.open(60)
    until(lambda: sent_messages)  # the first update
    widget = monitoring._widget
    for content in (None, 5, {}, {"id": 1, "get": "key"}, {"id": 2, "get": "script", "from": -1}):
        widget._receive(widget, content, None)
    errors = [content for content, _ in sent_messages if "error" in content]
    assert [message["error"].split(" ")[0] for message in errors] == ["unknown", "-1"]
    widget._receive(widget, {"id": 3, "get": "script", "from": 0}, None)
    content, (part,) = sent_messages[-1]
    assert content["size"] == len(part) <= 30_000


@pytest.mark.parametrize(
    ("kind", "message"), [("text", "requires a notebook"), ("batch", "requires an interactive notebook")]
)
def test_no_interactive_notebook(monitoring, monkeypatch, kind, message):
    monkeypatch.setattr(module, "shell_target", lambda shell: DisplayTarget(kind, print))
    with pytest.raises(OptionError, match=message):
        monitoring.open()
    assert threads() == []


@pytest.mark.parametrize("arguments", ["--every 0.1", "--every x", "--every 100", "5", "--no"])
def test_invalid_arguments(gpu_notebook, arguments):
    result = gpu_notebook.run(f"%gpumem monitor {arguments}")
    assert not result.success
    assert "UsageError" in type(result.error).__name__
    assert threads() == []


def test_terminal(gpu_notebook):
    result = gpu_notebook.run("%gpumem monitor")
    assert str(result.error) == (
        "%gpumem monitor: the monitor requires a notebook; use %gpumem to show the current memory usage"
    )
