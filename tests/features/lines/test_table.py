# ruff: noqa: RUF001 (so many times)
"""The listing in full, as text; as HTML with what untrusted notebooks keep."""

from __future__ import annotations

import re

from ipygpumem.features.lines.model import DeviceLines, LineUse, SourceLine, SourceListing
from ipygpumem.features.lines.table import html_listings, text_listings

MIB = 1 << 20
DEVICE = DeviceLines(
    device="cuda:0",
    listings=(
        SourceListing(
            "In [5]",
            (
                SourceLine(1, "%%gpumem --lines"),
                SourceLine(2, "for x in '<b>':", None),
                SourceLine(3, "    y = f(x)", LineUse(30 * MIB, 40 * MIB, 60 * MIB, 6, 30 * MIB, 3, 20 * MIB)),
            ),
        ),
        SourceListing("f, In [3]", (SourceLine(12, "    del big", LineUse(20 * MIB, None, 0, 0, 512, 1, 0)),)),
    ),
    before=0,
    elsewhere=LineUse(10 * MIB, 10 * MIB, 10 * MIB, 1, 0, 0, 0),
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
cuda:0 by line of code, requested bytes; 0 before
line  held after      peak    allocated        freed      kept
In [5]
   1                                                                        %%gpumem --lines
   2                                                                        for x in '<b>':
   3    30.0 MiB  40.0 MiB  60.0 MiB ×6  30.0 MiB ×3  20.0 MiB  ████████░░      y = f(x)
f, In [3]
  12    20.0 MiB                               512 B            █████           del big
all together
        10.0 MiB  10.0 MiB     10.0 MiB                         ██          (in none of these lines)
        20.0 MiB  40.0 MiB                                                  (requested at the end, at the peak)
           412 B   unknown                                                  (rounding by the allocator)
        20.0 MiB   unknown                                                  (allocated: the counter)
held after and peak: levels of the device; allocated, freed and kept (there at the end): what the line did, with what \
it called"""


def test_text():
    assert text_listings([DEVICE]) == TEXT


def test_html_has_inline_style_only_and_escapes_the_source():
    html = html_listings([DEVICE])
    assert not re.search(r"<(script|style|svg|iframe|img|link)\b|\bclass=|\bon\w+=", html)
    assert "for x in &#39;&lt;b&gt;&#39;:" in html
    assert "white-space:pre" in html
    assert html.count("60.0 MiB ×6") == 1
    assert "width:60.0px" in html
    assert "width:20.0px" in html


def test_an_empty_listing():
    empty = DeviceLines("cuda:0", (), 0, None, 0, 0, 0, 0, 0, 0, 0, 0)
    assert "(allocated: the counter)" in text_listings([empty])
