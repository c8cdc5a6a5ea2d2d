"""Real kernels, one for each test module, and their messages in order of arrival."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.fixture(autouse=True, scope="session")
def own_profile(tmp_path_factory):
    """Let kernels not share the history database and profile of other test processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        yield


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).is_relative_to(FOLDER):
            item.add_marker(pytest.mark.kernel)


@dataclass
class Answer:
    """Reply to a request and the output messages, as pairs ``(type, content)``."""

    reply: dict
    outputs: list = field(default_factory=list)

    @property
    def kinds(self):
        return [kind for kind, _ in self.outputs]

    @property
    def reports(self):
        return [content["data"]["text/plain"] for kind, content in self.outputs if kind == "display_data"]

    @property
    def printed(self):
        return "".join(content["text"] for kind, content in self.outputs if kind == "stream")

    @property
    def value(self):
        (value,) = [content["data"]["text/plain"] for kind, content in self.outputs if kind == "execute_result"]
        return value


class Kernel:
    """A kernel and its client."""

    def __init__(self, manager, client):
        self.manager, self.client = manager, client

    def send(self, code, **options):
        # otherwise the kernel aborts requests that arrive soon after a failed cell
        return self.client.execute(code, allow_stdin=False, stop_on_error=False, **options)

    def answer(self, request, timeout=200):
        """Collect the messages for a request until its reply has arrived and the kernel is idle."""
        answer, idle = Answer({}), False
        end = time.monotonic() + timeout
        while not idle:
            message = self.client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status":
                idle = content["execution_state"] == "idle"
            elif kind != "execute_input":
                answer.outputs.append((kind, content))
        while not answer.reply:
            message = self.client.get_shell_msg(timeout=max(0.1, end - time.monotonic()))
            if message["parent_header"].get("msg_id") == request:
                answer.reply = message["content"]
        return answer

    def run(self, code, **options):
        return self.answer(self.send(code, **options))

    def request(self, request):
        """Return the reply to a request other than an execute request."""
        return self.answer(request).reply

    def drain(self):
        """Discard pending messages."""
        try:
            while True:
                self.client.get_iopub_msg(timeout=0.1)
        except queue.Empty:
            pass


@pytest.fixture(scope="module")
def make_manager(tmp_path_factory):
    """Return a function that creates a manager of a kernel that uses no ports, which other processes might take."""
    from jupyter_client.manager import KernelManager

    managers = []

    def make():
        file = tmp_path_factory.mktemp("kernel") / "kernel.json"
        managers.append(KernelManager(transport="ipc", connection_file=str(file)))
        return managers[-1]

    yield make
    for manager in managers:
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.fixture(scope="module")
def kernel(make_manager):
    """Return a kernel with the extension, on a machine without a GPU, that reports after every cell."""
    manager = make_manager()
    manager.start_kernel(
        extra_arguments=[
            "--HistoryManager.enabled=False",
            "--IPCompleter.use_jedi=False",  # jedi shares a cache with other test processes
            "--GPUMem.report=always",
            "--GPUMem.preload=off",
        ]
    )
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=200)
        kernel = Kernel(manager, client)
        kernel.run("%load_ext ipygpumem")
        yield kernel
    finally:
        client.stop_channels()


LIVE_SETUP = """
import threading
import time
from ipygpumem.jupyter import live_display

live_display.DELAY = 300
automatic = False
if "_update" not in globals():
    _update = live_display.LiveDisplay.update
requested, updated = threading.Semaphore(0), threading.Semaphore(0)

def _update_on_request(display, reading):
    if automatic or requested.acquire(blocking=False):
        _update(display, reading)
        updated.release()

live_display.LiveDisplay.update = _update_on_request

def update_live_display(count=1):
    while updated.acquire(blocking=False):
        pass
    if not automatic:
        live_display.DELAY = 0
        get_ipython().magics_manager.registry["GPUMem"].cells.live._thread.start(0, 0.01)
    for _ in range(count):
        requested.release()
        updated.acquire()
    if not automatic:
        live_display.DELAY = 300
"""
"""Code that lets cells wait for updates of their live displays. By default, there are no updates but these."""


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


def _execute(kernel, code, *, stdin=True, cell="c1"):
    """Send an execute request as a notebook does, with the cell ID, or without it as a console does."""
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": stdin}
    message = kernel.client.session.msg("execute_request", content | {"stop_on_error": False})
    message["metadata"] = {} if cell is None else {"cellId": cell}
    kernel.client.shell_channel.send(message)
    return message["header"]["msg_id"]


@pytest.fixture
def automatic_updates():
    """Return code after which live displays are updated periodically. Users wait longer for the first update."""
    return "live_display.DELAY, automatic = 0.3, True"


@pytest.fixture
def run(kernel):
    """Run a cell as an interactive front end does, and collect all displays."""

    def run_and_collect(code, *, stdin=True, also=(), cell="c1"):
        displays = Displays()
        displays.kinds, displays.printed = [], ""
        requests = [_execute(kernel, text, stdin=stdin, cell=cell) for text in (code, *also)]
        pending, end = set(requests), time.monotonic() + 200
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
            kernel.client.get_shell_msg(timeout=200)
        displays.texts = [
            [output["data"]["text/plain"] for output in displays.by_request.get(request, ())] for request in requests
        ]
        return displays

    kernel.run(LIVE_SETUP)
    kernel.drain()
    return run_and_collect
