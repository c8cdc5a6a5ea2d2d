"""Measurements that overlap measurements of other threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ipygpumem import measure
from ipygpumem.measurement.measurement import OpenSpans

NOTE = "another thread was measured at the same time, and both reports include the whole process"


@pytest.fixture
def in_thread():
    """Calls a function in another thread, always the same one."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def test_measurements_of_one_thread_do_not_overlap():
    spans = OpenSpans()
    outer = spans.begin()
    inner = spans.begin()
    assert not spans.end(inner)
    assert not spans.end(outer)
    first, second = spans.begin(), spans.begin()  # a recording over several cells starts and ends in different cells
    assert not spans.end(first)
    assert not spans.end(second)


def test_overlapping_measurement_of_another_thread(in_thread):
    spans = OpenSpans()
    main = spans.begin()
    second = in_thread(spans.begin)
    assert spans.end(main)
    assert in_thread(spans.end, second), "the second one overlapped, although it ended later"
    assert not spans.end(main), "ended twice"
    assert not spans.end(spans.begin())


def test_enclosed_measurement_of_another_thread_does_not_count(in_thread):
    spans = OpenSpans()
    main = spans.begin()
    second = in_thread(spans.begin)
    assert not in_thread(spans.end, second), "enclosed by a measurement of the main thread"
    assert not spans.end(main)


def test_enclosing_measurement_counts_unless_it_is_of_the_main_thread(in_thread):
    spans = OpenSpans()
    second = in_thread(spans.begin)
    main = spans.begin()
    assert spans.end(main)
    assert not in_thread(spans.end, second), "the main thread's measurement was enclosed"


def test_note_of_blocks_in_two_threads():
    barrier = threading.Barrier(2)

    def task():
        with measure() as m:
            barrier.wait(10)
            barrier.wait(10)
        return m.report

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: task(), range(2)))
    assert any(NOTE in report.notes for report in reports)
    with measure() as separate:
        pass
    assert NOTE not in separate.report.notes
