"""The live display below a long cell, which the report replaces."""

from __future__ import annotations

import itertools
import time

import ipykernel
import pytest

pytestmark = pytest.mark.ipython

LIVE = "running for "
DELAY = 0.5
"""Seconds after which the display appears, here; users wait for two."""


class Displays:
    """The displays that a notebook stores for each request, after all updates, in order."""

    def __init__(self):
        self.by_request, self.places, self.updates = {}, {}, {}

    def handle_message(self, message):
        kind, content = message["msg_type"], message["content"]
        request_displays = self.by_request.setdefault(message["parent_header"].get("msg_id"), [])
        if kind == "clear_output":
            request_displays.clear()
        if kind not in {"display_data", "update_display_data"}:
            return
        name = content["transient"].get("display_id")
        if kind == "display_data":
            request_displays.append(content)
            self.places[name] = content
        else:
            self.updates.setdefault(name, []).append(time.monotonic())
            self.places[name].update(content)


def execute(kernel, code, *, stdin=True, cell="c1"):
    """Send an execute request as a notebook does, with the cell ID, or without it as a console does."""
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": stdin}
    message = kernel.client.session.msg("execute_request", content | {"stop_on_error": False})
    message["metadata"] = {} if cell is None else {"cellId": cell}
    kernel.client.shell_channel.send(message)
    return message["header"]["msg_id"]


