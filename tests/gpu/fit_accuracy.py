"""Accuracy of the command fit: predictions compared with runs on one H200, each in a new process.

``python -m tests.gpu.fit_accuracy --json FILE`` runs all cases that FILE does not contain yet, and writes it after
each case. It starts no further case after ``--seconds``, so that it can be repeated until all cases are done. ``--docs
FILE`` prints the Markdown table of the documentation.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from pathlib import Path

MIB, GIB = 1 << 20, 1 << 30
CHECKOUT = Path(__file__).resolve().parents[2]
CARDS = (24, 8, 0, 16, 80)
"""Memory of the simulated GPUs in GiB; 0 for the whole GPU."""
FACTORS = (32, 16, 8)
"""Multiples of the largest size that was run, the largest first, so that it starts with the cache that fit has left."""
SHARES = (0.01, 0.003, 0.03)
"""Shares of the free memory that a run may use, tried until the prediction succeeds and a multiple fits."""
STEPS = 20
BESIDE = ("gpt", "unet", "lstm")
HELD = 20 * GIB
HOLDER = f"import torch; x = torch.empty({HELD}, dtype=torch.uint8, device='cuda'); print('ready', flush=True); input()"
MAX_DRY_ERROR = 0.2
MAX_SECONDS = 150
"""Duration of a case after which it is stopped."""


def all_workloads():
    from tests.gpu import fit_libraries, fit_workloads

    return {**fit_workloads.WORKLOADS, **fit_libraries.WORKLOADS}


def cases(workloads):
    """Return the name, the kind and the card of each case: first the accuracy, then recommended sizes."""
    result = [(name, "accuracy", 0) for name in workloads]
    predicted = [name for name, workload in workloads.items() if workload.expected != "refusal"]
    result += [(name, "card", card) for card in CARDS for name in predicted]
    return result + [(name, "beside", 0) for name in BESIDE]


def run_case(name, kind, card, *, dry=True):
    """Run one case in this process and return its results. ``dry`` adds the estimates of the option ``--dry``."""
    import torch

    import ipygpumem

    total = torch.cuda.get_device_properties(0).total_memory
    if card:
        torch.cuda.set_per_process_memory_fraction(card * GIB / total)
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
        row |= accuracy(step, result, total) if kind == "accuracy" else recommended(step, result, workload.last)
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


def accuracy(step, result, total):
    import torch

    rows = []
    largest = max(probe.size[0] for probe in result.probes)
    for factor in FACTORS:
        size = factor * largest
        if result.reserved(size) > 0.9 * total:
            continue
        for number in range(2):  # the first run leaves the gradients that exist before every later run
            gc.collect()
            torch.cuda.reset_peak_memory_stats()
            step(size)
            if number == 0:
                reserved = torch.cuda.max_memory_reserved()
        row = {"size": size, "factor": factor, "predicted": result.predict(size)}
        row["allocated"] = torch.cuda.max_memory_allocated()
        if not rows:
            row |= {"reserved": reserved, "predicted_reserved": result.reserved(size)}
        rows.append(row)
        print(row, flush=True)
    return {"sizes": rows, "largest_run": largest}


def recommended(step, result, last):
    import torch

    size = result.recommended
    if size is None:
        return {"error": "no recommended size"}
    before, error, done = torch.cuda.memory_stats(), "", 0
    torch.cuda.reset_peak_memory_stats()
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
    return {"steps": done, "error": error, "share": share, "limited": size == last, **changes}


def problems(row):
    """Return what differs from the expectations, as sentences."""
    if "refusal" not in row:
        return [row.get("error") or "the case did not finish"]
    if row["refusal"]:
        return [] if row["expected"] != "prediction" else [f"refused: {row['refusal']}"]
    result = ["not refused"] if row["expected"] == "refusal" else []
    if row["kind"] != "accuracy":
        if row["error"] or row["num_ooms"] or row["num_alloc_retries"]:
            result.append(f"{row['error']} {row['num_ooms']} OOMs, {row['num_alloc_retries']} retries")
        if row["share"] < 0.95 and not row["limited"]:
            result.append(f"only {row['share']:.1%} of the capacity is used")
        return result
    return result + inaccuracies(row["sizes"])


def inaccuracies(sizes):
    result = [] if sizes else ["no size could be checked"]
    for item in sizes:
        for name, tolerance in (("allocated", 0.02), ("reserved", 0.03)):
            predicted = item.get("predicted" if name == "allocated" else "predicted_reserved")
            error = 0 if predicted is None else predicted / item[name] - 1
            if abs(error) > tolerance:
                result.append(f"{name} at {item['size']:,} ({item['factor']} times): {error:+.2%}")
        if "estimated" in item and abs(item["estimated"] / item["allocated"] - 1) > MAX_DRY_ERROR:
            result.append(f"estimated with --dry at {item['size']:,}: {item['estimated'] / item['allocated'] - 1:+.1%}")
    return result


def installed_workloads(names):
    """Return the workloads with these names, or all workloads, except those whose libraries are not installed."""
    from tests.gpu.fit_libraries import missing

    workloads = {name: item for name, item in all_workloads().items() if name in (names or all_workloads())}
    for name, workload in list(workloads.items()):
        if missing(workload):
            print(f"{name}: skipped, because {' and '.join(missing(workload))} cannot be imported", flush=True)
            del workloads[name]
    return workloads


def measure(arguments):
    rows = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json and arguments.json.exists() else []
    rows = [row for row in rows if "refusal" in row or row["error"].startswith("stopped")]  # others are repeated
    done = {(row["workload"], row["kind"], row["card"]) for row in rows}
    end = time.monotonic() + arguments.seconds
    left = [case for case in cases(installed_workloads(arguments.names)) if case not in done]
    for number, case in enumerate(left):
        if time.monotonic() > end:
            print(f"{len(left) - number} cases are left: repeat the command", flush=True)
            break
        began = time.perf_counter()
        row = new_process(*case)
        rows.append(row)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        text = "; ".join(problems(row)) or ("refused as expected" if row["refusal"] else "ok")
        print(f"{case}: {text} ({time.perf_counter() - began:.1f} s)", flush=True)
    return rows


def new_process(name, kind, card):
    holder = None
    row = {"workload": name, "kind": kind, "card": card, "expected": "prediction"}
    command = [sys.executable, "-m", "tests.gpu.fit_accuracy", "--case", name, kind, str(card)]
    try:
        if kind == "beside":
            options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            holder = subprocess.Popen([sys.executable, "-c", HOLDER], **options)
            holder.stdout.readline()
        completed = subprocess.run(
            command, cwd=CHECKOUT, capture_output=True, text=True, timeout=MAX_SECONDS, check=False
        )
        lines = [line for line in completed.stdout.splitlines() if line.startswith("ROW ")]
        if lines:
            return json.loads(lines[-1].removeprefix("ROW "))
        print(completed.stdout[-2000:], completed.stderr[-4000:], flush=True)
        return {**row, "error": (completed.stderr.strip().splitlines() or ["no output"])[-1]}
    except subprocess.TimeoutExpired:
        return {**row, "error": f"stopped after {MAX_SECONDS} s"}
    finally:
        if holder is not None:
            holder.communicate("\n")


def markdown_table(rows):
    """Return the table of the documentation."""
    cards = {0: "whole GPU", **{card: f"{card} GiB" for card in sorted(CARDS) if card}}
    header = ["step", "largest run", "allocated", "reserved", "`--dry`", *cards.values(), "beside 20 GiB"]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
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
            reserved = row["sizes"][0]["predicted_reserved"] / row["sizes"][0]["reserved"] - 1
            factors = f"{row['sizes'][-1]['factor']} to {row['sizes'][0]['factor']}"
            cells += [f"{row['largest_run']:,}, checked at {factors} times"]
            dry = [item["estimated"] / item["allocated"] - 1 for item in row["sizes"] if "estimated" in item]
            cells += [f"{max(errors, key=abs):+.2%}", f"{reserved:+.2%}"]
            cells.append(f"{max(dry, key=abs):+.1%}" if dry else "refused")
        cells += [_card_cell(found.get(("card", card))) for card in cards] + [_card_cell(found.get(("beside", 0)))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.fit_accuracy", description=__doc__)
    parser.add_argument("names", nargs="*", help="workloads to run (all by default)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results: read at the start, written after each case")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="only print the table of these results")
    parser.add_argument("--seconds", type=float, default=300, help="start no further cases after this time")
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
        rows = measure(arguments)
    print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
