# ruff: noqa: RUF001 (multiplication signs)
"""The complete listing as text and as HTML, which untrusted notebooks also show."""

from __future__ import annotations

import re
from dataclasses import replace

from ipygpumem.core.tables import html_tables, text_tables
from ipygpumem.features.lines.model import DeviceLines, LineUsage, SourceLine, SourceListing
from ipygpumem.features.lines.table import line_table

MIB = 1 << 20
DEVICE = DeviceLines(
    device="cuda:0",
    listings=(
        SourceListing(
            "In [5]",
            (
                SourceLine(1, "%%gpumem --lines"),
                SourceLine(2, "for x in '<b>':", None),
                SourceLine(3, "    y = f(x)", LineUsage(30 * MIB, 40 * MIB, 60 * MIB, 6, 30 * MIB, 3, 20 * MIB)),
            ),
        ),
        SourceListing("f, In [3]", (SourceLine(12, "    del big", LineUsage(20 * MIB, None, 0, 0, 512, 1, 0)),)),
    ),
    before=0,
    elsewhere=LineUsage(10 * MIB, 10 * MIB, 10 * MIB, 1, 0, 0, 0),
    end_requested=20 * MIB,
    end_rounding=412,
    end_pending=0,
    end_allocated=20 * MIB + 412,
    peak_requested=40 * MIB,
    peak_rounding=None,
    peak_pending=None,
    peak_allocated=None,
)
TEXT = """\
cuda:0 by line of code: requested bytes, 0 in use at the start
          after      peak    allocated        freed      kept
                                                                           In [5]
    1                                                                      %%gpumem --lines
    2                                                                      for x in '<b>':
    3  30.0 MiB  40.0 MiB  60.0 MiB ×6  30.0 MiB ×3  20.0 MiB  ████████░░      y = f(x)
                                                                           f, In [3]
   12  20.0 MiB                               512 B            █████       del big
                                                                           elsewhere
       10.0 MiB  10.0 MiB     10.0 MiB                         ██          other code and threads
                                                                           entire device, at the end and at the peak
       20.0 MiB  40.0 MiB                                                  requested
          412 B   unknown                                                  rounding by the allocator
       20.0 MiB   unknown                                                  allocated (allocator's counter)
after: memory in use on the device after the line ran; peak: highest usage while it ran; allocated, freed, kept \
(still in use at the end): memory of the line and of the functions that it calls"""


def test_text():
    assert text_tables([line_table(DEVICE)]) == TEXT


def test_html_has_only_inline_style_and_escaped_source():
    html = html_tables([line_table(DEVICE)])
    assert not re.search(r"<(script|style|svg|iframe|img|link)\b|\bon\w+=", html)
    assert "for x in &#x27;&lt;b&gt;&#x27;:" in html
    assert "white-space:pre" in html
    assert html.count("60.0 MiB ×6") == 1
    assert "width:72px" in html, "30 of 40 MiB of a bar of 96 pixels"
    assert html.count("width:24px") == 2, "the second bar ends at the peak, the third contains memory of other lines"


def test_empty_listing():
    empty = DeviceLines("cuda:0", (), 0, None, 0, 0, 0, 0, 0, 0, 0, 0)
    text = text_tables([line_table(empty)])
    assert "allocated (allocator's counter)" in text
    assert "rounding" not in text
    assert "waiting" not in text
    assert "elsewhere" not in text


def listing_of(count, used):
    use = LineUsage(MIB, MIB, MIB, 1, 0, 0, MIB)
    lines = [
        SourceLine(number, f"    line {number}", use if number in used else None) for number in range(1, count + 1)
    ]
    device = replace(DEVICE, listings=(SourceListing("In [1]", tuple(lines)),), elsewhere=None)
    return text_tables([line_table(device)]).splitlines()[3:-5]


def test_short_listing_is_complete():
    assert len(listing_of(40, [20])) == 40


def test_long_listing_shows_context_of_lines_that_use_memory():
    rows = listing_of(100, [20, 28, 40])
    sources = [" ".join(row.split()[-2:]) for row in rows]
    line_numbers = [*range(1, 5), *range(17, 32), *range(37, 44)]
    assert [source for source in sources if "line" in source] == [f"line {number}" for number in line_numbers]
    gaps = [row.split("… ")[1] for row in rows if "…" in row]
    assert gaps == [f"{count} lines that neither allocated nor freed memory" for count in (12, 5, 57)]
