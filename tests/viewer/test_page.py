"""The stand-alone page as text."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot import Snapshot
from ipygpumem.viewer.page import Source, page, script
from snapshot.files import path


@pytest.fixture(scope="module")
def source():
    return Source("gpt_small.pickle", Snapshot.load(path("gpt_small")).encode())


def test_one_file_with_a_policy_without_network(source):
    text = page([source])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    digest = base64.b64encode(hashlib.sha256(script("page.js").encode()).digest()).decode()
    assert policy.replace("&#x27;", "'").split("; ") == [
        "default-src 'none'",
        f"script-src 'sha256-{digest}' blob:",
        "worker-src blob: data:",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert not re.search(r'(src|href)="(?!data:)', text.replace(script("page.js"), ""))
    assert text.count("<script") - script("page.js").count("<script") == 2
    assert len(text) < 260_000


def test_names_are_escaped(source):
    name = "</script><script>alert(1)</script>\"'&\ud800"
    text = page([Source(name, source.data)], title="<b>&\udfff")
    outside = text.replace(script("page.js"), "")
    assert "<script>alert" not in outside
    assert "&lt;b&gt;&amp;?" in outside
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;?" in outside
    text.encode("utf-8")


def test_the_bundle_ends_no_script():
    assert "</script" not in script("page.js")
    assert "<!--" not in script("page.js")


def test_two_snapshots_are_held(source):
    other = Source("second", source.data)
    text = page([source, other], state="e=5", theme="dark")
    assert re.findall('data-name="([^"]*)"', text) == ["gpt_small.pickle", "second"]
    assert 'data-state="e=5"' in text
    assert 'data-theme="dark"' in text
    assert "<title>gpt_small.pickle and second</title>" in text


def test_more_are_named_in_short(source):
    assert "<title>a, b and 6 more</title>" in page([Source(name, source.data) for name in "abcdefgh"])


@pytest.mark.parametrize("count", [0, 9])
def test_other_numbers_are_refused(source, count):
    with pytest.raises(OptionError, match=f"one snapshot, or up to 8 side by side: {count} were given"):
        page([source] * count)


def test_other_themes_are_refused(source):
    with pytest.raises(OptionError, match="the theme 'blue' is none of auto, light, dark"):
        page([source], theme="blue")
