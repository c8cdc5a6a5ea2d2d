"""The page of a profile, and its picture: what they hold is what the timeline says."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fakes.timelines import made
from ipygpumem import viewer
from ipygpumem.core.errors import OptionError
from ipygpumem.features.profile import picture as module
from ipygpumem.features.profile.categories import CATEGORIES
from ipygpumem.features.profile.page import encode_profile, timeline_page
from ipygpumem.features.profile.picture import profile_picture
from ipygpumem.features.profile.timeline import CategoryTimeline, Profile
from ipygpumem.snapshot.export.encode import decode
from ipygpumem.viewer.page import script
from ipygpumem.viewer.picture import MOST_BYTES, WIDTH

MOST_SCRIPT = 60_000
MODEL = Path(viewer.__file__).parent / "js" / "categories" / "model.js"


def test_both_sides_number_the_categories_alike():
    names = re.search(r"export const NAMES = \[(.*?)\]", MODEL.read_text(), re.DOTALL)[1]
    assert tuple(re.findall(r'"(.+?)"', names)) == CATEGORIES


def test_the_data_come_back():
    profile = Profile((made(), made(20, "cpu", 2, told=False)))
    header, columns = decode(encode_profile(profile, ["a note"]))
    assert header["notes"] == ["a note"]
    assert [one["name"] for one in header["devices"]] == ["cuda:0", "cpu"]
    assert [one["told"] for one in header["devices"]] == [True, False]
    origin = min(one.start for one in profile.timelines)
    for number, timeline in enumerate(profile.timelines):
        facts = header["devices"][number]
        assert facts["base"] == timeline.base.tolist()
        assert facts["end"] == timeline.end - origin
        assert (columns[f"{number}/time"] == timeline.time - origin).all()
        for name in ("source", "target", "size"):
            assert (columns[f"{number}/{name}"] == getattr(timeline, name)).all()
    assert (columns["0/allocated"] == profile.timelines[0].allocated).all()
    assert "1/allocated" not in columns


def test_one_file_with_a_policy_without_network():
    text = timeline_page(Profile((made(),)), "<x>.html", ["</script><b>"])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src &#x27;none&#x27;" in policy
    assert "http" not in policy
    outside = text.replace(script("categories.js"), "")
    assert not re.search(r'(src|href)="(?!data:)', outside)
    assert "&lt;x&gt;.html" in outside
    assert "<b>" not in outside
    data = re.search(r'class="ipygpumem-data"[^>]*>([^<]*)</script>', text)[1]
    assert decode(base64.b64decode(data))[0]["notes"] == ["</script><b>"]


def test_other_themes_are_refused():
    with pytest.raises(OptionError, match="the theme 'blue' is none of auto, light, dark"):
        timeline_page(Profile((made(),)), "x", theme="blue")


def test_the_bundle_is_small_and_ends_no_script():
    assert len(script("categories.js").encode()) <= MOST_SCRIPT
    assert "</script" not in script("categories.js")
    assert "<!--" not in script("categories.js")


def test_the_colours_are_those_of_the_page():
    text = script("categories.js").lower()
    assert all(colour in text for colour in module._COLOURS)


def test_each_column_shows_its_highest_state():
    timeline = made(3000)
    rows, spans = module._columns(timeline, 200)
    since = timeline.time - timeline.start
    edges = np.linspace(0, timeline.end - timeline.start, 201)
    for column in range(200):
        inside = np.flatnonzero((since > edges[column]) & (since < edges[column + 1])) + 1
        carried = int((since <= edges[column]).sum())
        assert timeline.total[rows[column]] == max(timeline.total[inside].max(initial=0), timeline.total[carried])
    assert timeline.peak[0] in rows
    assert (spans[1:, 0] >= spans[:-1, 0]).all()


def test_each_layer_has_the_height_of_its_bytes():
    timeline = made(300)
    rows, _ = module._columns(timeline, 60)
    top = float(timeline.total.max())
    image = module._pixels(timeline.levels[rows], 2000, top)
    for column in (0, 17, 59):
        for category, colour in enumerate(module._COLOURS):
            rgb = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
            pixels = int((image[:, column, :3] == rgb).all(axis=1).sum())
            assert pixels * top / 2000 == pytest.approx(timeline.levels[rows[column], category], abs=2 * top / 2000)


def test_the_picture(tmp_path):
    still = profile_picture(Profile((made(5000), made(20, "cpu", 2, told=False))), "my $name$.html")
    assert len(still.png) <= MOST_BYTES
    image = Image.open(io.BytesIO(still.png))
    assert still.width == WIDTH
    assert image.width / still.width == image.height / still.height
    assert still.text.startswith("cuda:0: peak ")
    assert "; cpu: peak " in still.text


def test_many_devices():
    still = profile_picture(Profile(tuple(made(50, f"cuda:{number}", number) for number in range(6))), "x")
    assert len(still.text.split("; ")) == 4


def test_one_change_at_one_instant():
    base = np.zeros(len(CATEGORIES), np.int64)
    one = CategoryTimeline(
        "cpu", base, np.array([7]), np.array([-1], np.int8), np.array([7], np.int8), np.array([3]), span=(7, 7)
    )
    assert profile_picture(Profile((one,)), "x").text == "cpu: peak 0.0 MiB after 0.0 ms"
    assert encode_profile(Profile((one,)))
