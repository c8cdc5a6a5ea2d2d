"""The HTML of the stand-alone page."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot import Snapshot
from ipygpumem.viewer.write import PageData, page, script
from snapshot.files import path


@pytest.fixture(scope="module")
def data():
    return PageData("gpt_small.pickle", Snapshot.load(path("gpt_small")).encode())


def test_single_file_with_policy_without_network(data):
    text = page([data])
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


def test_names_are_escaped(data):
    name = "</script><script>alert(1)</script>\"'&\ud800"
    text = page([PageData(name, data.data)])
    markup = text.replace(script("page.js"), "")
    assert "<script>alert" not in markup
    assert "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;?" in markup
    text.encode("utf-8")


def test_bundle_ends_no_script():
    assert "</script" not in script("page.js")
    assert "<!--" not in script("page.js")


def test_page_contains_the_licenses_of_its_packages(data):
    licenses = (Path(__file__).parents[2] / "THIRD_PARTY_LICENSES").read_text(encoding="utf-8")
    assert "Mike Bostock" in licenses
    assert licenses.partition("\n\n")[2] in page([data])


def test_page_with_two_snapshots(data):
    second = PageData("second", data.data)
    text = page([data, second], theme="dark")
    assert re.findall('data-name="([^"]*)"', text) == ["gpt_small.pickle", "second"]
    assert 'data-theme="dark"' in text
    assert "<title>gpt_small.pickle and second</title>" in text


def test_titles_with_many_names_are_short(data):
    assert "<title>a, b and 6 more</title>" in page([PageData(name, data.data) for name in "abcdefgh"])


@pytest.mark.parametrize("count", [0, 9])
def test_other_numbers_of_snapshots_are_rejected(data, count):
    with pytest.raises(OptionError, match=f"expected 1 to 8 snapshots to show side by side, but got {count}"):
        page([data] * count)


def test_unknown_themes_are_rejected(data):
    with pytest.raises(OptionError, match="theme must be 'auto', 'light' or 'dark', but got 'blue'"):
        page([data], theme="blue")