@pytest.fixture
def run(kernel):
    """Run a cell as an interactive front end does, and collect all displays."""

    def run_and_collect(code, *, stdin=True, also=(), cell="c1"):
        displays = Displays()
        displays.kinds, displays.printed = [], ""
        requests = [execute(kernel, text, stdin=stdin, cell=cell) for text in (code, *also)]
        pending, end = set(requests), time.monotonic() + 60
        while pending:
            message = kernel.client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            parent = message["parent_header"].get("msg_id")
            displays.handle_message(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                pending.discard(parent)
            elif message["msg_type"] == "stream":
                displays.printed += message["content"]["text"]
            if message["msg_type"] not in {"status", "execute_input"}:
                displays.kinds.append(message["msg_type"])
        for _ in requests:
            kernel.client.get_shell_msg(timeout=10)
        displays.texts = [
            [output["data"]["text/plain"] for output in displays.by_request.get(request, ())] for request in requests
        ]
        return displays

    kernel.run(f"import time\nfrom ipygpumem.jupyter import live_display\nlive_display.DELAY = {DELAY}")
    kernel.drain()
    return run_and_collect


def test_long_cell_is_updated_and_ends_with_its_report(run):
    displays = run("x = b'x' * (64 << 20)\ntime.sleep(1.9)\n6 * 7")
    assert displays.kinds[0] == "display_data"
    assert displays.kinds[-2:] == ["execute_result", "update_display_data"]
    (outputs,) = displays.by_request.values()
    (text,) = [output["data"]["text/plain"] for output in outputs]
    assert text.startswith("host memory (RSS)  +64.")
    assert LIVE not in text
    assert set(outputs[0]["data"]) == {"text/plain", "text/html"}
    assert "application/vnd.ipygpumem+json" in outputs[0]["metadata"]
    (times,) = displays.updates.values()
    assert 2 <= len(times) <= 4 * 1.5 + 1, "at most four updates per second"


def test_no_display_for_short_and_unattended_cells(run):
    assert run("import time\ntime.sleep(0.2)").updates == {}
    batch = run("time.sleep(1.3)", stdin=False)
    assert batch.updates == {}
    assert len(batch.texts[0]) == 1


def test_console_gets_only_the_report(run):
    """jupyter run, jupyter console, qtconsole and ipyparallel send no cell ID: the only display is the report."""
    displays = run("time.sleep(1.3)", cell=None)
    assert displays.kinds == ["display_data"]
    assert displays.texts[0][0].startswith("host memory (RSS)")


def test_live_display_off(run):
    run("%config GPUMem.live = 'off'")
    assert run("time.sleep(1.1)").updates == {}
    run("%config GPUMem.live = 'auto'")


def test_failed_cell_with_a_table(run):
    displays = run("%%gpumem\ntime.sleep(1.25)\n1/0")
    kinds = [kind for kind, _ in itertools.groupby(displays.kinds)]  # at least one update before the error
    assert kinds == ["display_data", "update_display_data", "error", "update_display_data"]
    assert displays.texts[0][0].startswith("host memory of this process   In [")
    assert "failed" in displays.texts[0][0]


def test_quiet_and_captured_cells(run):
    assert run("%%gpumem -q\ntime.sleep(1.1)").texts == [[]]
    captured = run("%%capture kept\ntime.sleep(1.1)")
    assert captured.updates == {}
    assert len(captured.texts[0]) == 1, "only the report"


def test_statement_replaces_the_display(run):
    displays = run("%gpumem time.sleep(1.3)")
    (text,) = displays.texts[0]
    assert LIVE not in text
    assert text.startswith("host memory")


def test_incomplete_line_is_not_split(run):
    displays = run("print('bar 3%', end='', flush=True)\ntime.sleep(1.3)\nprint('\\rbar 100%')")
    assert displays.printed == "bar 3%\rbar 100%\n"
    assert displays.kinds == ["stream", "stream", "display_data"]
    second_answer = run("print('bar 3%', end='')\ntime.sleep(0.3)\nprint('\\rbar 100%')\ntime.sleep(0.7)")
    assert second_answer.kinds[-1] == "update_display_data"
    assert len(second_answer.texts[0]) == 1


def test_cleared_output_is_not_restored(run):
    code = "from IPython.display import clear_output\ntime.sleep(1.1)\nclear_output()\ntime.sleep(1)\nprint('x')"
    displays = run(code)
    assert displays.kinds.count("clear_output") == 1
    assert displays.kinds[-2:] == ["stream", "display_data"]
    (text,) = displays.texts[0]
    assert LIVE not in text


def test_live_plot_is_not_cleared(run):
    """Each iteration ends with clear_output(wait=True), so the next output would clear the plot."""
    code = (
        "from IPython.display import clear_output, display\n"
        "for i in range(6):\n    display(f'plot {i}'); time.sleep(0.25); clear_output(wait=True)"
    )
    displays = run(code)
    assert displays.kinds == ["display_data", "clear_output"] * 6
    assert displays.updates == {}


def test_display_is_in_its_own_cell(run):
    """The live display of an async cell, and of a cell with a thread that outlives it, is below this cell."""
    background_thread = (
        "import threading, asyncio\n"
        "def chatter():\n    for i in range(26): print('line', i); time.sleep(0.05)\n"
        "thread = threading.Thread(target=chatter); thread.start(); 1"
    )
    displays = run(background_thread, also=["for _ in range(11): await asyncio.sleep(0.1)", "thread.join()"])
    assert [len(texts) for texts in displays.texts] == [1, 1, 1]
    assert not any(LIVE in text for texts in displays.texts for text in texts)
    assert len(displays.updates) == 1
    numbers = [text.rpartition("In [")[2].partition("]")[0] for (text,) in displays.texts]
    assert len(set(numbers)) == 3


def test_thread_ends_with_the_extension(run, kernel):
    names = "[thread.name for thread in __import__('threading').enumerate() if thread.name.startswith('ipygpumem')]"
    run("None")  # the first cell of an interactive front end starts the thread
    assert kernel.run(names).value == "['ipygpumem-live']"
    assert kernel.run(f"%unload_ext ipygpumem\n{names}").value == "[]"
    displays = run("time.sleep(0.9)\n%load_ext ipygpumem\ntime.sleep(0.7)")
    assert displays.updates == {}, "loaded during a cell"
    displays = run("time.sleep(1.1)\n%unload_ext ipygpumem\ntime.sleep(1)")
    assert displays.texts == [[""]], "the display is emptied"
    kernel.run("%load_ext ipygpumem")


WIDGETS = "import ipywidgets, threading\nfrom IPython.display import clear_output, display\no = ipywidgets.Output()\n"


def text_outputs(displays, at=0):
    """The text outputs of a cell, without the widget itself."""
    return [text for text in displays.texts[at] if not text.startswith("Output")]


def test_output_widget_gets_no_live_display(run):
    displays = run(WIDGETS + "with o:\n    time.sleep(1.3)\nprint('out')")
    assert displays.updates == {}
    assert displays.kinds[-2:] == ["stream", "display_data"]
    assert [LIVE in text for text in text_outputs(displays)] == [False]
    second_answer = run(WIDGETS + "time.sleep(0.8)\nwith o:\n    time.sleep(1.4)\ntime.sleep(0.1)")
    kinds = [kind for kind in second_answer.kinds if not kind.startswith("comm")]
    assert kinds == ["display_data", "update_display_data"], "no updates while the widget captures, then the report"
    assert [LIVE in text for text in text_outputs(second_answer)] == [False]


def test_active_output_widget_gets_the_report(run):
    displays = run(WIDGETS + "time.sleep(0.8)\no.__enter__()\ntime.sleep(0.2)")
    assert [kind for kind in displays.kinds if not kind.startswith("comm")] == ["display_data", "display_data"]
    assert text_outputs(displays)[-1].startswith("host memory")


CATCH = (
    WIDGETS
    + "from ipygpumem.jupyter import live_display as live\nreal, n = live.captured, [0]\n"
    + "def late(request):\n    n[0] += 1\n    return n[0] == 2\nlive.captured = late\n"
)


def test_misplaced_display_is_not_updated(run):
    """A widget started to capture output while the first display was sent."""
    displays = run(CATCH + "time.sleep(1.2)\nlive.captured = real\n")
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
    displays = run(WIDGETS + f"time.sleep(1.2)\n{clears}\ntime.sleep(0.2)")
    assert displays.kinds.count("clear_output") == 1
    assert displays.kinds[-1] == "update_display_data"


def test_widget_waiting_to_be_cleared_does_not_hide_the_report(run):
    displays = run(WIDGETS + "y = bytearray(40 << 20)\nwith o:\n    clear_output(wait=True)\n")
    assert [text.startswith("host memory") for text in text_outputs(displays)] == [True]


def test_task_of_another_cell_clears_that_cell(run):
    task = (
        "import asyncio\nfrom IPython.display import clear_output\n"
        "async def later():\n    await asyncio.sleep(1.2); clear_output()\n"
        "task = asyncio.ensure_future(later()); 1"
    )
    displays = run(task, also=["await asyncio.sleep(1.9)"])
    assert displays.kinds.count("clear_output") == 1
    # before ipykernel 7, messages of a task have the header of the running cell, which is cleared then
    assert displays.kinds[-1] == ("display_data" if ipykernel.version_info < (7,) else "update_display_data")
    assert [LIVE in text for text in displays.texts[1]] == [False]


def test_no_display_with_reports_off(run):
    run("%config GPUMem.report = 'off'\n%config GPUMem.limit = '10 GiB'")
    try:
        assert run("time.sleep(1.1)").kinds == []
        assert len(run("%%gpumem\ntime.sleep(1.1)").updates) == 1
    finally:
        run("%config GPUMem.report = 'always'\n%config GPUMem.limit = None")
    for off in ("%gpumem off", "%config GPUMem.report = 'off'"):
        assert [text for text in run(f"time.sleep(0.9)\n{off}").texts[0] if text] == []
        run("%gpumem on\n%config GPUMem.report = 'always'")


def test_cell_runs_if_the_thread_cannot_start(run):
    """The streams are also restored."""
    run(
        "import sys, threading\n"
        "live = get_ipython().magics_manager.registry['GPUMem'].cells.live\nlive._thread.close()\n"
        "start, wrote = threading.Thread.start, vars(sys.stdout).get('write')\n"
        "def bad(self): raise RuntimeError('no more threads')\nthreading.Thread.start = bad"
    )
    displays = run("7")
    assert len(displays.texts[0]) == 1
    run("threading.Thread.start = start")
    remaining = run("assert len(live._cells) == 1 and len(live._clearing.listeners) == 1")
    assert "error" not in remaining.kinds
    assert len(run("time.sleep(1.2)").updates) == 1
