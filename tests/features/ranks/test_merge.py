"""Reports of several processes side by side."""

from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from fakes.sessions import cell
from fakes.workers import measured
from ipygpumem import OptionError, merge_reports
from ipygpumem.core.report import Report

MIB = 1 << 20


def test_reports_of_workers():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        reports = dict(zip(("one", "two"), pool.map(measured, (32, 64)), strict=True))
    merged = merge_reports(reports)
    assert [(source, row.device) for source, row in merged.rows] == [("one", "host"), ("two", "host")]
    assert merged.spread().highest_owner == ("two", "host")
    assert merged.spread("held").lowest >= 32 * MIB
    for report in reports.values():
        assert isinstance(report, Report)
        assert pickle.loads(pickle.dumps(report)) == report


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
def test_reports_of_a_dask_cluster():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        merged = merge_reports(client.gather(client.map(measured, (64, 200))))
    assert merged.spread().highest_owner == ("1", "host")


def with_devices_of(report, other_report):
    return dataclasses.replace(report, devices={**report.devices, **other_report.devices})


WORKERS = {
    "a": cell(None, held=100, peak=300),
    "b": with_devices_of(cell(None, held=50, peak=900), cell(None, held=5, peak=5, name="cuda:1")),
    "dead": None,
}


def test_tables_do_not_add_up():
    assert str(merge_reports(WORKERS)).splitlines() == [
        "3 sources",
        "        device        held        peak  allocated   cached  outside    time",
        "  a     cuda:0  +100.0 MiB  +300.0 MiB  200.0 MiB  1.9 GiB        0  2.31 s  ███",
        "  b     cuda:0   +50.0 MiB  +900.0 MiB  150.0 MiB  1.9 GiB        0  2.31 s  ██████████",
        "  b     cuda:1    +5.0 MiB    +5.0 MiB  105.0 MiB  1.9 GiB        0  2.31 s  █",
        f"  dead{' ' * 83}no report",
        "no report from source dead",
        "",
        "spread",
        "          lowest     source      median     highest     source",
        "  held  +5.0 MiB  b, cuda:1   +50.0 MiB  +100.0 MiB  a, cuda:0  highest: 2.0 times the median",
        "  peak  +5.0 MiB  b, cuda:1  +300.0 MiB  +900.0 MiB  b, cuda:0  highest: 3.0 times the median",
        "similar for all sources: outside PyTorch, host peak, time",
    ]
    assert "3.0 times the median" in merge_reports(WORKERS)._repr_html_()


def test_spread():
    merged = merge_reports(WORKERS)
    spread = merged.spread()
    assert (spread.highest, spread.highest_owner) == (900 * MIB, ("b", "cuda:0"))
    assert (spread.lowest, spread.lowest_owner) == (5 * MIB, ("b", "cuda:1"))
    assert merged.lost == ("dead",)
    with pytest.raises(OptionError, match="unknown metric 'color'"):
        merged.spread("color")


def test_lists_are_numbered():
    assert [source for source, _ in merge_reports([cell(1), None, cell(2)]).rows] == ["0", "2"]
    assert str(merge_reports([])) == "0 sources"
    assert str(merge_reports([None])).splitlines()[-1] == "no report from source 0"
    assert merge_reports([]).spread() is None


def test_pandas():
    pytest.importorskip("pandas")
    frame = merge_reports(WORKERS).to_pandas()
    assert frame["source"].tolist() == ["a", "b", "b"]
    assert frame["peak"].max() == 900 * MIB


def test_duplicate_source_names():
    with pytest.raises(OptionError, match="two sources are named 1"):
        merge_reports({1: cell(1), "1": cell(2)})


@pytest.mark.parametrize("reports", [cell(1), [cell(1), 5], {"a": "x"}])
def test_invalid_arguments(reports):
    with pytest.raises(OptionError, match="report"):
        merge_reports(reports)
