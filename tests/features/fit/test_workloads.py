"""The workloads of the accuracy measurements, with tiny models whose CPU tensors are allocated on a fake GPU."""

from __future__ import annotations

import pytest

from tests.gpu import fit_accuracy, fit_libraries, fit_workloads


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(fit_workloads, "DEVICE", "cpu")
    monkeypatch.setattr(fit_workloads, "SCALE", 0.01)
    monkeypatch.setattr(fit_accuracy, "SHARES", (0.00002,))
    monkeypatch.setattr(fit_accuracy, "FACTORS", (8,))


def test_every_workload_has_cases():
    workloads = fit_accuracy.all_workloads()
    cases = fit_accuracy.cases(workloads)
    assert len(cases) == len(set(cases))
    assert {name for name, _, _ in cases} == set(workloads)
    assert workloads.keys() == fit_workloads.WORKLOADS.keys() | fit_libraries.WORKLOADS.keys()


def test_missing_library(monkeypatch, capsys):
    workload = fit_workloads.Workload(None, "a step", requires=("torch", "no_such_library"))
    monkeypatch.setitem(fit_libraries.WORKLOADS, "example", workload)
    assert list(fit_accuracy.installed_workloads(["gpt", "example"])) == ["gpt"]
    assert capsys.readouterr().out == "example: skipped, because no_such_library cannot be imported\n"


@pytest.mark.parametrize("name", ["generation", "adversarial", "leaking", "by_value"])
def test_accuracy(allocations, name, capsys):
    row = fit_accuracy.run_case(name, "accuracy", 0, dry=False)
    assert fit_accuracy.problems(row) == []
    assert bool(row["refusal"]) == (row["expected"] == "refusal")
    assert not any("cannot be computed" in note for note in row["notes"])
    cell = "refused" if row["refusal"] else f"| {row['largest_run']:,}, checked at 8 to 8 times | "
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
