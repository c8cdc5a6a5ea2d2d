"""Pages and images as files, and pages in a browser."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from ipygpumem import Snapshot
from ipygpumem.core.errors import DeviceError, OptionError
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay import work_limit
from ipygpumem.snapshot.replay.recording import ReplayError
from ipygpumem.viewer.plot_image import SCALES
from ipygpumem.viewer.write import open_page
from snapshot import files
from snapshot.decoding import decode


@pytest.fixture(scope="module")
def snapshot():
    return Snapshot.load(files.path("gpt_small"))


def snapshots_of(path):
    """Return the name and the decoded data of each snapshot in a page."""
    elements = re.findall(
        r'class="ipygpumem-data" data-name="([^"]*)">([^<]*)<', Path(path).read_text(encoding="utf-8")
    )
    return [(name, *decode(base64.b64decode(data))) for name, data in elements]


def test_page(snapshot, tmp_path):
    path = snapshot.to_html(tmp_path / "x.html")
    assert path == tmp_path / "x.html"
    ((name, header, columns),) = snapshots_of(path)
    assert name == "gpt_small.pickle.xz"
    assert len(columns["trace/0/size"]) == 8088
    assert ["/home/user/project/train_gpt.py", 26, "save"] in header["frames"]
    assert [file.name for file in tmp_path.iterdir()] == ["x.html"]


def test_page_of_two_snapshots(snapshot, tmp_path):
    path = snapshot.to_html(tmp_path / "x.html", Snapshot.load(files.path("resnet50")))
    assert [name for name, *_ in snapshots_of(path)] == ["gpt_small.pickle.xz", "resnet50.pickle.xz"]


def test_page_without_paths(snapshot, tmp_path):
    path = snapshot.to_html(tmp_path / "x.html", paths=False)
    ((_, header, _),) = snapshots_of(path)
    assert "/home/user" not in str(header)
    assert ["train_gpt.py", 26, "save"] in header["frames"]


def test_page_with_a_replay(tmp_path):
    settings, name = "roundup_power2_divisions:[256:1,>:8],expandable_segments:True", "oom_fragmented"
    snapshot = Snapshot.load(files.path(name))
    path = snapshot.to_html(tmp_path / "x.html", snapshot, paths=False, settings=settings)
    replay, pages = snapshot.replay(settings), snapshots_of(path)
    for _, header, columns in pages:
        assert header["devices"][0]["replay"]["settings"] == settings
        assert header["devices"][0]["replay"]["reason"] == replay.reason
        sign = np.where(np.isin(columns["replay/0/action"], (Action.SEGMENT_ALLOC, Action.MAP)), 1, -1)
        reserved = np.cumsum(sign * columns["replay/0/bytes"])
        assert (reserved.max(), reserved[-1]) == (replay.reserved_peak, replay.reserved.bytes[-1])
    assert len(pages) == 2
    assert "oom_fragmented" not in str(pages[0][1])


def test_devices_that_cannot_be_replayed(tmp_path):
    recording = files.raw("gpt_cpp")
    recording["device_traces"].append([{"action": "alloc", "addr": 512, "size": 1, "time_us": 5, "stream": 0}])
    snapshot = Snapshot.load(recording)
    ((_, header, columns),) = snapshots_of(snapshot.to_html(tmp_path / "x.html", settings="expandable_segments:True"))
    first, second = header["devices"]
    assert "replay" in first
    assert "replay" not in second
    assert second["notes"][-1] == "Device 1 cannot be replayed: 1 allocations or frees are missing from the recording."
    assert {name for name in columns if name.startswith("replay")} == {
        f"replay/0/{name}" for name in ("address", "size", "event", "action", "segment", "bytes", "pool")
    }
    del recording["device_traces"][0]
    with pytest.raises(ReplayError, match="snapshot: device 0 cannot be replayed: "):
        Snapshot.load(recording).to_html(tmp_path / "y.html", settings="expandable_segments:True")
    with pytest.raises(ReplayError, match="snapshot: the recording contains no events"):
        Snapshot.load({"segments": []}).to_html(tmp_path / "y.html", settings="expandable_segments:True")
    other = files.raw("gpt_cpp")
    other["allocator_settings"]["backend"] = "cudaMallocAsync"  # omitted together with paths
    with pytest.raises(ReplayError, match="not made with PyTorch's native allocator"):
        Snapshot.load(other).to_html(tmp_path / "y.html", paths=False, settings="expandable_segments:True")
    assert not (tmp_path / "y.html").exists()


def test_unusual_files_are_not_replayed(tmp_path, monkeypatch):
    monkeypatch.setattr(work_limit, "_SINGLE_REPLAY_SHARE", 1e-4)
    with pytest.raises(ReplayError, match="replays would take too long"):
        Snapshot.load(files.path("gpt_cpp")).to_html(tmp_path / "x.html", settings="expandable_segments:True")


def test_picture(snapshot, tmp_path, monkeypatch):
    monkeypatch.setattr("ipygpumem.viewer.static_plot.SCALES", SCALES[-1:])
    path = snapshot.to_png(str(tmp_path / "x.png"))
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DeviceError):
        snapshot.to_png(tmp_path / "y.png", device=3)
    assert [file.name for file in tmp_path.iterdir()] == ["x.png"]


def test_failed_write_keeps_previous_page(snapshot, tmp_path, monkeypatch):
    path = tmp_path / "x.html"
    path.write_text("old")
    with pytest.raises(OptionError, match="theme must be 'auto', 'light' or 'dark', but got 'pink'"):
        snapshot.to_html(path, theme="pink")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OptionError, match=r"x\.html was not written: No space left on device"):
        snapshot.to_html(path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.html"]


@pytest.mark.parametrize("method", ["to_html", "to_png"])
def test_invalid_path_is_rejected_immediately(snapshot, tmp_path, method, monkeypatch):
    monkeypatch.setattr("ipygpumem.viewer.write.encode", None)
    monkeypatch.setattr("ipygpumem.viewer.write.static_image", None)
    for path, message in ((tmp_path, "is a directory: add a file name"), (tmp_path / "no" / "x", "does not exist")):
        with pytest.raises(OptionError, match=message):
            getattr(snapshot, method)(path)


def test_page_requires_only_numpy(tmp_path):
    """The environment has no matplotlib, anywidget, IPython or torch."""
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'PIL', 'anywidget', 'ipywidgets', 'traitlets', 'IPython', 'torch', 'jinja2'):\n"
        "    sys.modules[name] = None\n"
        "from ipygpumem import Snapshot\n"
        "snapshot = Snapshot.load(sys.argv[1])\n"
        "snapshot.to_html(sys.argv[2])\n"
        "snapshot.view()._ipython_display_()\n"
    )
    command = [sys.executable, "-c", code, str(files.path("gpt_small")), str(tmp_path / "x.html")]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    assert process.stdout.startswith("GPU 0: peak 1.8 GiB requested")
    assert process.stdout.endswith("(to open the viewer in a browser, run ipygpumem view FILE in a shell)\n")
    assert snapshots_of(tmp_path / "x.html")


class Browser:
    def __init__(self, name, succeeds):
        self.name, self.succeeds, self.opened = name, succeeds, []

    def open(self, address):
        self.opened.append(address)
        return self.succeeds


@pytest.mark.parametrize(
    ("display", "default", "opened"),
    [
        (":0", Browser("firefox", True), True),
        (":0", Browser("firefox", False), False),
        (":0", Browser("/usr/bin/w3m", True), False),
        (None, Browser("firefox", True), False),
    ],
)
def test_browser(snapshot, monkeypatch, tmp_path, display, default, opened):  # noqa: PLR0917 (fixtures)
    for variable in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(variable, raising=False)
    if display:
        monkeypatch.setenv("DISPLAY", display)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.get", lambda: default)
    monkeypatch.setattr("ipygpumem.viewer.write._delete_later", lambda directory: None)
    path, success = open_page([snapshot])
    assert success is opened
    assert path.name == "gpt_small.html"
    assert path.parent.parent == tmp_path
    assert snapshots_of(path)
    graphical = display is not None and default.name == "firefox"
    assert default.opened == ([path.as_uri()] if graphical else [])


@pytest.fixture
def graphical_browser(monkeypatch, tmp_path):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.get", lambda: Browser("firefox", True))


@pytest.mark.usefixtures("graphical_browser")
def test_opened_page_is_deleted_after_the_process_has_ended(tmp_path):
    """The process ends immediately, and the page remains long enough for a browser to read it."""
    script = f"""
