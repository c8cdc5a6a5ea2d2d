"""The books under a cell that runs for long: a display that belongs to its cell and ends as its report."""

from __future__ import annotations

import time

import pytest

LIVE = "running for "


class Displays:
    """What a notebook would hold: the displays of each request, by updates, in their order."""

    def __init__(self):
        self.by_request, self.places, self.updates = {}, {}, {}

    def take(self, message):
        kind, content = message["msg_type"], message["content"]
        shown = self.by_request.setdefault(message["parent_header"].get("msg_id"), [])
        if kind == "clear_output":
            shown.clear()
        if kind not in {"display_data", "update_display_data"}:
            return
        name = content["transient"].get("display_id")
        if kind == "display_data":
            shown.append(content)
            self.places[name] = content
        else:
            self.updates.setdefault(name, []).append(time.monotonic())
            self.places[name].update(content)


@pytest.fixture
def run(kernel):
    """Run a cell as a front end with somebody in front of it, and everything that it and others displayed."""

    def watched(code, *, stdin=True, also=()):
        seen = Displays()
        seen.kinds, seen.printed = [], ""
        requests = [kernel.client.execute(one, allow_stdin=stdin, stop_on_error=False) for one in (code, *also)]
        waiting, end = set(requests), time.monotonic() + 60
        while waiting:
            message = kernel.client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            parent = message["parent_header"].get("msg_id")
            seen.take(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                waiting.discard(parent)
            elif message["msg_type"] == "stream":
                seen.printed += message["content"]["text"]
            if message["msg_type"] not in {"status", "execute_input"}:
                seen.kinds.append(message["msg_type"])
        for _ in requests:
            kernel.client.get_shell_msg(timeout=10)
        seen.texts = [[one["data"]["text/plain"] for one in seen.by_request.get(name, ())] for name in requests]
        return seen

    kernel.drain()
    return watched


def test_a_long_cell_is_followed_and_ends_with_its_report_alone(run):
    seen = run("import time\nx = b'x' * (64 << 20)\ntime.sleep(3.4)\n6 * 7")
    assert seen.kinds[0] == "display_data"
    assert seen.kinds[-2:] == ["execute_result", "update_display_data"]
    (only,) = seen.by_request.values()
    (text,) = [one["data"]["text/plain"] for one in only]
    assert text.startswith("host memory (RSS)  +64.")
    assert LIVE not in text
    assert set(only[0]["data"]) == {"text/plain", "text/html"}
    assert "application/vnd.ipygpumem+json" in only[0]["metadata"]
    (times,) = seen.updates.values()
    assert 2 <= len(times) <= 4 * 1.5 + 1, "at most four a second"


def test_a_short_cell_and_one_that_nobody_watches_have_nothing_of_it(run):
    assert run("import time\ntime.sleep(1.2)").updates == {}
    batch = run("time.sleep(2.8)", stdin=False)
    assert batch.updates == {}
    assert len(batch.texts[0]) == 1


def test_who_does_not_say_that_he_can_be_asked_is_no_front_end(run, kernel):
    """ipyparallel's requests: its client would show the first display, and none of its updates."""
    content = {"code": "time.sleep(2.8)", "silent": False, "user_expressions": {}}
    message = kernel.client.session.msg("execute_request", content)
    kernel.client.shell_channel.send(message)
    assert [kind for kind, _ in kernel.answer(message["header"]["msg_id"]).outputs] == ["display_data"]


def test_it_can_be_switched_off(run):
    run("%config GPUMem.live = 'off'")
    assert run("time.sleep(2.6)").updates == {}
    run("%config GPUMem.live = 'auto'")


def test_a_cell_that_fails_or_asks_for_the_table(run):
    seen = run("%%gpumem\ntime.sleep(2.6)\n1/0")
    assert seen.kinds == ["display_data", "update_display_data", "error", "update_display_data"]
    assert seen.texts[0][0].startswith("host memory of this process   In [")
    assert "failed" in seen.texts[0][0]


def test_quiet_is_quiet_and_a_captured_cell_is_captured(run):
    assert run("%%gpumem -q\ntime.sleep(2.6)").texts == [[]]
    captured = run("%%capture kept\ntime.sleep(2.6)")
    assert captured.updates == {}
    assert len(captured.texts[0]) == 1, "the report alone"


def test_a_statement_takes_the_place_of_its_own_cell(run):
    seen = run("%gpumem time.sleep(2.8)")
    (text,) = seen.texts[0]
    assert LIVE not in text
    assert text.startswith("host memory")


def test_a_line_that_is_open_is_not_parted(run):
    seen = run("print('bar 3%', end='', flush=True)\ntime.sleep(2.8)\nprint('\\rbar 100%')")
    assert seen.printed == "bar 3%\rbar 100%\n"
    assert seen.kinds == ["stream", "stream", "display_data"]
    later = run("print('bar 3%', end='')\ntime.sleep(1)\nprint('\\rbar 100%')\ntime.sleep(2.2)")
    assert later.kinds[-1] == "update_display_data"
    assert len(later.texts[0]) == 1


def test_what_the_cell_clears_stays_cleared(run):
    code = "from IPython.display import clear_output\ntime.sleep(2.6)\nclear_output()\ntime.sleep(1)\nprint('x')"
    seen = run(code)
    assert seen.kinds.count("clear_output") == 1
    assert seen.kinds[-2:] == ["stream", "display_data"]
    (text,) = seen.texts[0]
    assert LIVE not in text


def test_a_live_plot_is_never_cleared_by_us(run):
    """Each round ends with clear_output(wait=True): what comes next clears the picture."""
    code = (
        "from IPython.display import display\n"
        "for i in range(6):\n    display(f'picture {i}'); time.sleep(0.5); clear_output(wait=True)"
    )
    seen = run(code)
    assert seen.kinds == ["display_data", "clear_output"] * 6
    assert seen.updates == {}


def test_it_stays_with_its_cell_whatever_runs_beside_it(run):
    """A thread that outlives its cell, and an async cell: the display of each is in its own cell."""
    chatter = (
        "import threading, asyncio\n"
        "def chatter():\n    for i in range(60): print('line', i); time.sleep(0.05)\n"
        "thread = threading.Thread(target=chatter); thread.start(); 1"
    )
    seen = run(chatter, also=["for _ in range(26): await asyncio.sleep(0.1)", "thread.join()"])
    assert [len(texts) for texts in seen.texts] == [1, 1, 1]
    assert not any(LIVE in text for texts in seen.texts for text in texts)
    assert len(seen.updates) == 1
    numbers = [text.rpartition("In [")[2].partition("]")[0] for (text,) in seen.texts]
    assert len(set(numbers)) == 3


def test_the_thread_parks_with_the_cell_and_goes_with_the_extension(run, kernel):
    names = "[one.name for one in __import__('threading').enumerate() if one.name.startswith('ipygpumem')]"
    assert kernel.run(names).value == "['ipygpumem-live']"
    assert kernel.run(f"%unload_ext ipygpumem\n{names}").value == "[]"
    seen = run("time.sleep(2.4)\n%load_ext ipygpumem\ntime.sleep(2.2)")
    assert seen.updates == {}, "loaded in the middle of a cell"
    seen = run("time.sleep(2.6)\n%unload_ext ipygpumem\ntime.sleep(1)")
    assert seen.texts == [[""]], "nothing is left of it"
    kernel.run("%load_ext ipygpumem")
