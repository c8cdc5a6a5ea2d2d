"""The live display below cells whose output is cleared or captured by a widget."""

from __future__ import annotations

import ipykernel
import pytest

pytestmark = pytest.mark.ipython

LIVE = "running for "


def test_cleared_output_is_not_restored(run):
    code = "update_live_display()\nclear_output()\nupdate_live_display(2)\nprint('x')"
    displays = run(f"from IPython.display import clear_output\n{code}")
    assert displays.kinds.count("clear_output") == 1
    assert displays.kinds[-2:] == ["stream", "display_data"]
    (text,) = displays.texts[0]
    assert LIVE not in text


def test_live_plot_is_not_cleared(run):
    """Each iteration ends with clear_output(wait=True), so the next output would clear the plot."""
    code = (
        "from IPython.display import clear_output, display\n"
        "for i in range(6):\n    display(f'plot {i}'); clear_output(wait=True); update_live_display()"
    )
    displays = run(code)
    assert displays.kinds == ["display_data", "clear_output"] * 6
    assert displays.updates == {}


WIDGETS = "import ipywidgets, threading\nfrom IPython.display import clear_output, display\no = ipywidgets.Output()\n"


def text_outputs(displays, at=0):
    """The text outputs of a cell, without the widget itself."""
    return [text for text in displays.texts[at] if not text.startswith("Output")]


def test_output_widget_gets_no_live_display(run):
    displays = run(WIDGETS + "with o:\n    update_live_display(2)\nprint('out')")
    assert displays.updates == {}
    assert displays.kinds[-2:] == ["stream", "display_data"]
    assert [LIVE in text for text in text_outputs(displays)] == [False]
    second_answer = run(WIDGETS + "update_live_display()\nwith o:\n    update_live_display(2)")
    kinds = [kind for kind in second_answer.kinds if not kind.startswith("comm")]
    assert kinds == ["display_data", "update_display_data"], "no updates while the widget captures, then the report"
    assert [LIVE in text for text in text_outputs(second_answer)] == [False]


def test_active_output_widget_gets_the_report(run):
    displays = run(WIDGETS + "update_live_display()\no.__enter__()\nupdate_live_display()")
    assert [kind for kind in displays.kinds if not kind.startswith("comm")] == ["display_data", "display_data"]
    assert text_outputs(displays)[-1].startswith("host memory")


CATCH = (
    WIDGETS
    + "from ipygpumem.jupyter import live_display as live\nreal, n = live.is_captured, [0]\n"
    + "def late(request):\n    n[0] += 1\n    return n[0] == 2\nlive.is_captured = late\n"
)


def test_misplaced_display_is_not_updated(run):
    """A widget started to capture output while the first display was sent."""
    displays = run(CATCH + "update_live_display(2)\nlive.is_captured = real\n")
    assert [kind for kind in displays.kinds if not kind.startswith("comm")] == [
        "display_data",
        "update_display_data",
        "display_data",
    ]
    assert text_outputs(displays)[0] == ""
    assert text_outputs(displays)[1].startswith("host memory")


@pytest.mark.parametrize(
    "clears",
    [
        "o.clear_output()",
        "with o:\n    clear_output(wait=True); print(1)",
        "o.capture(clear_output=True)(lambda: print('g'))()",
    ],
)
def test_clearing_a_widget_does_not_clear_the_cell(run, clears):
    displays = run(WIDGETS + f"update_live_display(2)\n{clears}\nupdate_live_display()")
    assert displays.kinds.count("clear_output") == 1
    assert displays.kinds[-1] == "update_display_data"


def test_widget_waiting_to_be_cleared_does_not_hide_the_report(run):
    displays = run(WIDGETS + "y = bytearray(40 << 20)\nwith o:\n    clear_output(wait=True)\n")
    assert [text.startswith("host memory") for text in text_outputs(displays)] == [True]


def test_task_of_another_cell_clears_that_cell(run):
    task = (
        "import asyncio\nfrom IPython.display import clear_output\n"
        "async def later():\n    await cleared.wait(); clear_output()\n"
        "cleared = asyncio.Event()\n"
        "task = asyncio.ensure_future(later()); 1"
    )
    displays = run(task, also=["update_live_display()\ncleared.set(); await task\nupdate_live_display()"])
    assert displays.kinds.count("clear_output") == 1
    # before ipykernel 7, messages of a task have the header of the running cell, which is cleared then
    assert displays.kinds[-1] == ("display_data" if ipykernel.version_info < (7,) else "update_display_data")
    assert [LIVE in text for text in displays.texts[1]] == [False]
