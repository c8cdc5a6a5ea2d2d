"""The automatic report in JupyterLab: untrusted, in light and dark."""

import nbformat
import pytest

from ipygpumem.core.reading import DeviceReading, HostReading
from ipygpumem.core.report import DeviceReport, HostReport, PeakCounters, RecordingInfo, Report
from ipygpumem.core.tables import html_tables
from ipygpumem.core.units import GIB, MIB
from ipygpumem.features.report.short_report import ShortReport
from ipygpumem.features.report.table import report_tables


def report():
    def reading(allocated, process):
        return DeviceReading(
            name="cuda:0",
            context=True,
            allocated=allocated,
            reserved=allocated + 64 * MIB,
            active=allocated,
            requested=allocated,
            inactive_split=0,
            retries=0,
            ooms=0,
            used=process + 3 * GIB,
            driver_reserved=600 * MIB,
            process=process,
            others=GIB,
            total=24 * GIB,
            mode="process",
            why="NVML entry verified by a test allocation",
            source="NVML memory info v2",
        )

    high = PeakCounters(3 * GIB, 3 * GIB, 3 * GIB, 3 * GIB)
    device = DeviceReport(reading(100 * MIB, GIB), reading(2 * GIB, 5 * GIB), high)
    host = HostReport(
        HostReading(rss=GIB, peak=GIB, total=64 * GIB), HostReading(rss=2 * GIB, peak=2 * GIB, total=64 * GIB)
    )
    hostile = RecordingInfo(
        path="</div><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>.pickle"
    )
    return Report({"cuda:0": device}, host, seconds=2.31, cell=7, recording=hostile)


@pytest.fixture
def notebook(lab):
    facts = report()
    outputs = [
        nbformat.v4.new_output(
            "display_data", {"text/plain": ShortReport(facts).text(), "text/html": ShortReport(facts).html()}
        ),
        nbformat.v4.new_output("display_data", {"text/plain": "table", "text/html": html_tables(report_tables(facts))}),
    ]
    cell = nbformat.v4.new_code_cell("x = 1", outputs=outputs, execution_count=7)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), lab.folder / "report.ipynb")
    return "report.ipynb"


def luminance(color):
    parts = [float(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


COLORS = """element => {
    let box = element, background = 'rgba(0, 0, 0, 0)';
    while (box && background.endsWith(', 0)')) {
        background = getComputedStyle(box).backgroundColor;
        box = box.parentElement;
    }
    return {color: getComputedStyle(element).color, background};
}"""


@pytest.mark.parametrize("tab", ["light", "dark"], indirect=True)
def test_report_in_an_untrusted_notebook(lab, notebook, tab, tmp_path):
    errors = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    lab.open(tab, notebook)
    line = tab.locator(".jp-OutputArea-output", has_text="In [7], 2.31 s").first
    line.wait_for(timeout=60_000)
    text = line.inner_text()
    assert "cuda:0" in text
    assert "+1.9 GiB held" in text
    assert "outside PyTorch +2.1 GiB" in text
    assert "<script>" in text, "markup is escaped"
    assert tab.evaluate("window.broken") is None
    held_figure = line.get_by_text("+1.9 GiB held")
    assert "allocator counter" in held_figure.get_attribute("title")
    assert held_figure.evaluate("element => getComputedStyle(element).borderBottomStyle") == "solid"
    bar = line.locator("span[title^='shares of de']")
    assert bar.bounding_box()["width"] > 90
    parts = bar.locator("span").evaluate_all("parts => parts.map(part => part.getBoundingClientRect().width)")
    assert len(parts) == 4
    device = report().devices["cuda:0"].after
    assert sum(parts) == pytest.approx(96 * device.in_use / device.capacity, abs=0.5)
    colors = held_figure.evaluate(COLORS)
    light, dark = sorted([luminance(colors["color"]), luminance(colors["background"])], reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5, colors
    assert (luminance(colors["background"]) < 0.2) == (tab.scheme == "dark")
    table = tab.locator(".jp-OutputArea-output table").first
    assert "allocated (tensors)" in table.inner_text()
    tab.screenshot(path=tmp_path / f"report-{tab.scheme}.png")
    assert errors == []
