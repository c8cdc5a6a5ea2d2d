"""Small HTML that shows everywhere: what is in it, what is not, and how large it may get."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from fakes.facts import MIB, after, before, report
from ipygpumem.core.reading import HostReading, Reading
from ipygpumem.core.report import RecordingFacts
from ipygpumem.display.html import html_tables
from ipygpumem.features.report.line import html_line
from ipygpumem.features.report.table import breakdown_tables, report_tables

HOSTILE = "</div><script>alert(1)</script><svg onload=x>\"'&{{ 7 * 7 }}"
LARGEST = report(
    before(process=806 * MIB),
    after(
        active=510 * MIB, others=90 * MIB, used=2400 * MIB, ooms=2, retries=3, busy=True,
        why="NVML entry found by process id (the test allocation outside PyTorch failed)",
    ),
    exact=False,
    success=False,
    cell=12345,
    recording=RecordingFacts("/home/somebody/experiments/2026-11-21/" + "x" * 60 + ".pickle", 1 << 30, 10**6, 10**5),
)  # fmt: skip


class Elements(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.names, self.attributes, self.open, self.text = set(), set(), [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def pages():
    lost = {"process": None, "others": None, "mode": "device", "why": HOSTILE}
    for one in (report(), LARGEST, report(before(**lost), after(**lost), notes=(HOSTILE,))):
        yield html_line(one)
        yield html_tables(report_tables(one))
    host = Reading(1.0, {"cuda:0": before(why=HOSTILE)}, HostReading(MIB, MIB, total=MIB))
    yield html_tables(breakdown_tables(host))
    yield html_line(report(recording=RecordingFacts(None, error=HOSTILE)))


@pytest.mark.parametrize("html", list(pages()))
def test_inline_style_only_and_well_formed(html):
    elements = Elements(html)
    assert elements.open == []
    assert elements.names <= {"div", "span", "b", "table", "tr", "th", "td"}
    assert elements.attributes <= {"style", "title"}
    for word in ("<script", "<style", "<svg", "<iframe", "url(", "http", "position:", "class="):
        assert word not in html
    for colour in ("color:black", "color:white", "background:white", "color:#000", "color:#fff"):
        assert colour not in html, "dark and light pages alike"


def test_what_a_user_can_name_is_escaped():
    html = html_line(report(notes=(HOSTILE,)))
    assert "&lt;script&gt;" in html
    assert "".join(Elements(html).text).count(HOSTILE) == 1, "and shown as it was written"


def test_an_automatic_report_of_one_device_is_small():
    assert len(html_line(report()).encode()) <= 2500
    assert len(html_line(LARGEST).encode()) <= 4096


def test_it_says_what_the_line_of_text_says():
    text = "".join(Elements(html_line(report())).text)
    for part in ("cuda:0", "+400.0 MiB held", "peak +1.2 GiB", "cache +64.0 MiB", "outside PyTorch +256.0 MiB"):
        assert part in text
    assert "1.6 of 139.8 GiB used" in text
    assert "In [7], 2.31 s" in text


def test_hovering_a_figure_tells_its_grade():
    html = html_line(report(exact=False))
    assert 'title="exact (allocator counter)"' in html
    assert 'title="bound (' in html


def test_the_bar_is_the_cards_and_never_wider():
    full = after(allocated=140_000 * MIB, active=140_000 * MIB, reserved=140_000 * MIB, process=150_000 * MIB)
    html = html_line(report(end=full))
    widths = [float(part.split("px")[0]) for part in html.split("height:9px;width:")[1:]]
    assert 0 < sum(widths) <= 96.5


def test_nothing_negative_is_drawn():
    odd = after(process=None, others=None, mode="device", used=700 * MIB)
    assert "-" not in html_line(report(end=odd)).split("of this card: ")[1].split('"')[0]


def test_nothing_moved_says_so():
    assert "nothing moved" in "".join(Elements(html_line(report(end=before(), peak=None))).text)
