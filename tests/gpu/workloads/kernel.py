"""Run a program in a new kernel, and collect everything that a user of the notebook can observe."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.workloads.program import Program

CHECKOUT = Path(__file__).resolve().parents[3]
PROBE = Path(__file__).with_name("probe.py")
RANK = Path(__file__).with_name("rank.py")
REPEATS = 3
SEED = """\
import random, numpy, torch
random.seed(0)
numpy.random.seed(0)
torch.manual_seed(0)
del random, numpy, torch"""
# What the extension runs when it is loaded, so that PyTorch's counters start with the same values in every kernel.
PRELOAD = """\
import torch
if torch.cuda.is_available():
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.full((64, 64), 0.5, dtype=dtype, device="cuda")
        x @ x
    del x
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
del torch
try:
    del dtype
except NameError:
    pass
None"""
LOAD = "%load_ext ipygpumem"
OOM_SNAPSHOT = "%config GPUMem.oom_snapshot = 'oom_{n}.pickle'"
WITHOUT = ("without", "without, again")
OPTIONS = {
    "loaded": "",
    "snapshot": "--snapshot cell.pickle",
    "lines": "--lines",
    "modules": "--modules MODEL",
    "outside": "--outside",
    "limit": "--limit 100GiB",
    "timeline": "--timeline cell.html",
    "oom_snapshot": "",
}
"""Options of the measured cells. ``who`` is not listed: it is run in the kernel of ``loaded``, after the program."""
NEEDS_GPU = {"snapshot", "lines", "modules", "outside", "oom_snapshot"}


class KernelDiedError(Exception):
    pass


def environment(program: Program, slot: int, directory: str) -> dict[str, str]:
    """Return the environment of a process that runs a program.

    The program sees as many GPUs as it needs, and cannot download models.
    """
    visible = os.environ.get("WORKLOAD_GPUS", "").split(",")
    first = slot % len(visible) if program.gpus == 1 else 0
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONHASHSEED": "0",
        "CUDA_VISIBLE_DEVICES": ",".join(visible[first : first + program.gpus]),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "IPYTHONDIR": directory,
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


class Kernel:
    def __init__(self, program: Program, slot: int, timeout: float) -> None:
        from jupyter_client.manager import KernelManager

        self._temporary = tempfile.TemporaryDirectory(prefix="workload_", ignore_cleanup_errors=True)
        self.directory = Path(self._temporary.name)
        self._timeout = timeout
        self._manager = KernelManager()
        self._manager.start_kernel(
            extra_arguments=["--HistoryManager.enabled=False"],
            cwd=str(self.directory),
            env=environment(program, slot, str(self.directory / "ipython")),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        try:
            self._client.wait_for_ready(timeout=timeout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        self._temporary.cleanup()

    def run(self, code: str, *, silent: bool = False) -> dict[str, Any]:
        shown: dict[str, Any] = {"stdout": "", "stderr": "", "result": "", "displays": [], "error": ""}
        moments = {}
        # otherwise the kernel aborts requests that arrive soon after a failed cell
        request = self._client.execute(code, silent=silent, store_history=not silent, stop_on_error=False)
        for message in self._messages(request):
            kind, content = message["msg_type"], message["content"]
            if kind == "status":
                moments[content["execution_state"]] = _moment(message)
            elif kind == "stream":
                shown[content["name"]] += content["text"]
            elif kind == "execute_result":
                shown["result"] += content["data"]["text/plain"]
            elif kind == "display_data":
                shown["displays"].append(normalize(content["data"].get("text/plain", ""), self.directory))
            elif kind == "error":
                shown["error"] = "\n".join(content["traceback"])
        self._client.get_shell_msg(timeout=self._timeout)
        texts = {key: normalize(text, self.directory) for key, text in shown.items() if isinstance(text, str)}
        return shown | texts | {"seconds": moments["idle"] - moments["busy"]}

    def _messages(self, request: str) -> Iterator[dict[str, Any]]:
        end = time.monotonic() + self._timeout
        while time.monotonic() < end:
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                if not self._manager.is_alive():
                    raise KernelDiedError("the kernel died") from None
                continue
            if message["parent_header"].get("msg_id") == request:
                yield message
                if message["content"].get("execution_state") == "idle":
                    return
        raise KernelDiedError(f"a cell did not end within {self._timeout:.0f} s")

    def observe(self, *, search: bool = False) -> dict[str, Any]:
        target = self.directory / "observed.json"
        target.unlink(missing_ok=True)
        arguments = f"{{'namespace': get_ipython().user_ns, 'target': {str(target)!r}, 'search': {search}}}"
        shown = self.run(f"__import__('runpy').run_path({str(PROBE)!r}, {arguments})", silent=True)
        if not target.exists():
            raise KernelDiedError(f"the state of the kernel could not be read: {shown['stderr']}{shown['error']}")
        return json.loads(target.read_text(encoding="utf-8"))


def _moment(message: dict[str, Any]) -> float:
    date = message["header"]["date"]
    return (date if isinstance(date, datetime) else datetime.fromisoformat(date)).timestamp()


_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_VARYING = (
    (re.compile(r"(?:/[\w.-]+)*/ipykernel_\d+/\d+\.py"), "CELL.py"),
    (re.compile(r"0x[0-9a-f]+"), "0xADDRESS"),
    (re.compile(r"(?m)^(\W*1 ).*(?:_gpumem_begin|# measured).*$"), r"\1FIRST LINE"),
    (re.compile(r"[\d.]+ [GM]iB is free|this process has [\d.]+ [GM]iB memory in use"), "MEMORY"),
    (re.compile(r"Process \d+ has [\d.]+ [GM]iB memory in use\. ?"), ""),
    (re.compile(r"\[\d+:\d+<[^\]]*\]|[\d.]+ ?(?:it/s|s/it)"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?|\b[WIE]\d{4} \d\d:\d\d:\d\d\.\d+ \d+"), "DATE"),
    (re.compile(r"pid[ =:]+\d+"), "PID"),
)


def normalize(text: str, directory: Path) -> str:
    """Replace text that differs between any two kernels: colors, paths, addresses, times, memory of other processes."""
    text = _ANSI.sub("", text).replace(str(directory), "DIRECTORY")
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    return "\n".join(line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").split("\n"))


def run_program(program: Program, option: str, slot: int = 0, timeout: float = 120) -> dict[str, Any]:
    """Run a program under an option in a new kernel, or with torchrun. Return what was observed."""
    if program.ranks:
        return _run_ranks(program, option, slot, timeout)
    kernel = Kernel(program, slot, timeout)
    try:
        return _run_cells(kernel, program, option)
    finally:
        kernel.close()


def _run_cells(kernel: Kernel, program: Program, option: str) -> dict[str, Any]:
    loaded = option not in WITHOUT
    started = time.monotonic()
    kernel.run(SEED)
    loading = kernel.run(LOAD if loaded else PRELOAD)
    if loading["error"]:
        return {"cells": [loading], "failed": loading["error"]}
    setting = kernel.run(OOM_SNAPSHOT if option == "oom_snapshot" else "None")
    arguments = OPTIONS.get(option, "").replace("MODEL", str(program.model))
    cells, times, total, failed = [], [], 0.0, setting["error"]
    for cell in program.cells:
        code = cell.code
        if cell.measured:
            code = f"%%gpumem {arguments}\n{code}" if arguments else f"# measured\n{code}"
        runs = [kernel.run(code) for _ in range(REPEATS if cell.measured and not cell.once else 1)]
        cells += runs
        total += sum(run["seconds"] for run in runs)
        if cell.measured:
            times.append(min(run["seconds"] for run in (runs[1:] or runs)))
        if runs[-1]["error"] and not program.raises:
            failed = runs[-1]["error"]
            break
    record = {"cells": cells, "seconds": sum(times), "total": total, "failed": failed, "observed": kernel.observe()}
    if option == "loaded" and not failed:
        record["who"] = kernel.run("%gpumem who")
        record["after who"] = kernel.observe(search=True)
    return record | {"wall": time.monotonic() - started}


def _run_ranks(program: Program, option: str, slot: int, timeout: float) -> dict[str, Any]:
    from tests.gpu.workloads.program import DIRECTORY

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="workload_", ignore_cleanup_errors=True) as directory:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={program.ranks}"]
        command += [str(RANK), str(DIRECTORY / f"{program.name}.py"), option, directory]
        try:
            completed = subprocess.run(
                command,
                cwd=directory,
                env=environment(program, slot, directory),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise KernelDiedError(f"torchrun did not end within {timeout:.0f} s") from None
        files = sorted(Path(directory).glob("rank_*.json"))
        if completed.returncode or len(files) != program.ranks:
            return {"cells": [], "failed": normalize(completed.stderr, Path(directory))[-2000:]}
        ranks = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        shown = {"stdout": "".join(sorted(completed.stdout.splitlines(keepends=True))), "stderr": "", "error": ""}
        shown = {key: normalize(text, Path(directory)) for key, text in shown.items()}
    record = {
        "cells": [shown | {"result": "", "displays": []}],
        "seconds": max(rank["seconds"] for rank in ranks),
        "total": max(rank["total"] for rank in ranks),
        "failed": "",
        "observed": _merged([rank["observed"] for rank in ranks]),
        "wall": time.monotonic() - started,
    }
    if "who" in ranks[0]:
        record |= {"who": ranks[0]["who"], "after who": _merged([rank["after who"] for rank in ranks])}
    return record


def _merged(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the observations of all ranks by category, with the report and the holders of the first rank."""
    single = {key: ranks[0].get(key) for key in ("report", "holders")}
    return {key: {str(i): rank.get(key) for i, rank in enumerate(ranks)} for key in ranks[0]} | single
