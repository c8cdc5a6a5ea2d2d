"""Accuracy of the command fit: predictions compared with runs on one H200, each in a new process.

``python -m tests.gpu.fit_accuracy --json FILE`` runs all cases that FILE does not contain yet, and writes it after
each case. Cases run at the same time if all of them fit into the GPU's memory. After ``--seconds``, the running cases
are stopped, so repeat the command until all cases are done. ``--docs FILE`` prints the table of the documentation.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

MIB, GIB = 1 << 20, 1 << 30
CHECKOUT = Path(__file__).resolve().parents[2]
CARDS = (24, 8, 16, 80)
"""Memory of the simulated GPUs in GiB."""
WHOLE = 0
"""Stands for the whole memory of the GPU instead of a simulated GPU."""
GROUPS = ("accuracy", *map(str, CARDS), "beside", "whole")
"""Groups of cases in the order in which they run: the kinds, and the simulated GPUs of the kind "card"."""
ACCURACY_GIB = 44
"""Limit for the memory of a case of the kind "accuracy", so that three of them can run on an H200 at the same time."""
CONTEXT_GIB = 1.5
"""Assumed memory of a case outside PyTorch, such as the CUDA context and kernels."""
FACTORS = (32, 16, 8)
"""Multiples of the largest size that was run."""
SHARES = (0.02, 0.03, 0.05, 0.1)
"""Shares of the free memory that a run may use, tried until the prediction succeeds and a multiple fits."""
STEPS = 20
TRAINING_STEPS = 4
"""Steps after which the highest memory usage of a training run is reached."""
BESIDE = ("gpt", "unet", "lstm")
HELD = 20 * GIB
HOLDER = f"import torch; x = torch.empty({HELD}, dtype=torch.uint8, device='cuda'); print('ready', flush=True); input()"
MIN_SHARE = 0.95
"""Smallest share of the capacity that a step of the size after the recommended one should need."""
MAX_DRY_ERROR = 0.2
MAX_SECONDS = 150
"""Duration of a case after which it is stopped."""


def all_workloads():
    from tests.gpu import fit_libraries, fit_workloads

    return {**fit_workloads.WORKLOADS, **fit_libraries.WORKLOADS}


def cases(workloads, groups=GROUPS):
    """Return ``(name, kind, card)`` of each case, in the order of `GROUPS`."""
    predicted = [name for name, workload in workloads.items() if workload.expected != "refusal"]
    names = {"accuracy": workloads, "beside": [name for name in BESIDE if name in workloads]}
    result = []
    for group in GROUPS:
        kind = group if group in names else "card"
        card = int(group) if group.isdigit() else WHOLE
        result += [(name, kind, card) for name in names.get(group, predicted) if group in groups]
    return result


def needed_gib(case):
    """Return the memory in GiB that a case needs, or None if the case must run alone."""
    _, kind, card = case
    memory = ACCURACY_GIB if kind == "accuracy" else card
    return memory + CONTEXT_GIB if memory else None


def fits_beside(case, running, gib):
    needed = [needed_gib(item) for item in (case, *running)]
    return not running or (None not in needed and sum(needed) <= gib)


def run_parallel(left, run, *, jobs, gib, seconds):
    """Run cases in order, at most ``jobs`` at the same time, and yield each case, its row and its duration.

    ``run`` is called in a thread with the case and the number of seconds after which it must be stopped. No case starts
    after ``seconds``.
    """
    left, running = list(left), {}
    end = time.monotonic() + seconds

    def timed(case):
        began = time.monotonic()
        return case, run(case, end - began), time.monotonic() - began

    with ThreadPoolExecutor(jobs) as pool:
        while left or running:
            while left and len(running) < jobs and time.monotonic() < end:
                if not fits_beside(left[0], running.values(), gib):
                    break
                case = left.pop(0)
                running[pool.submit(timed, case)] = case
            if not running:
                print(f"{len(left)} cases are left: repeat the command", flush=True)
                break
            for finished in wait(running, return_when=FIRST_COMPLETED).done:
                del running[finished]
                yield finished.result()


def run_case(name, kind, card, *, dry=True):
    import torch

    import ipygpumem

    limit = ACCURACY_GIB if kind == "accuracy" else card
    if limit:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(limit * GIB / total, 1.0))
    workload = all_workloads()[name]
    step = workload.make()
    for _ in range(2):
        step(2 * workload.minimum)
    sizes = range(workload.minimum, workload.last + 1, workload.minimum)
    row = {"workload": name, "kind": kind, "card": card, "expected": workload.expected}
    for most in SHARES if kind == "accuracy" else (0.25,):
        gc.collect()
        torch.cuda.empty_cache()
        began = time.perf_counter()
        result = ipygpumem.fit(step, sizes, most=most)
        row |= {
            "most": most,
            "seconds": time.perf_counter() - began,
            "refusal": result.refusal,
            "notes": result.notes,
            "probes": [(probe.size[0], probe.role, probe.allocated, probe.predicted) for probe in result.probes],
            "capacity": result.capacity,
            "largest": result.largest,
            "recommended": result.recommended,
        }
        print(result, flush=True)
        if result.refusal:
            continue
        row |= accuracy(step, result) if kind == "accuracy" else recommended(step, result, sizes)
        if kind != "accuracy" or row["sizes"]:
            break
    if dry and row.get("sizes"):
        gc.collect()
        torch.cuda.empty_cache()
        estimate = ipygpumem.fit(step, sizes, dry=True)
        print(estimate, flush=True)
        row["dry_refusal"] = estimate.refusal
        for item in row["sizes"] if not estimate.refusal else ():
            item["estimated"] = estimate.predict(item["size"])
    return row


def begin_training():
    """Delete all gradients and the cached memory, as before the first step of a training run.

    Predictions apply to this start. Gradients of a smaller run that remain in their own segments would not split the
    cached memory of a larger run, so that it could need less reserved memory.
    """
    import torch

    for value in gc.get_objects():
        if issubclass(type(value), torch.nn.Parameter) and value.grad is not None:
            value.grad = None
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def training_peaks(step, size):
    import torch

    begin_training()
    allocated, reserved = [], []
    for _ in range(TRAINING_STEPS):
        step(size)
        allocated.append(torch.cuda.max_memory_allocated())
        reserved.append(torch.cuda.max_memory_reserved())
    steps = {"allocated_steps": allocated.index(allocated[-1]) + 1, "reserved_steps": reserved.index(reserved[-1]) + 1}
    return {"allocated": allocated[-1], "reserved": reserved[-1], **steps, "reserved_first": reserved[0]}


def accuracy(step, result):
    rows = []
    largest = max(probe.size[0] for probe in result.probes)
    for factor in FACTORS:
        size = factor * largest
        if result.reserved(size) > 0.9 * result.capacity:
            continue
        row = {"size": size, "factor": factor, "predicted": result.predict(size)}
        row |= {"predicted_reserved": result.reserved(size), **training_peaks(step, size)}
        rows.append(row)
        print(row, flush=True)
    return {"sizes": rows, "largest_run": largest}


def recommended(step, result, sizes):
    """Run the recommended size, and return what happened and how much of the capacity was used.

    ``growth`` is the predicted share of the capacity that the next larger size needs in addition.
    """
    import torch

    size = result.recommended
    if size is None:
        return {"error": "no recommended size"}
    following = min(size + sizes.step, sizes[-1])
    growth = (result.reserved(following) - result.reserved(size)) / result.capacity
    begin_training()
    before, error, done = torch.cuda.memory_stats(), "", 0
    began = time.perf_counter()
    try:
        while done < STEPS and time.perf_counter() - began < MAX_SECONDS / 2:
            step(size)
            done += 1
    except torch.cuda.OutOfMemoryError as failure:
        error = str(failure).partition(". GPU")[0]
    after = torch.cuda.memory_stats()
    changes = {name: after[name] - before[name] for name in ("num_ooms", "num_alloc_retries")}
    share = torch.cuda.max_memory_reserved() / result.capacity
    return {"steps": done, "error": error, "share": share, "limited": size == sizes[-1], "growth": growth, **changes}


def problems(row):
    if "refusal" not in row:
        return [row.get("error") or "the case did not finish"]
    if row["refusal"]:
        return [] if row["expected"] != "prediction" else [f"refused: {row['refusal']}"]
    result = ["not refused"] if row["expected"] == "refusal" else []
    if row["kind"] != "accuracy":
        if row["error"] or row["num_ooms"] or row["num_alloc_retries"]:
            result.append(f"{row['error']} {row['num_ooms']} OOMs, {row['num_alloc_retries']} retries")
        if row["share"] + row.get("growth", 0) < MIN_SHARE and not row["limited"]:
            result.append(f"only {row['share']:.1%} of the capacity is used")
        return result
    return result + inaccuracies(row["sizes"])


def inaccuracies(sizes):
    result = [] if sizes else ["no size could be checked"]
    for item in sizes:
        for name, tolerance in (("allocated", 0.02), ("reserved", 0.03)):
            error = item["predicted" if name == "allocated" else "predicted_reserved"] / item[name] - 1
            if abs(error) > tolerance:
                result.append(f"{name} at {item['size']:,} ({item['factor']} times): {error:+.2%}")
        if "estimated" in item and abs(item["estimated"] / item["allocated"] - 1) > MAX_DRY_ERROR:
            result.append(f"estimated with --dry at {item['size']:,}: {item['estimated'] / item['allocated'] - 1:+.1%}")
    return result


def installed_workloads(names):
    from tests.gpu.fit_libraries import missing

    workloads = {name: item for name, item in all_workloads().items() if name in (names or all_workloads())}
    for name, workload in list(workloads.items()):
        if missing(workload):
            print(f"{name}: skipped, because {' and '.join(missing(workload))} cannot be imported", flush=True)
            del workloads[name]
    return workloads


def measure(arguments, gib):
    rows = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json and arguments.json.exists() else []
    rows = [row for row in rows if "refusal" in row or row["error"].startswith("stopped after")]  # others are repeated
    done = {(row["workload"], row["kind"], row["card"]) for row in rows}
    left = [case for case in cases(installed_workloads(arguments.names), arguments.only) if case not in done]
    options = {"jobs": arguments.jobs, "gib": gib, "seconds": arguments.seconds}
    for case, row, seconds in run_parallel(left, new_process, **options):
        rows.append(row)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        text = "; ".join(problems(row)) or ("refused as expected" if row["refusal"] else "ok")
        print(f"{case}: {text} ({seconds:.1f} s)", flush=True)
    return rows


def new_process(case, seconds):
    """Run a case in a new process and return its row. The process is stopped after ``seconds`` or `MAX_SECONDS`."""
    name, kind, card = case
    holder = None
    row = {"workload": name, "kind": kind, "card": card, "expected": "prediction"}
    command = [sys.executable, "-m", "tests.gpu.fit_accuracy", "--case", name, kind, str(card)]
    try:
        if kind == "beside":
            options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            holder = subprocess.Popen([sys.executable, "-c", HOLDER], **options)
            holder.stdout.readline()
        completed = subprocess.run(
            command, cwd=CHECKOUT, capture_output=True, text=True, timeout=min(seconds, MAX_SECONDS), check=False
        )
        lines = [line for line in completed.stdout.splitlines() if line.startswith("ROW ")]
        if lines:
            return json.loads(lines[-1].removeprefix("ROW "))
        print(completed.stdout[-2000:], completed.stderr[-4000:], flush=True)
        return {**row, "error": (completed.stderr.strip().splitlines() or ["no output"])[-1]}
    except subprocess.TimeoutExpired:
        text = f"stopped after {MAX_SECONDS} s" if seconds >= MAX_SECONDS else "not finished at the end of --seconds"
        return {**row, "error": text}
    finally:
        if holder is not None:
            holder.communicate("\n")


def markdown_table(rows):
    cards = {WHOLE: "whole GPU", **{card: f"{card} GiB" for card in sorted(CARDS)}}
    header = ["step", "largest run", "allocated", "reserved", "`--dry`", *cards.values(), "beside 20 GiB"]
    lines = []
    for name, workload in all_workloads().items():
        found = {(row["kind"], row["card"]): row for row in rows if row["workload"] == name}
        row = found.get(("accuracy", 0))
        if row is None:
            continue
        cells = [workload.text]
        if row.get("refusal"):
            cells += ["refused", "", "", ""]
        elif not row.get("sizes"):
            cells += ["", row.get("error", ""), "", ""]
        else:
            errors = [item["predicted"] / item["allocated"] - 1 for item in row["sizes"]]
            reserved = [item["predicted_reserved"] / item["reserved"] - 1 for item in row["sizes"]]
            factors = dict.fromkeys(str(row["sizes"][place]["factor"]) for place in (-1, 0))
            cells += [f"{row['largest_run']:,}, checked at {' to '.join(factors)} times"]
            dry = [item["estimated"] / item["allocated"] - 1 for item in row["sizes"] if "estimated" in item]
            cells += [f"{max(errors, key=abs):+.2%}", f"{max(reserved, key=abs):+.2%}"]
            cells.append(f"{max(dry, key=abs):+.1%}" if dry else "refused")
        cells += [_card_cell(found.get(("card", card))) for card in cards] + [_card_cell(found.get(("beside", 0)))]
        lines.append(cells)
    used = [
        place
        for place in range(len(header))
        if place < len(header) - len(cards) - 1 or any(line[place] for line in lines)
    ]
    table = [[line[place] for place in used] for line in (header, *lines)]
    table.insert(1, ["---"] * len(used))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


def _card_cell(row):
    if row is None:
        return ""
    if row.get("refusal"):
        return "refused"
    if "share" not in row:
        return "failed"
    failed = row["error"] or row["num_ooms"] or row["num_alloc_retries"]
    return f"{row['recommended']:,}: {'failed' if failed else format(row['share'], '.1%')}"


def summary(rows):
    wrong = [(row, problems(row)) for row in rows if problems(row)]
    lines = [f"{row['workload']}, {row['kind']}, {row['card']} GiB: {'; '.join(texts)}" for row, texts in wrong]
    return "\n".join([f"{len(rows) - len(wrong)} of {len(rows)} cases are as expected", *lines])


def _groups(text):
    groups = text.split(",")
    if unknown := set(groups) - set(GROUPS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; expected {', '.join(GROUPS)}")
    return groups


def _jobs(text):
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive integer, but got {text!r}")
    return int(text)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.fit_accuracy", description=__doc__)
    parser.add_argument("names", nargs="*", help="workloads to run (all by default)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results: read at the start, written after each case")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="only print the table of these results")
    parser.add_argument("--seconds", type=float, default=300, help="stop after this time (default: 300)")
    parser.add_argument(
        "--jobs", type=_jobs, default=6, metavar="N", help="cases that run at the same time (default: 6)"
    )
    groups = f"groups of cases, separated by commas: {', '.join(GROUPS)}; the numbers are GiB (default: all)"
    parser.add_argument("--only", type=_groups, default=GROUPS, metavar="GROUPS", help=groups)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        import torch

        torch.set_float32_matmul_precision("high")
        name, kind, card = arguments.case
        print("ROW " + json.dumps(run_case(name, kind, int(card))), flush=True)
        return 0
    if arguments.docs:
        rows = json.loads(arguments.docs.read_text(encoding="utf-8"))
        print(markdown_table(rows))
    else:
        import torch

        if not torch.cuda.is_available():
            print("there is no NVIDIA GPU")
            return 1
        rows = measure(arguments, torch.cuda.mem_get_info()[0] / GIB)
    print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
