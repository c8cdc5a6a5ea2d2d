"""The live display below a long cell, which the report replaces."""

from __future__ import annotations

import itertools
import time

import pytest

pytestmark = pytest.mark.ipython

LIVE = "running for "


def test_long_cell_is_updated_and_ends_with_its_report(run, automatic_updates):
    run(automatic_updates)
    start = time.monotonic()
    displays = run("x = b'x' * (64 << 20)\nupdate_live_display(3)\n6 * 7")
    assert time.monotonic() - start > 0.3 + 2 * 0.25, "at most four updates per second"
    assert displays.kinds[0] == "display_data"
    assert displays.kinds[-2:] == ["execute_result", "update_display_data"]
    (outputs,) = displays.by_request.values()
    (text,) = [output["data"]["text/plain"] for output in outputs]
    assert text.startswith("host memory (RSS)  +64.")
    assert LIVE not in text
    assert set(outputs[0]["data"]) == {"text/plain", "text/html"}
    assert "application/vnd.ipygpumem+json" in outputs[0]["metadata"]
    (updates,) = displays.updates.values()
    assert len(updates) >= 3


def test_no_display_for_short_and_unattended_cells(run, automatic_updates):
    assert run("time.sleep(0.2)").updates == {}
    run(automatic_updates)
    batch = run("time.sleep(0.6)", stdin=False)
    assert batch.updates == {}
    assert len(batch.texts[0]) == 1


def test_console_gets_only_the_report(run, automatic_updates):
    """jupyter run, jupyter console, qtconsole and ipyparallel send no cell ID: the only display is the report."""
    run(automatic_updates)
    displays = run("time.sleep(0.6)", cell=None)
    assert displays.kinds == ["display_data"]
    assert displays.texts[0][0].startswith("host memory (RSS)")


def test_live_display_off(run, automatic_updates):
    run(f"%config GPUMem.live = 'off'\n{automatic_updates}")
    assert run("time.sleep(0.6)").updates == {}
    run("%config GPUMem.live = 'auto'")


def test_failed_cell_with_a_table(run):
    displays = run("%%gpumem\nupdate_live_display(2)\n1/0")
    kinds = [kind for kind, _ in itertools.groupby(displays.kinds)]  # at least one update before the error
    assert kinds == ["display_data", "update_display_data", "error", "update_display_data"]
    assert displays.texts[0][0].startswith("host memory of this process   In [")
    assert "failed" in displays.texts[0][0]


def test_quiet_and_captured_cells(run, automatic_updates):
    run(automatic_updates)
    assert run("%%gpumem -q\ntime.sleep(0.6)").texts == [[]]
    captured = run("%%capture kept\ntime.sleep(0.6)")
    assert captured.updates == {}
    assert len(captured.texts[0]) == 1, "only the report"


def test_statement_replaces_the_display(run):
    displays = run("%gpumem update_live_display(2)")
    assert displays.kinds == ["display_data", "update_display_data", "update_display_data"]
    (text,) = displays.texts[0]
    assert LIVE not in text
    assert text.startswith("host memory")


def test_incomplete_line_is_not_split(run):
    displays = run("print('bar 3%', end='', flush=True)\nupdate_live_display(2)\nprint('\\rbar 100%')")
    assert displays.printed == "bar 3%\rbar 100%\n"
    assert displays.kinds == ["stream", "stream", "display_data"]
    second_answer = run("print('bar 3%', end='')\nupdate_live_display()\nprint('\\rbar 100%')\nupdate_live_display()")
    assert second_answer.kinds[-1] == "update_display_data"
    assert len(second_answer.texts[0]) == 1


def test_display_is_in_its_own_cell(run):
    """The live display of an async cell, and of a cell with a thread that outlives it, is below this cell."""
    background_thread = (
        "import threading, asyncio\n"
        "finished = threading.Event()\n"
        "def chatter():\n    while not finished.wait(0.05): print('line\\n', end='')\n"
        "thread = threading.Thread(target=chatter); thread.start(); 1"
    )
    asynchronous = "for _ in range(3):\n    await asyncio.sleep(0.1); update_live_display()"
    displays = run(background_thread, also=[asynchronous, "finished.set(); thread.join()"])
    assert [len(texts) for texts in displays.texts] == [1, 1, 1]
    assert not any(LIVE in text for texts in displays.texts for text in texts)
    assert len(displays.updates) == 1
    numbers = [text.rpartition("In [")[2].partition("]")[0] for (text,) in displays.texts]
    assert len(set(numbers)) == 3


def test_thread_ends_with_the_extension(run, automatic_updates, kernel):
    names = "[thread.name for thread in __import__('threading').enumerate() if thread.name.startswith('ipygpumem')]"
    # the first cell of an interactive front end starts the thread
    assert run(f"print({names})").printed == "['ipygpumem-live']\n"
    assert kernel.run(f"%unload_ext ipygpumem\n{names}").value == "[]"
    run(automatic_updates)
    displays = run("time.sleep(0.6)\n%load_ext ipygpumem\ntime.sleep(0.6)")
    assert displays.updates == {}, "loaded during a cell"
    displays = run("update_live_display()\n%unload_ext ipygpumem\ntime.sleep(0.6)")
    assert displays.texts == [[""]], "the display is emptied"
    kernel.run("%load_ext ipygpumem")


def test_no_display_with_reports_off(run, automatic_updates):
    run(f"{automatic_updates}\n%config GPUMem.report = 'off'\n%config GPUMem.limit = '10 GiB'")
    try:
        assert run("time.sleep(0.6)").kinds == []
        assert len(run("%%gpumem\nupdate_live_display()").updates) == 1
    finally:
        run("%config GPUMem.report = 'always'\n%config GPUMem.limit = None")
    for off in ("%gpumem off", "%config GPUMem.report = 'off'"):
        assert [text for text in run(f"update_live_display()\n{off}").texts[0] if text] == []
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
    assert len(run("update_live_display(2)").updates) == 1
