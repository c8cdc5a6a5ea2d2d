"""What a view displays, and where; and what its widget answers."""

from __future__ import annotations

import base64
import json
import sys
import threading

import pytest

from ipygpumem import Snapshot
from ipygpumem.core.errors import DeviceError, OptionError
from ipygpumem.snapshot.export.encode import decode
from ipygpumem.viewer import View, view, widget
from ipygpumem.viewer.display_target import DisplayTarget, current_target, shell_target
from ipygpumem.viewer.page import script
from snapshot import files

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def snapshot():
    return Snapshot.load(files.path("gpt_small"))


@pytest.fixture
def shown():
    return []


@pytest.fixture
def live(shown):
    return DisplayTarget("live", lambda data, metadata: shown.append((data, metadata)))


@pytest.fixture(autouse=True)
def no_cells():
    view._published.clear()
    yield
    view._published.clear()


def test_somebody_watches(snapshot, live, shown):
    snapshot.view().publish(live)
    (picture, size), (viewer, _) = shown
    assert picture["text/plain"] == snapshot.summary()
    assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG")
    assert size["image/png"]["width"] == 880
    assert set(picture) == {"text/plain", "image/png"}
    assert set(viewer) == {"text/plain", WIDGET}
    assert viewer["text/plain"] == "(run this cell for the live viewer of gpt_small.pickle.xz)"
    assert len(viewer[WIDGET]["model_id"]) == 32


def test_nobody_watches(snapshot, shown):
    made = snapshot.view()
    made.publish(DisplayTarget("batch", lambda data, metadata: shown.append((data, metadata))))
    ((picture, _),) = shown
    assert set(picture) == {"text/plain", "image/png"}
    assert made._widget is None


@pytest.mark.parametrize("kind", ["text", "none"])
def test_a_terminal(snapshot, kind, monkeypatch, shown):
    monkeypatch.setattr(view, "picture", None)
    snapshot.view().publish(DisplayTarget(kind, lambda data, metadata: shown.append((data, metadata))))
    ((data, _),) = shown
    assert data == {
        "text/plain": f"{snapshot.summary()}\n(ipygpumem view FILE, in a shell, opens the viewer in a browser)"
    }


def test_two_snapshots(snapshot, live, shown):
    other = Snapshot.load(files.path("resnet50"))
    made = snapshot.view(other)
    made.publish(live)
    pictures = [data for data, _ in shown if "image/png" in data]
    assert [data["text/plain"] for data in pictures] == [f"{snapshot.summary()}\n\n{other.summary()}", ""]
    assert repr(made) == "<View of gpt_small.pickle.xz and resnet50.pickle.xz>"
    assert len(made.widget._stills) == 2


def test_many_snapshots_keep_a_notebook_small(snapshot, live, shown):
    made = snapshot.view(*[snapshot] * 7)
    made.publish(live)
    (text, _) = [data["text/plain"] for data, _ in shown if "image/png" in data]
    assert text == f"{snapshot.summary()}\n\n{snapshot.summary()}\n\n(6 more in the viewer)"
    assert repr(made) == "<View of gpt_small.pickle.xz, gpt_small.pickle.xz and 6 more>"
    assert (len(made.widget._stills), len(made.widget._names)) == (2, 8)
    with pytest.raises(OptionError, match="one snapshot, or up to 8 side by side: 9 were given"):
        snapshot.view(*[snapshot] * 8)


