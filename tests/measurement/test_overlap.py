"""Measurements that overlap measurements of other threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ipygpumem import measure
from ipygpumem.measurement.measurement import MeasurementInterval

NOTE = "code in another thread was measured at the same time, and both reports cover the whole process"


@pytest.fixture
def in_thread():
    """Call functions in a second thread, which is the same for all calls."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def test_measurements_of_one_thread_do_not_overlap():
    intervals = set()
    outer = MeasurementInterval(intervals)
    inner = MeasurementInterval(intervals)
    assert not inner.end()
    assert not outer.end()
    # a recording across cells starts and ends in different cells
    first, second = MeasurementInterval(intervals), MeasurementInterval(intervals)
    assert not first.end()
    assert not second.end()


def test_overlapping_measurement_of_another_thread(in_thread):
    intervals = set()
    main = MeasurementInterval(intervals)
    second = in_thread(MeasurementInterval, intervals)
    assert main.end()
    assert in_thread(second.end), "the second one overlapped, although it ended later"
    assert not main.end(), "ended twice"
    assert not MeasurementInterval(intervals).end()


def test_enclosed_measurement_of_another_thread_does_not_count(in_thread):
    intervals = set()
    main = MeasurementInterval(intervals)
    second = in_thread(MeasurementInterval, intervals)
    assert not in_thread(second.end), "enclosed by a measurement of the main thread"
    assert not main.end()


def test_enclosing_measurement_counts_unless_it_is_of_the_main_thread(in_thread):
    intervals = set()
    second = in_thread(MeasurementInterval, intervals)
    main = MeasurementInterval(intervals)
    assert main.end()
    assert not in_thread(second.end), "the main thread's measurement was enclosed"


def test_note_of_blocks_in_two_threads():
    barrier = threading.Barrier(2)

    def task():
        with measure() as m:
            barrier.wait(60)
            barrier.wait(60)
        return m.report

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: task(), range(2)))
    assert any(NOTE in report.notes for report in reports)
    with measure() as separate:
        pass
    assert NOTE not in separate.report.notes
