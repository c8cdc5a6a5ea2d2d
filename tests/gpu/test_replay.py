"""Replays compared with measurements: predictions of other settings, and recordings with streams, graphs and pools."""

from argparse import Namespace

import pytest

from tests.gpu.replay_accuracy import FRAGMENTING, is_miss, measure

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def results(most_of_the_gpu):
    return measure(Namespace(names=[], json=None, jobs=14, seconds=600))


def test_predicted_peaks(results):
    cases = [case for case in results["cases"] if case["purpose"] == "settings"]
    assert len(cases) >= 6 * len(FRAGMENTING) >= 30
    assert sum(is_miss(case) for case in cases) <= 0.05 * len(cases)


def test_predicted_limits(results):
    cases = [case for case in results["cases"] if case["purpose"] in {"fits", "out of memory"}]
    assert len(cases) >= 4 * len(FRAGMENTING)
    assert sum(is_miss(case) for case in cases) <= 0.1 * len(cases)  # some depend on addresses or on cuDNN


def test_recorded_settings_are_reproduced(results):
    # recordings of PyTorch 2.11 contain neither the pools of events nor how graph trees restore a private pool
    pools = {"graph_trees", "memory_pool"}
    recordings = [run for run in results["recordings"] if run["workload"] not in pools]
    runs = [*recordings, *(case["measured"] for case in results["cases"] if case["workload"] not in pools)]
    # a run that ends with an error may contain no allocations
    assert [run for run in runs if run.get("grade") != "exact" and not run.get("error")] == []


def test_retries_are_those_that_pytorch_counted(results):
    runs = [*results["recordings"], *(case["measured"] for case in results["cases"])]
    runs = [run for run in runs if run.get("grade") == "exact"]
    assert [run for run in runs if run["replayed_retries"] not in {None, run["retries"]}] == []
    assert any(run["replayed_retries"] for run in runs)
