"""Displays of a view in each front end, and responses of its widget."""

from __future__ import annotations

import base64
import functools
import json
import sys
import threading

import pytest

from ipygpumem import Snapshot
from ipygpumem.core.errors import DeviceError, OptionError
from ipygpumem.snapshot.export.encode import encode
from ipygpumem.viewer import view, widget
from ipygpumem.viewer.display_target import DisplayTarget, current_target, shell_target
from ipygpumem.viewer.plot_image import SCALES
from ipygpumem.viewer.view import View
from ipygpumem.viewer.write import script
from snapshot import files
from snapshot.decoding import decode

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def snapshot():
    return Snapshot.load(files.path("gpt_small"))


@pytest.fixture
def displayed():
    return []


@pytest.fixture
def live(displayed):
    return DisplayTarget("live", lambda data, metadata: displayed.append((data, metadata)))


draw_once = functools.cache(view.static_image)


@pytest.fixture(autouse=True)
def images_are_drawn_once(monkeypatch):
    """Draw the image of each snapshot once for this module and at the lowest resolution, because drawing is slow."""
    monkeypatch.setattr("ipygpumem.viewer.static_plot.SCALES", SCALES[-1:])
    monkeypatch.setattr(view, "static_image", draw_once)


def test_live_front_end(snapshot, live, displayed):
    snapshot.view().publish(live)
    (image, size), (viewer, _) = displayed
    assert image["text/plain"] == snapshot.summary()
    assert base64.b64decode(image["image/png"]).startswith(b"\x89PNG")
    assert size["image/png"]["width"] == 880
    assert set(image) == {"text/plain", "image/png"}
    assert set(viewer) == {"text/plain", WIDGET}
    assert viewer["text/plain"] == "(run this cell to display the interactive viewer of gpt_small.pickle.xz)"
    assert len(viewer[WIDGET]["model_id"]) == 32


def test_unattended_notebook(snapshot, displayed):
    batch = snapshot.view()
    batch.publish(DisplayTarget("batch", lambda data, metadata: displayed.append((data, metadata))))
    ((image, _),) = displayed
    assert set(image) == {"text/plain", "image/png"}
    assert batch._widget is None


@pytest.mark.parametrize("kind", ["text", "none"])
def test_terminal(snapshot, kind, monkeypatch, displayed):
    monkeypatch.setattr(view, "static_image", None)
    snapshot.view().publish(DisplayTarget(kind, lambda data, metadata: displayed.append((data, metadata))))
    ((data, _),) = displayed
    assert data == {
        "text/plain": f"{snapshot.summary()}\n(to open the viewer in a browser, run ipygpumem view FILE in a shell)"
    }


def test_two_snapshots(snapshot, live, displayed):
    second = Snapshot.load(files.path("resnet50"))
    combined = snapshot.view(second)
    combined.publish(live)
    images = [data for data, _ in displayed if "image/png" in data]
    assert [data["text/plain"] for data in images] == [f"{snapshot.summary()}\n\n{second.summary()}", ""]
    assert repr(combined) == "<View of gpt_small.pickle.xz and resnet50.pickle.xz>"
    assert len(combined.widget._images) == 2


def test_many_snapshots_keep_a_notebook_small(snapshot, live, displayed):
    shown_view = snapshot.view(*[snapshot] * 7)
    shown_view.publish(live)
    (text, _) = [data["text/plain"] for data, _ in displayed if "image/png" in data]
    assert text == f"{snapshot.summary()}\n\n{snapshot.summary()}\n\n(6 more snapshots in the viewer)"
    assert repr(shown_view) == "<View of gpt_small.pickle.xz, gpt_small.pickle.xz and 6 more>"
    assert (len(shown_view.widget._images), len(shown_view.widget._names)) == (2, 8)
    with pytest.raises(OptionError, match="expected 1 to 8 snapshots to show side by side, but got 9"):
        snapshot.view(*[snapshot] * 8)


