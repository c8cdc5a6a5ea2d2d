"""Accuracy of replays: programs are recorded once, and run again under the settings whose result was predicted.

``python -m tests.gpu.replay_accuracy --json FILE`` writes all cases to a file and prints a summary; ``--docs FILE``
prints the Markdown table of the documentation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ipygpumem.core.units import MIB
from tests.gpu.replay_workloads import FRAGMENTING, SPECIAL

CHECKOUT = Path(__file__).resolve().parents[2]
SETTINGS = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "large_segment_size_mb:64",
    "expandable_segments:True,roundup_power2_divisions:4",
)
TOLERANCE = 20 * MIB
"""Difference of peaks that counts as a hit: the size of one segment."""
LIMIT_OF_ARCHIVE = 15 * MIB


class Campaign:
    def __init__(self, arguments):
        self.arguments = arguments
        self.end = time.monotonic() + arguments.seconds
        self.directory = Path(tempfile.mkdtemp())
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(arguments.jobs)
        self.futures = []
        self.results = {"recordings": [], "cases": []}

    def start(self, function, *parts):
        def guarded():
            if time.monotonic() > self.end:
                print("not run, out of time:", *parts[:2], flush=True)
                return
            try:
                function(*parts)
            except Exception:
                print("FAILED:", *parts, traceback.format_exc(), sep="\n", flush=True)
                with self.lock:
                    self.results.setdefault("failed", []).append(f"{parts}: {traceback.format_exc()[-1500:]}")
            with self.lock:
                if self.arguments.json:
                    self.arguments.json.write_text(json.dumps(self.results, indent=1), encoding="utf-8")

        with self.lock:
            self.futures.append(self.pool.submit(guarded))

    def run(self, key, name, settings, *options):
        environment = {key: value for key, value in os.environ.items() if not key.endswith("_ALLOC_CONF")}
        if settings:
            environment |= {"PYTORCH_CUDA_ALLOC_CONF": settings, "PYTORCH_ALLOC_CONF": settings}
        environment["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
        environment["OMP_NUM_THREADS"] = "1"
        command = [sys.executable, "-m", "tests.gpu.replay_workloads", name, str(self.directory / key), *options]
        timeout = max(30, self.end + 50 - time.monotonic())
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env=environment, cwd=CHECKOUT
        )
        file = self.directory / key / "result.json"
        if completed.returncode or not file.exists():
            print(f"{key}: exit status {completed.returncode}\n{completed.stderr[-3000:]}", flush=True)
        return json.loads(file.read_text(encoding="utf-8"))

    def record(self, name, settings, predict):
        key = f"{name}-{settings or 'default'}"
        options = ["--predict", *predict] if predict else []
        values = self.run(key, name, settings, *options)
        cases = values.pop("predictions", [])
        with self.lock:
            self.results["recordings"].append({"workload": name, "settings": settings, "key": key, **values})
        print(f"{key}: {_text(values)}, {len(cases)} predictions", flush=True)
        for number, case in enumerate(cases):
            self.start(self.measure, name, number, case)

    def measure(self, name, number, case):
        key = f"{name}-{number}"
        options = ["--compare", str(self.directory / f"{name}-default" / "requests.npy")]
        if case["capacity"]:
            options += ["--capacity", str(case["capacity"])]
        values = self.run(key, name, case["settings"], *options)
        low, high = case["predicted"]
        peak = values["reserved_peak"]
        result = {"workload": name, "key": key, **case, "measured": values}
        result["miss"] = max(low - peak, peak - high, 0)
        with self.lock:
            self.results["cases"].append(result)
        print(f"{name} {case['settings']} {case['capacity'] or ''}: {_prediction(case)}; {_text(values)}", flush=True)

    def save_recordings(self):
        results = self.results
        keys = [case["key"] for case in results["cases"] if is_miss(case)]
        keys += [f"{case['workload']}-default" for case in results["cases"] if is_miss(case)]
        runs = [*results["recordings"], *({**case["measured"], "key": case["key"]} for case in results["cases"])]
        keys += [run["key"] for run in runs if run.get("grade") != "exact"]
        keys += [recording["key"] for recording in results["recordings"]]
        total = 0
        with zipfile.ZipFile(self.arguments.json.with_suffix(".zip"), "w") as archive:
            for key in dict.fromkeys(keys):
                file = self.directory / key / "recording.pickle.xz"
                if file.exists() and total + file.stat().st_size < LIMIT_OF_ARCHIVE:
                    total += file.stat().st_size
                    archive.write(file, f"{key}.pickle.xz")


def is_miss(case):
    """Return whether the predicted peak was wrong by more than a segment, or the prediction of a failure was wrong."""
    if bool(case["measured"]["error"]) != case["predicted_failure"]:
        return True
    return not case["predicted_failure"] and case["miss"] > TOLERANCE


def _text(values):
    replayed = values.get("grade", "not replayed") + (f" ({values['reason']})" if values.get("reason") else "")
    return (
        f"{values['reserved_peak'] / MIB:,.0f} MiB, {values['retries']} retries, {values['error'] or 'no error'}, "
        f"{values.get('requests', 0):,} requests, own replay {replayed}, {values['seconds']:.1f} s"
    )


def _prediction(case):
    low, high = (peak / MIB for peak in case["predicted"])
    failure = ", out of memory" if case["predicted_failure"] else ""
    return f"{'MISS: ' if 'miss' in case and is_miss(case) else ''}predicted {low:,.0f} to {high:,.0f} MiB{failure}"


def measure(arguments):
    campaign = Campaign(arguments)
    settings = SETTINGS if _torch_version() >= (2, 11) else [text for text in SETTINGS if "large_segment" not in text]
    for program in FRAGMENTING:
        if not arguments.names or program.__name__ in arguments.names:
            campaign.start(campaign.record, program.__name__, "", settings)
    for program in SPECIAL:
        for text in ("", "expandable_segments:True"):
            if not arguments.names or program.__name__ in arguments.names:
                campaign.start(campaign.record, program.__name__, text, ())
    done = 0
    while done < len(campaign.futures):  # recordings start further runs
        campaign.futures[done].result()
        done += 1
    if arguments.json:
        campaign.save_recordings()
    return campaign.results


def summary(results):
    lines = []
    for purpose in ("again", "settings", "fits", "out of memory"):
        cases = [case for case in results["cases"] if case["purpose"] == purpose]
        hits = sum(not is_miss(case) for case in cases)
        lines.append(f"{purpose}: {hits} of {len(cases)} predictions within {TOLERANCE / MIB:.0f} MiB")
    lines += [
        f"  {case['key']} {case['settings']}: {_prediction(case)}; {_text(case['measured'])}"
        for case in results["cases"]
        if is_miss(case)
    ]
    runs = [*results["recordings"], *(case["measured"] for case in results["cases"])]
    exact = sum(run.get("grade") == "exact" for run in runs)
    lines.append(f"own replay: {exact} of {len(runs)} recordings are reproduced exactly")
    for case in results["cases"]:
        same, made = (case["measured"].get(name) for name in ("same_requests", "requests"))
        if same is None or same != made:
            lines.append(f"  {case['key']} {case['settings']}: {same} of {made} requests as in the recording")
    lines += [f"failed: {text}" for text in results.get("failed", ())]
    return "\n".join(lines)


def markdown_table(results):
    cases = [case for case in results["cases"] if case["purpose"] == "settings"]
    settings = [text for text in SETTINGS if any(case["settings"] == text for case in cases)]
    lines = [f"| workload | as recorded | {' | '.join(f'`{text}`' for text in settings)} |"]
    lines.append("|---" * (len(settings) + 2) + "|")
    recorded = {run["workload"]: run for run in results["recordings"] if not run["settings"]}
    for program in FRAGMENTING:
        name = program.__name__
        row = {case["settings"]: case for case in cases if case["workload"] == name}
        if row:
            cells = [f"{recorded[name]['reserved_peak'] / MIB:,.0f}", *(_cell(row.get(text)) for text in settings)]
            lines.append(f"| {program.__doc__.strip().rstrip('.').partition(';')[0]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(case):
    if case is None:
        return ""
    low, high = (peak / MIB for peak in case["predicted"])
    peak = case["measured"]["reserved_peak"] / MIB
    predicted = f"{high:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
    return f"{peak:,.0f}" if low == high == peak else f"{predicted}; {peak:,.0f}"


def _torch_version():
    from importlib import metadata

    return tuple(int(part) for part in metadata.version("torch").split(".")[:2])


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.replay_accuracy", description=__doc__)
    parser.add_argument("names", nargs="*", help="programs to run (all by default)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file after each run")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="only print the table of these results")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 14), help="processes at the same time")
    parser.add_argument("--seconds", type=float, default=180, help="start no further runs after this time")
    arguments = parser.parse_args()
    if arguments.docs:
        results = json.loads(arguments.docs.read_text(encoding="utf-8"))
        print(markdown_table(results))
        print(summary(results))
        return 0
    print(summary(measure(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
