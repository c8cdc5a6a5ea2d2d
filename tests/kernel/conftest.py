"""Real kernels, one for each test module, and their messages in order of arrival."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


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

    def answer(self, request, timeout=60):
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
def kernel(tmp_path_factory):
    """Return a kernel with the extension, on a machine without a GPU, that reports after every cell."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager()
    manager.start_kernel(
        extra_arguments=[
            "--HistoryManager.enabled=False",
            "--GPUMem.report=always",
            "--GPUMem.preload=off",
            f"--ipython-dir={tmp_path_factory.mktemp('ipython')}",
        ]
    )
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        kernel = Kernel(manager, client)
        kernel.run("%load_ext ipygpumem")
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
