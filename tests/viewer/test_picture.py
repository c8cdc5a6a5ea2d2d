"""The still picture: true, small, and the same whatever the user's figures look like."""

from __future__ import annotations

import io
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from ipygpumem import Snapshot
from ipygpumem.core.errors import DeviceError, OptionError
from ipygpumem.viewer.picture import MOST_BYTES, WIDTH, picture
from snapshot import files

FRAME = {"filename": "/x/a.py", "line": 1, "name": "f"}


def event(action="alloc", addr=4096, size=1 << 20, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 5, "frames": [FRAME], **more}


def opened(made):
    image = Image.open(io.BytesIO(made.png))
    image.load()
    return image


@pytest.mark.parametrize("name", ["gpt_small", "gpt_cpp", "oom_fragmented", "resnet50", "gpt_100k", "gpt_500k"])
def test_it_is_small_and_sharp(name):
    snapshot = Snapshot.load(files.path(name))
    made = picture(snapshot)
    image = opened(made)
    assert len(made.png) <= MOST_BYTES
    assert made.width == WIDTH
    assert image.size[0] >= 1.5 * WIDTH
    assert image.size[0] / image.size[1] == pytest.approx(made.width / made.height, rel=0.01)
    assert made.text == snapshot.summary()


def test_the_peak_is_where_it_is():
    """One allocation among thousands: its colour begins at the axis and ends at its bytes, and is nowhere else."""
    low = [event(addr=1 << 30, size=1), event("free_completed", addr=1 << 30, size=1)]
    trace = [event(addr=8192, size=100 << 20), *low * 30, event("free_completed", 8192, 100 << 20), *low * 2000]
    made = picture(Snapshot.load({"segments": [], "device_traces": [trace]}))
    pixels = np.asarray(opened(made).convert("RGB")).astype(int)
    scale = pixels.shape[1] / WIDTH
    # the paper from the axis to the highest byte: 100 MiB of 116
    plot = pixels[round(62 * scale) : round(362 * scale), round(70 * scale) : round(864 * scale)]
    blue = (np.abs(plot - [119, 170, 221]).sum(axis=2) < 130) & (plot[:, :, 2] - plot[:, :, 0] > 60)
    rows, columns = np.nonzero(blue)
    assert columns.max() == pytest.approx(794 * scale * 63 / 4063, abs=3)
    assert columns.min() < 3
    assert rows.max() == pytest.approx(300 * scale, abs=3)
    assert rows.min() == pytest.approx(300 * scale * (1 - 1 / 1.16), abs=3)


def test_the_users_style_is_neither_used_nor_changed():
    snapshot = Snapshot.load(files.path("gpt_small"))
    plain = picture(snapshot).png
    changes = {"font.size": 31.0, "axes.facecolor": "black", "text.color": "red", "lines.linewidth": 9.0}
    with mpl.rc_context(changes):
        mpl.rcParams["path.sketch"] = (9, 9, 9)
        before = dict(mpl.rcParams)
        assert picture(snapshot).png == plain
        assert dict(mpl.rcParams) == before
    code = (
        "import sys; from ipygpumem import Snapshot; from ipygpumem.viewer import picture;"
        "picture(Snapshot.load(sys.argv[1])); print('matplotlib.pyplot' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(files.path("gpt_small"))]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "False\n"


def test_a_crowd_of_blocks_has_a_coarser_picture():
    trace = [event(addr=512 * number, size=512, time_us=number) for number in range(120_000)]
    made = picture(Snapshot.load({"segments": [], "device_traces": [trace]}))
    assert opened(made).size[0] == WIDTH


HOSTILE = "</script><img onerror=alert(1)>$\\frac{$ %s \x1b[31m \u202e \ud800 日本語 🔥 _^{"


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        ({"segments": [], "device_traces": []}, "no device used memory"),
        ({"segments": [], "device_traces": [[]]}, "no device used memory"),
        ({"segments": [], "device_traces": [[event()]]}, "peak 1.0 MiB"),
        ({"segments": [], "device_traces": [[event(size=0)]]}, "peak 0.0 MiB"),
        ({"segments": [], "device_traces": [[event(addr=(1 << 53) + 4096, size=1 << 48)]]}, "peak 262144.0 GiB"),
        ({"segments": [], "device_traces": [[event(), event("oom", size=1 << 40)]]}, "out of memory once"),
        ({"segments": [], "device_traces": [[event(frames=[{**FRAME, "name": HOSTILE, "filename": HOSTILE}])]]}, "MiB"),
        ({"device_traces": [[event()]]}, "peak 1.0 MiB"),
        (
            {
                "segments": [
                    {
                        "device": 0,
                        "address": 4096,
                        "total_size": 2 << 20,
                        "stream": 0,
                        "segment_type": "small",
                        "blocks": [{"address": 4096, "size": 512, "requested_size": 400, "state": "active_allocated"}],
                    }
                ],
                "device_traces": [[]],
            },
            "no events were recorded",
        ),
    ],
)
def test_odd_files_have_a_picture(snapshot, words):
    made = picture(Snapshot.load(snapshot))
    assert words in made.text
    assert len(made.png) <= MOST_BYTES
    assert opened(made).size[0] >= WIDTH


def test_a_device_that_is_not_there():
    with pytest.raises(DeviceError, match="no device 7"):
        picture(Snapshot.load(files.path("gpt_small")), 7)


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match="a picture needs matplotlib: pip install matplotlib"):
        picture(Snapshot.load(files.path("gpt_small")))