import tempfile, webbrowser
from ipygpumem import Snapshot
from ipygpumem.viewer import write
tempfile.tempdir, write._LIFETIME, write._open = {str(tmp_path)!r}, 1, lambda address: True
print(write.open_page([Snapshot.load({str(files.path("gpt_small"))!r})])[0])
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200)
    directory = Path(process.stdout.strip()).parent
    while directory.exists():
        time.sleep(0.05)


@pytest.mark.usefixtures("graphical_browser")
def test_process_that_deletes_an_opened_page(snapshot, tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr("subprocess.Popen", lambda command, **options: commands.append((command, options)) or Mock())
    path, _ = open_page([snapshot])
    ((command, options),) = commands
    assert command[-2:] == [str(path.parent), "600"]
    assert options["start_new_session"] is True, "closing the terminal does not end the process"
    assert options["stdout"] == subprocess.DEVNULL, "the process does not keep the pipe of a caller open"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == [path.parent]


@pytest.mark.usefixtures("graphical_browser")
def test_pages_of_earlier_days_are_deleted(snapshot, tmp_path, monkeypatch):
    monkeypatch.setenv("DISPLAY", "")
    old, _ = open_page([snapshot])
    open_page([snapshot])
    (tmp_path / "private").mkdir()
    link, pipe = tmp_path / "ipygpumem-view-link", tmp_path / "ipygpumem-view-pipe"
    link.symlink_to(tmp_path / "private")
    os.mkfifo(pipe)
    for path in (old.parent, link, pipe):
        os.utime(path, (0, 0), follow_symlinks=False)
    deleted = []
    monkeypatch.setattr("shutil.rmtree", lambda path, **_: deleted.append(path))  # would wait for a writer of the pipe
    open_page([snapshot])
    assert deleted == [old.parent]
    monkeypatch.setattr("os.getuid", lambda: 12345)
    open_page([snapshot])
    assert deleted == [old.parent]


@pytest.mark.usefixtures("graphical_browser")
def test_failed_page_leaves_no_directory(snapshot, tmp_path):
    with pytest.raises(OptionError, match="theme must be"):
        open_page([snapshot], theme="pink")
    assert list(tmp_path.iterdir()) == []


def test_no_browser(snapshot, monkeypatch, tmp_path):
    monkeypatch.setenv("BROWSER", "/no/such/browser %s")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path, success = open_page([snapshot])
    assert success is False
    assert snapshots_of(path)
