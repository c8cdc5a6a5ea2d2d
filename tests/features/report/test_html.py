"""HTML of reports: well-formed, without scripts and style sheets, and small."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from fakes.reports import MIB, after, before, report
from ipygpumem.core.reading import HostReading, Reading
from ipygpumem.core.report import RecordingInfo
from ipygpumem.core.tables import AS_TEXT, html_tables
from ipygpumem.features.report.short_report import ShortReport
from ipygpumem.features.report.table import breakdown_tables, report_tables

HOSTILE = "</div><script>alert(1)</script><svg onload=x>\"'&{{ 7 * 7 }}"
LARGEST = report(
    before(process=806 * MIB),
    after(
        active=510 * MIB, others=90 * MIB, used=2400 * MIB, ooms=2, retries=3, busy=True,
        why="NVML entry found by process ID (the test allocation outside PyTorch failed)",
    ),
    exact=False,
    success=False,
    cell=12345,
    recording=RecordingInfo("/home/ada/experiments/2026-11-21/" + "x" * 60 + ".pickle", 1 << 30, 10**6, 10**5),
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
    unattributed = {"process": None, "others": None, "mode": "device", "why": HOSTILE}
    for example in (report(), LARGEST, report(before(**unattributed), after(**unattributed), notes=(HOSTILE,))):
        yield ShortReport(example).html()
        yield html_tables(report_tables(example))
    host = Reading(1.0, {"cuda:0": before(why=HOSTILE)}, HostReading(MIB, MIB, total=MIB))
    yield html_tables(breakdown_tables(host))
    yield ShortReport(report(recording=RecordingInfo(None, error=HOSTILE))).html()


@pytest.mark.parametrize("html", list(pages()))
def test_html_is_well_formed_and_has_inline_styles_only(html):
    elements = Elements(html)
    assert elements.open == []
    assert elements.names <= {"div", "span", "b", "table", "tr", "th", "td"}
    assert elements.attributes <= {"class", "style", "title"}
    assert html.startswith(f"<div {AS_TEXT} ")
    assert html.count("class=") == 1
    for text in ("<script", "<style", "<svg", "<iframe", "url(", "http", "position:"):
        assert text not in html
    for color in ("color:black", "color:white", "background:white", "color:#000", "color:#fff"):
        assert color not in html, "the text must be readable on dark and light pages"


def test_text_is_escaped():
    html = ShortReport(report(notes=(HOSTILE,))).html()
    assert "&lt;script&gt;" in html
    assert "".join(Elements(html).text).count(HOSTILE) == 1


def test_report_of_one_device_is_small():
    assert len(ShortReport(report()).html().encode()) <= 2500
    assert len(ShortReport(LARGEST).html().encode()) <= 4096


def test_html_has_the_metrics_of_the_text():
    text = "".join(Elements(ShortReport(report()).html()).text)
    for part in ("cuda:0", "+400.0 MiB held", "peak +1.2 GiB", "cache +64.0 MiB", "outside PyTorch +256.0 MiB"):
        assert part in text
    assert "1.6 of 139.8 GiB used" in text
    assert "In [7], 2.31 s" in text


def test_tooltips_contain_grades():
    html = ShortReport(report(exact=False)).html()
    assert 'title="exact (allocator counter)"' in html
    assert 'title="bound (' in html


def test_bar_is_never_wider_than_the_device():
    full = after(allocated=140_000 * MIB, active=140_000 * MIB, reserved=140_000 * MIB, process=150_000 * MIB)
    html = ShortReport(report(end=full)).html()
    widths = [float(part.split("px")[0]) for part in html.split("height:9px;width:")[1:]]
    assert 0 < sum(widths) <= 96.5


def test_bar_has_no_negative_parts():
    inconsistent = after(process=None, others=None, mode="device", used=700 * MIB)
    assert "-" not in ShortReport(report(end=inconsistent)).html().split("device memory: ")[1].split('"')[0]


def test_no_change():
    assert "no change" in "".join(Elements(ShortReport(report(end=before(), peak=None)).html()).text)
