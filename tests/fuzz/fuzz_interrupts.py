"""Send one SIGINT to each cell at a random time: ``python tests/fuzz/fuzz_interrupts.py ENVIRONMENT --cells 500``.

The environment is ``terminal``, ``kernel``, ``terminal-async`` or ``kernel-async``. With ``--without``, the extension
is not loaded, for comparison. The script prints the number of interrupts with each effect. Those ``lost in
ipygpumem`` arrived while its code was running and had no effect, and after ``open`` cells a measurement was not closed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import queue
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
PLAIN = ["x = 1", "sum(range(5000))", "1/0", "x ="]
MAGICS = [
    *PLAIN,
    "%%gpumem\nx = 1",
    "%gpumem x = 1",
    "with ipygpumem.measure() as m:\n    x = 1",
    "%%gpumem --lines\nx = 1",
    "get_ipython().run_cell('x = 2').raise_error()",
]
ASYNC = ["await asyncio.sleep(0)", "await asyncio.sleep(0.002)\nx = 1", "x = [i async for i in numbers()]"]
SETUP = """
import asyncio, itertools, json, os, signal, subprocess, sys, traceback
async def numbers():
    for number in range(3):
        await asyncio.sleep(0.001)
        yield number

arrived = []  # for each interrupt, the functions of the package that were running
def logged(handler):
    def logging_handler(signum, frame):
        codes = (frame.f_code for frame, _ in traceback.walk_stack(frame))
        # IPython itself discards interrupts that arrive in events.py and in the callbacks of other code
        codes = itertools.takewhile(lambda code: not code.co_filename.endswith("core/events.py"), codes)
        arrived.append([code.co_name for code in codes if "/ipygpumem/" in code.co_filename])
        return handler(signum, frame)
    logging_handler.__module__, logging_handler.is_logged = getattr(handler, "__module__", ""), True
    return logging_handler if callable(handler) and not hasattr(handler, "is_logged") else handler
# Python ignores exceptions in callbacks of weak references and of the garbage collector
sys.unraisablehook = lambda _: arrived.clear()
set_handler = signal.signal
signal.signal = lambda number, handler: set_handler(number, logged(handler))
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
MACHINE = f"""
sys.path[:0] = [{str(TESTS.parent)!r}, {str(TESTS)!r}]
from fakes.cuda import FakeGpu
machine = FakeGpu().install()
"""
LOAD = """
import torch
import ipygpumem
%load_ext ipygpumem
%config GPUMem.report = "always"
from ipygpumem.measurement.runtime import current
from ipygpumem.core import interrupts
record = interrupts.DeferredInterrupts.record
interrupts.DeferredInterrupts.record = lambda self, *_: (arrived.append(["deferred"]), record(self))
def is_open():
    stacks = ipygpumem_cells.running.stacks
    return [current().peaks._scopes != [], len(current().open_intervals), len(current().sampler.windows),
            torch._C._cuda_isHistoryEnabled(), sum(map(len, stacks.values()))]
ipygpumem_cells = get_ipython().magics_manager.registry["GPUMem"].cells
"""
CLOSED = [True, 1, 1, False, 1]  # the cell that calls is_open() is measured itself
SENDER = """
import os, signal, sys, time
for line in sys.stdin.buffer:
    end = time.perf_counter() + float(line)
    while time.perf_counter() < end:
        pass
    os.kill(os.getppid(), signal.SIGINT)
"""


def cells_of(arguments):
    cells = PLAIN if arguments.without else MAGICS
    return [*cells[:2], *ASYNC] if arguments.environment.endswith("async") else cells


def lost(code, functions):
    if not any(functions):
        return "lost elsewhere"
    print(f"lost in {code!r}: {functions}")
    return "lost in ipygpumem"


def _first_error(error):
    while error.__context__ is not None:
        error = error.__context__
    return error


def terminal_shell():
    from IPython.terminal.interactiveshell import TerminalInteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.TerminalInteractiveShell.simple_prompt = True
    # the default mode inspects every imported module, and an interrupt of it raises a TypeError in IPython 7
    config.InteractiveShell.xmode = "Plain"
    return TerminalInteractiveShell.instance(config=config)