def test_without_anywidget(snapshot, live, shown, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipygpumem.viewer.widget")
    monkeypatch.setitem(sys.modules, "anywidget", None)
    snapshot.view().publish(live)
    (picture, _), (note, _) = shown
    assert "image/png" in picture
    assert list(note) == ["text/plain"]
    assert note["text/plain"].startswith("ipygpumem: the live viewer needs anywidget: pip install anywidget")


def test_widgets_that_do_not_work_are_a_line(snapshot, live, shown, monkeypatch):
    def broken(self, *words):
        raise AttributeError("no comm_manager\nand more")

    monkeypatch.setattr(widget.Widget, "__init__", broken)
    snapshot.view().publish(live)
    (picture, _), (note, _) = shown
    assert "image/png" in picture
    assert note == {"text/plain": "ipygpumem: no live viewer here: AttributeError: no comm_manager"}


def test_without_matplotlib(snapshot, live, shown, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    snapshot.view().publish(live)
    (text, _), (viewer, _), (note, _) = shown
    assert text == {"text/plain": snapshot.summary()}
    assert WIDGET in viewer
    assert note["text/plain"].startswith("ipygpumem: a picture needs matplotlib: pip install matplotlib")


def test_a_device_that_is_not_there(snapshot):
    with pytest.raises(DeviceError, match="no device 3"):
        snapshot.view(device=3)


def test_closing_and_showing_again(snapshot, live, shown):
    made = snapshot.view()
    made.publish(live)
    first = made.widget
    made.close()
    assert first.comm is None
    made.close()
    made.publish(live)
    assert made.widget is not first
    assert shown[1][0][WIDGET] != shown[3][0][WIDGET]


def test_a_cell_that_runs_again_closes_what_it_showed(snapshot):
    def run(cell, request, *views):
        for one in views:
            one.publish(DisplayTarget("live", lambda data, metadata: None, cell, request))

    first, second, third, kept = (snapshot.view() for _ in range(4))
    run("a", "1", first, second)
    run("b", "2", kept)
    run("c", "3", third, kept)
    assert None not in (first.widget.comm, second.widget.comm)
    gone = [first._widget, second._widget]
    run("a", "4", third)
    assert [one.comm for one in gone] == [None, None]
    run("c", "5", kept)
    assert third._widget is not None, "cell a shows it still"
    run("b", "6", snapshot.view())
    assert kept._widget is not None, "cell c shows it still"
    closed = kept._widget
    run("c", "7", snapshot.view())
    assert closed.comm is None
    assert kept._widget is None


class Shell:
    def __init__(self, parent, kernel=object()):  # noqa: B008 (any will do)
        self.parent, self.kernel, self.display_pub = parent, kernel, None

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
def test_places(content, software, kind, monkeypatch):
    monkeypatch.setenv("SERVER_SOFTWARE", software)
    parent = {"content": content, "metadata": {"cellId": "abc"}, "header": {"msg_id": "1"}}
    found = shell_target(Shell(parent))
    assert (found.kind, found.cell, found.request) == (kind, "abc", "1")
    assert shell_target(Shell({}, kernel=None)).kind == "text"


def test_no_shell_at_all(capsys):
    found = current_target()
    assert found.kind == "none"
    found.publish({"text/plain": "words"}, {})
    assert capsys.readouterr().out == "words\n"


@pytest.fixture
def asked(snapshot, monkeypatch):
    """A widget and its answers: what a page would receive."""
    made = View([snapshot]).widget
    answers = []
    monkeypatch.setattr(type(made), "send", lambda self, content, buffers=None: answers.append((content, buffers)))

    def ask(question):
        made._handle_custom_msg(question, [])
        return answers.pop()

    return ask


def test_what_is_synchronised_is_small(snapshot):
    state = View([snapshot]).widget.get_state()
    assert len(json.dumps(state, default=str)) < 4096
    assert state["_esm"] == script("loader.js")
    assert state["state"] == ""
    assert repr(View([snapshot]).widget) == "<viewer of gpt_small.pickle.xz>"


def test_about(asked, snapshot):
    content, buffers = asked({"id": "x1", "get": "about"})
    (end,) = content["stills"]
    assert content == {"id": "x1", "names": ["gpt_small.pickle.xz"], "stills": [end]}
    assert base64.b64encode(View([snapshot]).pictures[0].png).decode().endswith(end)
    assert len(end) == 64
    assert not buffers


def test_bytes_come_in_parts(asked, snapshot, monkeypatch):
    monkeypatch.setattr(widget, "MOST_BYTES", 10_000)
    whole = b""
    while True:
        content, (part,) = asked({"id": 7, "get": "0", "from": len(whole)})
        assert len(part) <= 10_000
        whole += bytes(part)
        if len(whole) == content["size"]:
            break
    assert whole == snapshot.encode()
    assert decode(whole)[0]["name"] == "gpt_small.pickle.xz"
    content, (part,) = asked({"id": 8, "get": "0", "from": len(whole)})
    assert (content["size"], len(part)) == (len(whole), 0)
    content, (part,) = asked({"id": 9, "get": "script"})
    assert content["size"] == len(script("widget.js").encode())


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("nonsense", "'nonsense' is no question"),
        (None, "None is no question"),
        ({"id": 1}, "there is no None here"),
        ({"id": 1, "get": "2"}, "there is no '2' here"),
        ({"id": 1, "get": ["0"]}, r"there is no ['0'] here"),
        ({"id": 1, "get": "../../etc/passwd"}, "there is no '../../etc/passwd' here"),
        ({"id": 1, "get": "0", "from": -1}, "'0' has no byte -1"),
        ({"id": 1, "get": "0", "from": 1 << 60}, "'0' has no byte"),
        ({"id": 1, "get": "0", "from": "x"}, "'0' has no byte 'x'"),
        ({"id": 1, "get": "0", "from": None}, "'0' has no byte None"),
    ],
)
def test_a_bad_question_has_an_answer(asked, question, words):
    content, buffers = asked(question)
    assert content["error"].startswith(words)
    assert content["id"] == (question["id"] if isinstance(question, dict) else None)
    assert buffers == []


def test_what_fails_while_answering_is_told(asked, monkeypatch):
    def broken(snapshot):
        raise MemoryError

    monkeypatch.setattr(view, "encode", broken)
    assert asked({"id": 1, "get": "0"}) == ({"id": 1, "error": "MemoryError"}, [])


def test_many_threads_make_the_bytes_once(snapshot, monkeypatch):
    calls = []
    real = view.encode

    def slow(one):
        calls.append(threading.get_ident())
        return real(one)

    monkeypatch.setattr(view, "encode", slow)
    made = View([snapshot]).widget
    got = []
    threads = [threading.Thread(target=lambda: got.append(made._answer({"get": "0"})[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert [one["size"] for one in got] == [len(snapshot.encode())] * 8


def test_without_source_and_paths(snapshot):
    made = snapshot.view(source=False, paths=False).widget
    _, (data,) = made._answer({"get": "0"})
    assert "/home/user" not in json.dumps(decode(bytes(data))[0])
