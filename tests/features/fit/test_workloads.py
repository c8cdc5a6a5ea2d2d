"""The workloads of the accuracy measurements, with tiny models whose CPU tensors are allocated on a fake GPU."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time

import pytest
import torch

from tests.gpu import fit_accuracy, fit_libraries, fit_workloads


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(fit_workloads, "DEVICE", "cpu")
    monkeypatch.setattr(fit_workloads, "SCALE", 0.01)
    monkeypatch.setattr(fit_accuracy, "SHARES", (0.00002,))
    monkeypatch.setattr(fit_accuracy, "FACTORS", (8,))
    # the fake GPU has no limit
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda fraction: None)


def test_every_workload_has_cases():
    workloads = fit_accuracy.all_workloads()
    cases = fit_accuracy.cases(workloads)
    assert len(cases) == len(set(cases))
    assert {name for name, _, _ in cases} == set(workloads)
    assert cases[0] == ("resnet", "accuracy", 0) and cases[-1][1:] == ("card", 0)
    selected = fit_accuracy.cases(workloads, ["8", "beside", "whole"])
    assert {case[1:] for case in selected} == {("card", 8), ("beside", 0), ("card", 0)}
    assert selected == [case for case in cases if case in selected]
    assert workloads.keys() == fit_workloads.WORKLOADS.keys() | fit_libraries.WORKLOADS.keys()


@pytest.mark.parametrize("jobs", [2, 5])
def test_parallel_cases(jobs):
    """Cases start in order while the memory suffices; those of the whole GPU run alone."""
    cases = fit_accuracy.cases(dict.fromkeys(("gpt", "unet", "lstm"), fit_workloads.Workload(None, "")))
    lock, running, started, most = threading.Lock(), [], [], 0

    def run(case, seconds):
        nonlocal most
        assert 0 < seconds <= 60
        with lock:
            started.append(case)
            running.append(case)
            sizes = [fit_accuracy.needed_gib(item) for item in running]
            assert running == [case] or sum(sizes) <= 139
            most = max(most, len(running))
        time.sleep(0.02)
        with lock:
            running.remove(case)
        return {"number": cases.index(case)}

    finished = list(fit_accuracy.run_parallel(cases, run, jobs=jobs, gib=139, seconds=60))
    assert sorted(started) == sorted(cases)
    assert all(abs(started.index(case) - place) < jobs for place, case in enumerate(cases))
    assert min(jobs, 3) <= most <= jobs
    assert sorted(row["number"] for _, row, _ in finished) == list(range(len(cases)))
    assert all(cases[row["number"]] == case and seconds >= 0.02 for case, row, seconds in finished)


def test_needed_memory():
    accuracy, card, whole = ("gpt", "accuracy", 0), ("gpt", "card", 24), ("gpt", "card", 0)
    assert [fit_accuracy.needed_gib(case) for case in (accuracy, card, whole)] == [45.5, 25.5, None]
    assert fit_accuracy.fits_beside(accuracy, [accuracy] * 2, 139)
    assert not fit_accuracy.fits_beside(accuracy, [accuracy] * 3, 139)
    assert fit_accuracy.fits_beside(whole, [], 139) and fit_accuracy.fits_beside(accuracy, [], 40)
    assert not fit_accuracy.fits_beside(card, [whole], 139) and not fit_accuracy.fits_beside(whole, [card], 139)


def test_limit_of_the_duration(monkeypatch, tmp_path, capsys):
    """Results are written after each case, and a case that is stopped is reported and repeated."""
    path = tmp_path / "results.json"
    arguments = argparse.Namespace(json=path, seconds=1.0, jobs=2, names=["gpt", "unet"], only=["accuracy", "8"])
    commands = []
    real_run = subprocess.run

    def run(command, **options):
        commands.append(tuple(command[-3:]))
        row = {"workload": command[-3], "kind": command[-2], "card": int(command[-1]), "refusal": "irregular"}
        code = f"print('ROW ' + {json.dumps(json.dumps(row | {'expected': 'either'}))})"
        if len(commands) == 2:
            code = "import time; time.sleep(20)"
        return real_run([sys.executable, "-c", code], **options)

    monkeypatch.setattr(subprocess, "run", run)
    rows = fit_accuracy.measure(arguments, 24)
    assert json.loads(path.read_text()) == rows
    assert rows[-1]["error"] == "not finished at the end of --seconds"
    output = capsys.readouterr().out
    assert "('unet', 'accuracy', 0): not finished at the end of --seconds" in output
    assert commands == [("gpt", "accuracy", "0"), ("unet", "accuracy", "0")]
    assert "2 cases are left: repeat the command" in output
    arguments.seconds = 60
    rows = fit_accuracy.measure(arguments, 24)
    assert commands[2:] == [("unet", "accuracy", "0"), ("gpt", "card", "8"), ("unet", "card", "8")]
    assert [row["refusal"] for row in rows] == ["irregular"] * 4
    assert json.loads(path.read_text()) == rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--jobs", "0"], "expected a positive integer, but got '0'"),
        (["--only", "8,12"], "unknown: 12; expected accuracy,"),
    ],
)
def test_invalid_options(monkeypatch, capsys, options, message):
    monkeypatch.setattr(sys, "argv", ["fit_accuracy", *options])
    with pytest.raises(SystemExit):
        fit_accuracy.main()
    assert message in capsys.readouterr().err


def test_missing_library(monkeypatch, capsys):
    workload = fit_workloads.Workload(None, "a step", requires=("torch", "no_such_library"))
    monkeypatch.setitem(fit_libraries.WORKLOADS, "example", workload)
    assert list(fit_accuracy.installed_workloads(["gpt", "example"])) == ["gpt"]
    assert capsys.readouterr().out == "example: skipped, because no_such_library cannot be imported\n"


def test_training_peaks(allocations):
    """A training run begins without gradients and without cached memory."""
    parameter = torch.nn.Parameter(torch.zeros(1 << 20))
    parameter.grad = torch.ones(1 << 20)
    kept, before = [], torch.cuda.memory_allocated()

    def step(size):
        assert parameter.grad is None or kept
        parameter.grad = torch.zeros(1 << 20)
        kept.append(torch.zeros(size))
        del kept[:-3]

    peaks = fit_accuracy.training_peaks(step, 4 << 20)
    assert peaks["allocated"] == before + 3 * (16 << 20) + (16 << 20) + (4 << 20) - (4 << 20)
    assert peaks["allocated_steps"] == peaks["reserved_steps"] == 4
    assert peaks["reserved"] > peaks["reserved_first"]


@pytest.mark.parametrize("name", ["generation", "adversarial", "leaking", "by_value"])
def test_accuracy(allocations, name, capsys):
    row = fit_accuracy.run_case(name, "accuracy", 0, dry=False)
    assert fit_accuracy.problems(row) == []
    assert bool(row["refusal"]) == (row["expected"] == "refusal")
    assert not any("cannot be computed" in note for note in row["notes"])
    cell = "refused" if row["refusal"] else f"| {row['largest_run']:,}, checked at 8 times | "
    assert cell in fit_accuracy.markdown_table([row])
    assert "1 of 1 cases are as expected" in fit_accuracy.summary([row])


def test_problems():
    failed = {"workload": "gpt", "kind": "card", "card": 8, "expected": "prediction", "refusal": "irregular"}
    assert fit_accuracy.problems(failed) == ["refused: irregular"]
    ran = {"refusal": "", "recommended": 7, "share": 0.9, "limited": False, "error": "", "num_ooms": 0}
    assert fit_accuracy.problems(failed | ran | {"num_alloc_retries": 1}) == [
        " 0 OOMs, 1 retries",
        "only 90.0% of the capacity is used",
    ]
    assert fit_accuracy.problems({"error": "stopped after 150 s"}) == ["stopped after 150 s"]
    sizes = [{"size": 80, "factor": 8, "predicted": 103, "allocated": 100, "predicted_reserved": 96, "reserved": 100}]
    assert fit_accuracy.problems(failed | {"refusal": "", "kind": "accuracy", "sizes": sizes}) == [
        "allocated at 80 (8 times): +3.00%",
        "reserved at 80 (8 times): -4.00%",
    ]
