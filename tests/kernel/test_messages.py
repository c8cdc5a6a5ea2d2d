"""The messages that a front end receives, and their order."""

from __future__ import annotations

import time

import pytest

pytestmark = pytest.mark.ipython

TABLE = "host memory of this process   In ["


@pytest.mark.parametrize(
    ("code", "kinds", "status"),
    [
        ("6 * 7", ["execute_result", "display_data"], "ok"),
        ("print('x')", ["stream", "display_data"], "ok"),
        ("x = 1", ["display_data"], "ok"),
        ("print('x')\n6 * 7", ["stream", "execute_result", "display_data"], "ok"),
        ("1/0", ["error", "display_data"], "error"),
        ("1 +", ["error", "display_data"], "error"),
        ("%%gpumem\n6 * 7", ["execute_result", "display_data"], "ok"),
        ("%%gpumem\nprint('x')\n1/0", ["stream", "error", "display_data"], "error"),
        ("%%time\n%%gpumem\n1", ["stream", "execute_result", "display_data"], "ok"),
        ("%%capture\n%%gpumem\nprint('x')", ["display_data"], "ok"),
        ("%gpumem 6 * 7", ["display_data", "execute_result"], "ok"),
        ("import asyncio\nawait asyncio.sleep(0.01, 42)", ["execute_result", "display_data"], "ok"),
        ("%%gpumem\nimport asyncio\nawait asyncio.sleep(0.01, 42)", ["execute_result", "display_data"], "ok"),
        ("import asyncio\nawait asyncio.sleep(0.01)\n1/0", ["error", "display_data"], "error"),
        ("from IPython.display import display\ndisplay('x')", ["display_data", "display_data"], "ok"),
    ],
)
def test_order(kernel, code, kinds, status):
    answer = kernel.run(code)
    # the kernel may send one line in several messages
    pairs = zip(answer.kinds, ["", *answer.kinds], strict=False)
    assert [kind for kind, previous in pairs if "stream" not in {kind} & {previous}] == kinds, answer.outputs
    assert answer.reply["status"] == status
    report = [content for kind, content in answer.outputs if kind == "display_data"][-1]
    assert set(report["data"]) == {"text/plain", "text/html"}
    assert report["data"]["text/plain"].startswith(TABLE if "%%gpumem" in code else "host memory")
    assert f"In [{answer.reply['execution_count']}], " in report["data"]["text/plain"]
    assert ("failed" in report["data"]["text/plain"]) is (status == "error")


@pytest.mark.parametrize("code", ["", "\n\n", "%%gpumem --bad\nran = True", "%%gpumem --help\nran = True"])
def test_no_report(kernel, code):
    answer = kernel.run(code)
    if "bad" in code:
        assert answer.reply["ename"] == "UsageError"
        assert "unrecognized arguments: --bad" in answer.printed
    elif "help" in code:
        assert answer.printed.startswith("%%gpumem [OPTIONS]")
    else:
        assert answer.outputs == []
    assert kernel.run("'ran' in globals()").value == "False"


def test_silent_and_unstored(kernel):
    """Executions by the front end itself, such as the variable view of VS Code."""
    assert kernel.run("x = 1", silent=True).outputs == []
    assert kernel.run("x", store_history=False).kinds == ["execute_result"]
    assert kernel.run("1/0", store_history=False).kinds == ["error"]


@pytest.mark.parametrize("head", ["", "%%gpumem\n"])
@pytest.mark.parametrize(
    ("body", "ename"),
    [
        ("import time\ntime.sleep(200)", "KeyboardInterrupt"),
        # an event loop without other tasks notices the cancellation too late (a defect of ipykernel)
        ("import asyncio\nfor _ in range(4000): await asyncio.sleep(0.05)", "CancelledError"),
    ],
)
def test_interrupt(kernel, head, body, ename):
    """An interrupted cell has a report, and so have the following cells."""
    request = kernel.send(f"{head}print('begun', flush=True)\n{body}")
    while True:
        message = kernel.client.get_iopub_msg(timeout=200)
        if message["msg_type"] == "stream" and message["parent_header"]["msg_id"] == request:
            break
    time.sleep(0.2)
    kernel.manager.interrupt_kernel()
    answer = kernel.answer(request)
    assert answer.reply["status"] == "error"
    assert answer.reply["ename"] in {ename, "KeyboardInterrupt"}
    assert len(answer.reports) == 1, answer.outputs
    assert "failed" in answer.reports[0]
    assert "In [" in answer.reports[0]
    after = kernel.run("6 * 7")
    assert after.kinds == ["execute_result", "display_data"]
    assert f"In [{after.reply['execution_count']}], " in after.reports[0]


