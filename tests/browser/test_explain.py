"""The waterfall of %gpumem explain in JupyterLab, in an untrusted notebook."""

import dataclasses

import nbformat
import pytest

from fakes.reports import before
from ipygpumem.core.other_process import OtherProcess
from ipygpumem.core.reading import Baseline, HostReading, Reading
from ipygpumem.core.units import MIB
from ipygpumem.features.explain.model import CachedMemory
from ipygpumem.features.explain.steps import device_waterfall
from ipygpumem.features.explain.table import html_waterfalls, text_waterfalls


def waterfall():
    reading = dataclasses.replace(before(), others=70 * MIB)
    baseline = Baseline(Reading(1.0, {"cuda:0": reading}, HostReading()), "cuda:0", "H200", 518 * MIB, 158 * MIB)
    hostile = OtherProcess(7, 70 * MIB, "<img src=x onerror='window.broken = 1'>", "other", "ada")
    cache = CachedMemory(12 * MIB, 6 * MIB, 2 * MIB, 3, 2, 4, 9 * MIB, 1)
    return device_waterfall(reading, label="NVIDIA H200", baseline=baseline, processes=[hostile], cache=cache)


@pytest.fixture
def notebook(lab):
    bundle = {"text/plain": text_waterfalls([waterfall()]), "text/html": html_waterfalls([waterfall()])}
    outputs = [nbformat.v4.new_output("display_data", bundle)]
    cell = nbformat.v4.new_code_cell("%gpumem explain", outputs=outputs, execution_count=7)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), lab.folder / "explain.ipynb")
    return "explain.ipynb"


def test_bars_of_the_waterfall_are_adjacent(lab, notebook, tab):
    errors = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    lab.open(tab, notebook)
    output = tab.locator(".jp-OutputArea-output")
    table = output.locator("table")
    table.wait_for(timeout=60_000)
    tab.locator("dialog").get_by_role("button", name="No Kernel").click()
    assert tab.evaluate("window.broken") is None
    rows = table.locator("tr")
    rows.nth(len(waterfall().steps) - 1).wait_for()
    assert rows.count() == len(waterfall().steps)
    boxes = rows.evaluate_all(
        """rows => rows.map(row => {
            const bar = row.querySelectorAll('td')[3].querySelectorAll('span')[1].getBoundingClientRect();
            return [bar.left, bar.right];
        })"""
    )
    left_edge = boxes[0][0]
    scale = (boxes[0][1] - left_edge) / waterfall().steps[0].amount
    level = None
    for step, (start, end) in zip(waterfall().steps, boxes, strict=True):
        if step.kind == "total":
            assert start == pytest.approx(left_edge, abs=0.6)
            assert end - start == pytest.approx(step.amount * scale, abs=2)
            level = step.amount
            continue
        assert end == pytest.approx(left_edge + level * scale, abs=2.1)
        level -= step.amount
        assert start == pytest.approx(left_edge + level * scale, abs=2.1)
    assert boxes[0][1] - left_edge > 60
    assert table.evaluate("element => element.scrollWidth") <= output.evaluate("element => element.clientWidth"), (
        "the advice is not truncated"
    )
    colors = rows.evaluate_all(
        "rows => rows.map(row => getComputedStyle(row.querySelectorAll('td')[3].querySelectorAll('span')[1])"
        ".backgroundColor)"
    )
    assert len(set(colors)) == 7
    grade = table.get_by_text("derived").first
    assert "measured when CUDA was initialized" in grade.get_attribute("title")
    assert errors == []