def test_without_anywidget(snapshot, live, displayed, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipygpumem.viewer.widget")
    monkeypatch.setitem(sys.modules, "anywidget", None)
    snapshot.view().publish(live)
    (image, _), (note, _) = displayed
    assert "image/png" in image
    assert list(note) == ["text/plain"]
    assert note["text/plain"].startswith(
        "ipygpumem: anywidget is required for the interactive viewer: pip install anywidget"
    )


def test_widget_error_is_displayed_as_one_line(snapshot, live, displayed, monkeypatch):
    def broken(self, *arguments):
        raise AttributeError("no comm_manager\nand more")

    monkeypatch.setattr(widget.SnapshotWidget, "__init__", broken)
    snapshot.view().publish(live)
    (image, _), (note, _) = displayed
    assert "image/png" in image
    assert note == {"text/plain": "ipygpumem: the viewer cannot be displayed: AttributeError: no comm_manager"}


def test_without_matplotlib(snapshot, live, displayed, monkeypatch):
    monkeypatch.setattr(view, "static_image", draw_once.__wrapped__)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    snapshot.view().publish(live)
    (text, _), (viewer, _), (note, _) = displayed
    assert text == {"text/plain": snapshot.summary()}
    assert WIDGET in viewer
    assert note["text/plain"].startswith("ipygpumem: matplotlib is required for images: pip install matplotlib")


def test_unknown_device(snapshot):
    with pytest.raises(DeviceError, match="no device 3"):
        snapshot.view(device=3)


def test_close_and_show_again(snapshot, live, displayed):
    shown_view = snapshot.view()
    shown_view.publish(live)
    first = shown_view.widget
    shown_view.close()
    assert first.comm is None
    shown_view.close()
    shown_view.publish(live)
    assert shown_view.widget is not first
    assert displayed[1][0][WIDGET] != displayed[3][0][WIDGET]


def test_repeated_cell_closes_its_previous_views(snapshot):
    shell = Shell({"metadata": {}})

    def run(cell, request, *views):
        shell.parent = {"metadata": {"cellId": cell}, "header": {"msg_id": request}}
        for displayed in views:
            target = shell_target(shell)
            assert (target.kind, target.cell, target.request) == ("live", cell, request)
            displayed.publish(target)

    first, second, third, shared = (snapshot.view() for _ in range(4))
    run("a", "1", first, second)
    run("b", "2", shared)
    run("c", "3", third, shared)
    assert None not in (first.widget.comm, second.widget.comm)
    widgets = [first._widget, second._widget]
    run("a", "4", third)
    assert [widget.comm for widget in widgets] == [None, None]
    run("c", "5", shared)
    assert third._widget is not None, "cell a still displays it"
    run("b", "6", snapshot.view())
    assert shared._widget is not None, "cell c still displays it"
    closed = shared._widget
    run("c", "7", snapshot.view())
    assert closed.comm is None
    assert shared._widget is None


class Shell:
    def __init__(self, parent, kernel=True):
        self.parent, self.kernel, self.display_pub = parent, kernel, self

    def publish(self, data, metadata):
        pass

    def get_parent(self):
        return self.parent


@pytest.mark.parametrize(
    ("content", "software", "kind"),
    [
        ({"allow_stdin": True}, "", "live"),
        ({}, "", "live"),
        ({"allow_stdin": False}, "", "batch"),
        ({"allow_stdin": False}, "voila/0.5.8", "live"),
    ],
)
def test_targets_of_shells(content, software, kind, monkeypatch):
    monkeypatch.setenv("SERVER_SOFTWARE", software)
    parent = {"content": content, "metadata": {"cellId": "abc"}, "header": {"msg_id": "1"}}
    target = shell_target(Shell(parent))
    assert (target.kind, target.cell, target.request) == (kind, "abc", "1")
    assert shell_target(Shell({}, kernel=None)).kind == "text"


def test_plain_python(capsys):
    target = current_target()
    assert target.kind == "none"
    target.publish({"text/plain": "summary"}, {})
    assert capsys.readouterr().out == "summary\n"


@pytest.fixture
def ask(snapshot, monkeypatch):
    """Send a request to a widget and return the response that a page would receive."""
    viewer = View([snapshot]).widget
    answers = []
    monkeypatch.setattr(type(viewer), "send", lambda self, content, buffers=None: answers.append((content, buffers)))

    def ask(request):
        viewer._handle_custom_msg(request, [])
        return answers.pop()

    return ask


def test_synchronized_state_is_small(snapshot):
    state = View([snapshot]).widget.get_state()
    assert len(json.dumps(state, default=str)) < 4096
    assert state["_esm"] == script("loader.js")
    assert state["state"] == ""
    assert repr(View([snapshot]).widget) == "<viewer for gpt_small.pickle.xz>"


def test_about_request(ask, snapshot):
    content, buffers = ask({"id": "x1", "get": "about"})
    (end,) = content["images"]
    assert content == {"id": "x1", "names": ["gpt_small.pickle.xz"], "images": [end]}
    assert base64.b64encode(View([snapshot]).images[0].png).decode().endswith(end)
    assert len(end) == 64
    assert not buffers


def test_data_is_sent_in_parts(ask, snapshot, monkeypatch):
    monkeypatch.setattr(widget, "MAX_BYTES", 10_000)
    received = b""
    while True:
        content, (part,) = ask({"id": 7, "get": "0", "from": len(received)})
        assert len(part) <= 10_000
        received += bytes(part)
        if len(received) == content["size"]:
            break
    assert received == snapshot.encode()
    assert decode(received)[0]["name"] == "gpt_small.pickle.xz"
    content, (part,) = ask({"id": 8, "get": "0", "from": len(received)})
    assert (content["size"], len(part)) == (len(received), 0)
    content, (part,) = ask({"id": 9, "get": "script"})
    assert content["size"] == len(script("widget.js").encode())


INVALID_REQUESTS = [
    ("nonsense", "unknown request: None"),
    (None, "unknown request: None"),
    ({"id": 1}, "unknown request: None"),
    ({"id": 1, "get": "2"}, "unknown request: '2'"),
    ({"id": 1, "get": ["0"]}, r"unknown request: ['0']"),
    ({"id": 1, "get": "../../etc/passwd"}, "unknown request: '../../etc/passwd'"),
    ({"id": 1, "get": "0", "from": -1}, "-1 is not a position in '0': the size is "),
    ({"id": 1, "get": "0", "from": 1 << 60}, "1152921504606846976 is not a position in '0': the size is "),
    ({"id": 1, "get": "0", "from": "x"}, "'x' is not a position in '0': the size is "),
    ({"id": 1, "get": "0", "from": None}, "None is not a position in '0': the size is "),
]


def test_invalid_requests_are_answered_with_an_error(ask):
    for request, error in INVALID_REQUESTS:
        content, buffers = ask(request)
        assert content["error"].startswith(error)
        assert content["id"] == (request["id"] if isinstance(request, dict) else None)
        assert buffers == []


def test_error_while_encoding_is_answered(ask, monkeypatch):
    def broken(snapshot, replays):
        raise MemoryError

    monkeypatch.setattr("ipygpumem.viewer.view.encode", broken)
    assert ask({"id": 1, "get": "0"}) == ({"id": 1, "error": "MemoryError"}, [])


def test_concurrent_requests_encode_once(snapshot, monkeypatch):
    calls = []

    def counted(snapshot, replays):
        calls.append(threading.get_ident())
        return encode(snapshot, replays)

    monkeypatch.setattr("ipygpumem.viewer.view.encode", counted)
    viewer = View([snapshot]).widget
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(viewer._answer({"get": "0"})[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert [answer["size"] for answer in answers] == [len(snapshot.encode())] * 8


def test_without_source_and_paths(snapshot):
    viewer = snapshot.view(source=False, paths=False).widget
    _, (data,) = viewer._answer({"get": "0"})
    assert "/home/user" not in json.dumps(decode(bytes(data))[0])