def test_background_output(kernel):
    """A thread that prints during the next cell does not affect reports."""
    first = kernel.run(
        "import threading, time\n"
        "def chatter():\n"
        "    for i in range(20): print('line', i); time.sleep(0.01)\n"
        "thread = threading.Thread(target=chatter); thread.start()"
    )
    second = kernel.run("thread.join()\n6 * 7")
    for answer in (first, second):
        assert len(answer.reports) == 1
    assert second.value == "42"
    kernel.drain()


def test_ten_thousand_lines(kernel):
    answer = kernel.run("for i in range(10_000): print('line', i)")
    assert answer.printed.count("\n") == 10_000
    assert answer.kinds[-1] == "display_data"
    assert len(answer.reports) == 1


def test_displays_wait_once_for_the_thread_that_sends_messages(kernel):
    answer = kernel.run(
        "import sys, threading\n"
        "flush, threads = sys.stdout.flush, []\n"
        "sys.stdout.flush = lambda: (threads.append(threading.current_thread()), flush())\n"
        "get_ipython().run_line_magic('gpumem', '')\n"
        "sys.stdout.flush = flush\n"
        "flush()\n"
        "[thread.name for thread in threads]"
    )
    assert answer.value == "['IOPub']"


def test_reports_of_session(kernel):
    number = kernel.run("x = 1").reply["execution_count"]
    kernel.run("import ipygpumem")
    assert kernel.run(f"ipygpumem.reports.cell({number}).cell").value == str(number)
    assert kernel.run("len(ipygpumem.reports) >= 3").value == "True"


def test_cell_id_of_front_end(kernel):
    """JupyterLab and nbclient send the cell ID; older kernels do not forward it."""
    client = kernel.client
    content = {"code": "y = 1", "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    message = client.session.msg("execute_request", content, metadata={"cellId": "abc-123"})
    client.shell_channel.send(message)
    kernel.answer(message["header"]["msg_id"])
    version = tuple(
        int(part)
        for part in kernel.run("import ipygpumem, ipykernel; ipykernel.__version__").value.strip("'").split(".")
    )
    expected = "'abc-123'" if version[:2] >= (6, 17) else "None"
    assert kernel.run("ipygpumem.reports[-2].cell_id").value == expected
    if expected != "None":
        assert kernel.run("ipygpumem.reports.cell('abc-123').cell is not None").value == "True"


@pytest.mark.parametrize(
    ("text", "expected_matches"),
    [
        ("%%gpumem --s", ["--snapshot", "--stacks"]),
        ("%%gpumem --stacks n", ["none"]),
        ("%gpumem o", ["off", "on"]),
        ("%gpumem record s", ["save", "start", "stop"]),
        ("%gpumem -", ["-d", "--device"]),
    ],
)
def test_completion(kernel, text, expected_matches):
    major = int(kernel.run("import IPython; IPython.version_info[0]").value)
    reply = kernel.request(kernel.client.complete(text))
    matches = [match.strip() for match in reply["matches"]]
    if major >= 8:
        assert set(expected_matches) <= set(matches), reply
        assert text[: reply["cursor_start"]] + matches[0] != text
    else:
        assert reply["status"] == "ok"


def test_inspection(kernel):
    reply = kernel.request(kernel.client.inspect("%gpumem", 7))
    assert reply["found"]
    assert "--snapshot PATH" in reply["data"]["text/plain"]


def test_is_complete(kernel):
    assert kernel.request(kernel.client.is_complete("%%gpumem\nx = 1"))["status"] == "incomplete"
    assert kernel.request(kernel.client.is_complete("x = 1"))["status"] == "complete"


def test_nested_run_and_unload(kernel):
    assert len(kernel.run("get_ipython().run_cell('6 * 7');").reports) == 1
    answer = kernel.run("%unload_ext ipygpumem\n6 * 7")
    assert answer.kinds == ["execute_result"]
    assert kernel.run("6 * 7").kinds == ["execute_result"]
    assert kernel.run("%load_ext ipygpumem").kinds == ["stream"]
    assert kernel.run("6 * 7").kinds == ["execute_result", "display_data"]