class Terminal:
    """A shell in this process. Another process sends the signals."""

    def __init__(self, shell, *, load=LOAD):
        self.shell = shell
        self.run(SETUP + load)
        self.sender = subprocess.Popen([sys.executable, "-ISc", SENDER], stdin=subprocess.PIPE, bufsize=0)
        # Python writes a byte for each signal that it has received, which can be later than the call of kill() returns
        self.received, wakeup = os.pipe()
        os.set_blocking(self.received, False)
        os.set_blocking(wakeup, False)
        self.previous = signal.set_wakeup_fd(wakeup)

    def run(self, code):
        self.output = io.StringIO()
        with contextlib.redirect_stdout(self.output), contextlib.redirect_stderr(self.output):
            return self.shell.run_cell(code, store_history=True)

    def interrupt(self, code, delay):
        self.shell.user_ns["arrived"].clear()
        with contextlib.suppress(BlockingIOError):
            os.read(self.received, 99)
        result, ended = None, False
        try:
            self.sender.stdin.write(b"%.6f\n" % delay)
            result = self.run(code)
            ended = True
            select.select([self.received], [], [])
            time.sleep(0.001)
        except KeyboardInterrupt:
            return "after the cell" if ended else "raised by run_cell"
        except TypeError as error:  # IPython 7 cannot show tracebacks that contain an instruction without a line number
            if "NoneType" not in str(error) or not isinstance(_first_error(error), KeyboardInterrupt):
                raise
            return "raised by run_cell"
        error = result.error_before_exec or result.error_in_exec
        if isinstance(error, KeyboardInterrupt):
            return "cell fails"
        if error is not None and "KeyboardInterrupt" in self.output.getvalue():
            return "printed"
        return lost(code, self.shell.user_ns["arrived"])

    def is_open(self):
        return self.run("is_open()").result

    def close(self):
        with self.sender:
            self.sender.kill()
        os.close(signal.set_wakeup_fd(self.previous))
        os.close(self.received)


SEND_IN_KERNEL = f"""
sys.modules["ipykernel.kernelbase"].signal = signal.signal
command = [sys.executable, "-ISc", {SENDER!r}]
sender = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0)
delay = None
def send():
    global delay
    if delay is not None:
        sender.stdin.write(b"%.6f\\n" % delay)
        delay = None
get_ipython().events.register("pre_execute", send)
"""


class Kernel:
    """A kernel with a process that sends the signals, with a delay after the start of a cell."""

    def __init__(self, arguments):
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(stderr=subprocess.DEVNULL)
        self.run(SETUP + SEND_IN_KERNEL)
        if not arguments.without:
            self.run(MACHINE + LOAD)

    def run(self, code, **options):
        return self.wait(self.client.execute(code, allow_stdin=False, stop_on_error=False, **options))

    def wait(self, request):
        outputs, idle, reply = [], False, {}
        while not idle:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") == request:
                outputs.append(message["content"])
                idle = message["content"].get("execution_state") == "idle"
        with contextlib.suppress(queue.Empty):
            while not reply:
                message = self.client.get_shell_msg(timeout=0.3)
                reply = message["content"] if message["parent_header"].get("msg_id") == request else {}
        return reply, outputs

    def value(self, expression):
        reply = {}
        while "user_expressions" not in reply:  # a late signal may have interrupted the request
            reply, _ = self.run("", silent=True, user_expressions={"value": expression})
        return json.loads(reply["user_expressions"]["value"]["data"]["text/plain"].strip("'"))

    def interrupt(self, code, delay):
        self.run(f"arrived.clear(); delay = {delay / 2}", silent=True)
        reply, outputs = self.run(code)
        time.sleep(delay + 0.01)  # the kernel ignores a signal that arrives now
        arrived = self.value("json.dumps(arrived)")
        if not arrived:  # a kernel ignores signals between cells
            return "not running"
        if not reply:
            return "no reply"
        if reply.get("ename") in {"KeyboardInterrupt", "CancelledError"}:
            return "cell fails"
        if reply["status"] == "error" and "KeyboardInterrupt" in str(outputs):
            return "printed"
        return lost(code, arrived)

    def is_open(self):
        results = []
        while not results:  # a late signal may have interrupted the cell
            _, outputs = self.run("is_open()")
            results = [content for content in outputs if "execution_count" in content and "data" in content]
        return json.loads(results[0]["data"]["text/plain"].lower())

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def count_effects(environment, cells, *, number_of_cells, seed=0, without=False):
    """Run cells, of which each is interrupted once, and count the effects of the interrupts."""
    rng, effects = random.Random(seed), collections.Counter()
    durations = {}
    for code in cells:
        for _ in range(5):
            began = time.perf_counter()
            environment.run(code)
            durations[code] = time.perf_counter() - began
    for number in range(number_of_cells):
        code = cells[number % len(cells)]
        effects[environment.interrupt(code, rng.uniform(0, 1.1 * durations[code]))] += 1
        if not without and environment.is_open() != CLOSED:
            effects["open"] += 1
    return effects


def main(command_line=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment", choices=("terminal", "kernel", "terminal-async", "kernel-async"))
    parser.add_argument("--cells", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", action="store_true")
    arguments = parser.parse_args(command_line)
    if arguments.environment.startswith("terminal"):
        environment = Terminal(terminal_shell(), load="" if arguments.without else MACHINE + LOAD)
    else:
        environment = Kernel(arguments)
    try:
        counts = {"number_of_cells": arguments.cells, "seed": arguments.seed, "without": arguments.without}
        effects = count_effects(environment, cells_of(arguments), **counts)
    finally:
        environment.close()
    print(arguments.environment, "without" if arguments.without else "with", dict(sorted(effects.items())))
    return 1 if effects["lost in ipygpumem"] or effects["open"] else 0


if __name__ == "__main__":
    sys.exit(main())
