"""Who measured beside whom."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ipygpumem import measure
from ipygpumem.measurement.overlap import Overlaps

BESIDE = "another thread measured at the same time: both have the figures of the whole process"


@pytest.fixture
def other():
    """Calls a function in one other thread."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *words: pool.submit(function, *words).result()


def test_one_thread_is_alone():
    book = Overlaps()
    outer = book.begin()
    inner = book.begin()
    assert not book.end(inner) and not book.end(outer)
    first, second = book.begin(), book.begin()  # a recording over several cells ends in another one than it began
    assert not book.end(first) and not book.end(second)


def test_another_thread_across_the_end(other):
    book = Overlaps()
    mine = book.begin()
    theirs = other(book.begin)
    assert book.end(mine)
    assert other(book.end, theirs), "what ended meanwhile ran beside it, too"
    assert not book.end(mine), "a second time"
    assert not book.end(book.begin())


def test_what_lies_inside_is_a_part(other):
    book = Overlaps()
    mine = book.begin()
    theirs = other(book.begin)
    assert not other(book.end, theirs), "the main thread's lies around it"
    assert not book.end(mine)


def test_around_it_another_thread_that_is_not_the_main_one(other):
    book = Overlaps()
    theirs = other(book.begin)
    mine = book.begin()
    assert book.end(mine)
    assert not other(book.end, theirs), "mine lay inside"


def test_blocks_of_threads_say_so():
    both = threading.Barrier(2)

    def task():
        with measure() as m:
            both.wait(10)
            both.wait(10)
        return m.report

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: task(), range(2)))
    assert any(BESIDE in one.notes for one in reports)
    with measure() as alone:
        pass
    assert BESIDE not in alone.report.notes
