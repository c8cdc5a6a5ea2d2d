"""The page of a profile contains the timeline's data."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from fakes.timelines import random_timeline
from ipygpumem import viewer
from ipygpumem.features.profile.categories import CATEGORIES
from ipygpumem.features.profile.display import encode_timelines, timeline_page
from ipygpumem.viewer.write import script
from snapshot.decoding import decode

MAX_SCRIPT = 80_000
JAVASCRIPT = Path(viewer.__file__).parent / "js" / "profile"


def test_javascript_has_the_same_category_numbers():
    names = re.search(r"export const CATEGORIES = \[(.*?)\]", (JAVASCRIPT / "model.js").read_text(), re.DOTALL)[1]
    assert tuple(re.findall(r'"(.+?)"', names)) == CATEGORIES


def test_encoded_columns_can_be_decoded():
    profile = (random_timeline(), random_timeline(20, "cpu", 2, reserved=False))
    header, columns = decode(encode_timelines(profile, ["a note"]))
    assert header["notes"] == ["a note"]
    assert [device["name"] for device in header["devices"]] == ["cuda:0", "cpu"]
    assert [device["has_counters"] for device in header["devices"]] == [True, False]
    origin = min(timeline.start for timeline in profile)
    for number, timeline in enumerate(profile):
        device = header["devices"][number]
        assert device["base"] == timeline.base.tolist()
        assert device["end"] == timeline.end - origin
        assert (columns[f"{number}/time"] == timeline.time - origin).all()
        for name in ("source", "target", "size"):
            assert (columns[f"{number}/{name}"] == getattr(timeline, name)).all()
    assert (columns["0/allocated"] == profile[0].allocated).all()
    assert "1/allocated" not in columns


def test_single_file_with_policy_without_network():
    text = timeline_page((random_timeline(),), "<x>.html", ["</script><b>"])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src &#x27;none&#x27;" in policy
    assert "http" not in policy
    markup = text.replace(script("categories.js"), "")
    assert not re.search(r'(src|href)="(?!data:)', markup)
    assert "&lt;x&gt;.html" in markup
    assert "<b>" not in markup
    data = re.search(r'class="ipygpumem-data"[^>]*>([^<]*)</script>', text)[1]
    assert decode(base64.b64decode(data))[0]["notes"] == ["</script><b>"]


def test_bundle_is_small_and_ends_no_script():
    assert len(script("categories.js").encode()) <= MAX_SCRIPT
    assert "</script" not in script("categories.js")
    assert "<!--" not in script("categories.js")
