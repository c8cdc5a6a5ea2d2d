"""Run the programs without the extension and under each option, and print what differs and the time ratios.

A ratio means that nothing differs; `-` means that the option does not apply.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.gpu.workloads.compare import differences, wrong_answers
from tests.gpu.workloads.kernel import NEEDS_GPU, OPTIONS, WITHOUT, run_program
from tests.gpu.workloads.program import Program, read_programs
from tests.gpu.workloads.table import markdown_table, text_table

_PAGE = Path(__file__).parents[3] / "docs" / "tested.md"


class Campaign:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._end = time.monotonic() + arguments.seconds
        self._lock = threading.Lock()
        self._slots = list(range(arguments.jobs))
        self._records: dict[tuple[str, str], dict[str, Any]] = {}
        devices = _devices()
        self._gpus = len(devices)
        os.environ.setdefault("WORKLOAD_GPUS", ",".join(str(index) for index in range(self._gpus)))
        self.results: dict[str, Any] = {"devices": devices, "versions": _versions(), "programs": {}}

    def tasks(self, programs: list[Program]) -> list[tuple[Program, str]]:
        """Return the runs that apply to this machine, and note why others do not."""
        tasks = []
        for program in programs:
            row = self.results["programs"][program.name] = {"title": program.title, "options": {}}
            row["causes"] = program.varies
            if program.missing:
                row["skipped"] = f"not installed: {', '.join(program.missing)}"
            elif (program.needs_cuda and not self._gpus) or (self._gpus and program.gpus > self._gpus):
                row["skipped"] = f"needs {program.gpus} GPU{'s' * (program.gpus > 1)}"
            if row.get("skipped"):
                continue
            tasks += [(program, option) for option in WITHOUT]
            for option in self._arguments.options or OPTIONS:
                reason = self._reason(program, option)
                if reason:
                    row["options"][option] = {"skipped": reason}
                else:
                    tasks.append((program, option))
        return tasks

    def _reason(self, program: Program, option: str) -> str:
        if option in NEEDS_GPU and not self._gpus:
            return "needs a GPU"
        if option == "modules" and program.model is None:
            return "has no single model"
        if option == "oom_snapshot" and program.ranks:
            return "a setting of notebooks"
        return ""

    def run(self, program: Program, option: str) -> None:
        if time.monotonic() > self._end:
            return
        with self._lock:
            slot = self._slots.pop(0)
        try:
            record = run_program(program, option, slot, self._arguments.timeout)
        except Exception as error:
            record = {"cells": [], "failed": "".join(traceback.format_exception_only(error)).strip()}
        with self._lock:
            self._slots.append(slot)
            self._records[program.name, option] = record
            self._compare(program)
            self._write(program, option, record)
        failed = record["failed"].strip().splitlines()
        text = f"{record.get('wall', 0):.1f} s" if not failed else f"failed: {failed[-1][:200]}"
        print(f"{program.name}, {option}: {text}", flush=True)

    def _compare(self, program: Program) -> None:
        row = self.results["programs"][program.name]
        references = [self._records.get((program.name, option)) for option in WITHOUT]
        if None in references:
            return
        first, second = references
        row["seconds"] = first.get("total", 0)
        if first["failed"] or second["failed"]:
            row["skipped"] = "fails without the extension"
            row["reason"] = first["failed"] or second["failed"]
            return
        row["varies"] = differences(first, second)
        fastest = row["cell_seconds"] = min(first["seconds"], second["seconds"])
        for option in OPTIONS:
            record = self._records.get((program.name, option))
            if record is not None and option not in row["options"]:
                row["options"][option] = self._result(program, option, record, first, fastest)
                if "after who" in record:
                    after = record | {"observed": record["after who"]}
                    row["options"]["who"] = self._result(program, "who", after, first, None)
                    row["options"]["who"]["seconds"] = record["who"]["seconds"]

    def _result(
        self, program: Program, option: str, record: dict[str, Any], reference: dict[str, Any], fastest: float | None
    ) -> dict[str, Any]:
        if record["failed"] and not reference["failed"]:
            return {"failed": record["failed"]}
        varies = {**self.results["programs"][program.name]["varies"], **program.varies}
        found = {
            key: text
            for key, text in differences(reference, record).items()
            if key not in varies and f"{option}: {key}" not in varies
        }
        result = {"differences": found, "answers": wrong_answers(program, option, record)}
        if fastest:
            result |= {"seconds": record["seconds"], "ratio": record["seconds"] / fastest}
        return result

    def _write(self, program: Program, option: str, record: dict[str, Any]) -> None:
        if self._arguments.json:
            Path(self._arguments.json).write_text(json.dumps(self.results, indent=1), encoding="utf-8")
        if self._arguments.records:
            directory = Path(self._arguments.records)
            directory.mkdir(parents=True, exist_ok=True)
            text = json.dumps(record, indent=1)
            (directory / f"{program.name}-{option.replace(', ', '-')}.json").write_text(text, encoding="utf-8")


def _devices() -> list[str]:
    """Return the names of the GPUs. They are read in another process, so that this process has no CUDA context."""
    code = "import torch; [print(torch.cuda.get_device_name(i)) for i in range(torch.cuda.device_count())]"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return completed.stdout.splitlines()


def _versions() -> dict[str, str]:
    import platform
    from importlib import metadata

    names = ("torch", "ipython", "transformers", "accelerate", "peft", "lightning", "timm", "torch-geometric", "jax")
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def main() -> int:
    programs = {program.name: program for program in read_programs()}
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.workloads", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"programs to run (all by default): {', '.join(programs)}")
    parser.add_argument("--options", nargs="+", choices=list(OPTIONS), help="options to run (all by default)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="kernels that run at the same time")
    parser.add_argument("--seconds", type=float, default=3600, help="start no further kernels after this time")
    parser.add_argument("--timeout", type=float, default=120, help="seconds after which a cell is considered stuck")
    parser.add_argument("--json", metavar="PATH", help="write the results here after each program")
    parser.add_argument("--records", metavar="DIRECTORY", help="also write everything that was observed")
    parser.add_argument("--docs", metavar="PATH", help="only write the table of these results to docs/tested.md")
    arguments = parser.parse_args()
    if arguments.docs:
        results = json.loads(Path(arguments.docs).read_text(encoding="utf-8"))
        text = _PAGE.read_text(encoding="utf-8").partition("## Results\n")
        _PAGE.write_text(f"{text[0]}{text[1]}\n{markdown_table(results)}\n", encoding="utf-8")
        return 0
    unknown = set(arguments.names) - set(programs)
    if unknown:
        parser.error(f"unknown program: {', '.join(sorted(unknown))}")
    campaign = Campaign(arguments)
    tasks = campaign.tasks([programs[name] for name in arguments.names or programs])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        futures = [pool.submit(campaign.run, program, option) for program, option in tasks]
        try:
            for future in futures:
                future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            print(text_table(campaign.results), flush=True)
    rows = campaign.results["programs"].values()
    done = [result for row in rows for result in row["options"].values()]
    return any(result.get("differences") or result.get("answers") or result.get("failed") for result in done)


if __name__ == "__main__":
    sys.exit(main())
