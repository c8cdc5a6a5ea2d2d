"""Locals of frames: all of them, by their names, and nobody's dict touched."""

from __future__ import annotations

import gc
import sys
import threading
import time

import pytest

from ipygpumem.features.holders.inspection import frame_locals, running_frames, slots_readable


class Kept:
    pass


def own(function):
    """What is read of the frame of a call of this function, which gives its frame."""
    return dict(frame_locals(function()))


def test_every_kind_of_variable():
    outer = Kept()

    def function(inner, first=1, *rest, key=2, **more):
        late = [inner]

        def user():
            return inner, outer, late

        del first
        return sys._getframe()

    found = own(lambda: function(Kept(), 1, 7, key=3, other=4))
    found.pop("user")
    if sys.version_info[:2] == (3, 12):
        found["outer"] = outer  # closures are left to their function there
    assert found.keys() == {"inner", "rest", "key", "more", "late", "outer"}
    assert found["outer"] is outer
    assert found["late"] == [found["inner"]]
    assert (found["rest"], found["key"], found["more"]) == ((7,), 3, {"other": 4})


def test_what_locals_gave_to_the_user_stays_as_it_was():
    def function():
        first = 1
        mine = locals()
        before = list(mine.items())
        second = first + 1
        found = dict(frame_locals(sys._getframe()))
        assert list(mine.items()) == before, "and `second` did not come into it"
        assert (found["second"], found["mine"] is mine) == (second, True)

    function()


def test_more_variables_than_the_first_view_has():
    space = {"sys": sys}
    exec("def many():\n" + "".join(f"    v{i} = {i}\n" for i in range(150)) + "    return sys._getframe()", space)  # noqa: S102
    assert own(space["many"]) == {f"v{i}": i for i in range(150)}


def test_generators_alive_and_gone():
    def lazy(kept):
        inside = [kept]
        yield inside
        yield None

    generator = lazy(3)
    next(generator)
    frame = generator.gi_frame
    assert dict(frame_locals(frame)) == {"kept": 3, "inside": [3]}
    del generator
    gc.collect()
    assert dict(frame_locals(frame)) in ({}, {"kept": 3, "inside": [3]}), "what is left depends on the Python"


def test_a_frame_that_was_cleared_has_nothing():
    def fail():
        kept = Kept()
        raise ValueError(kept)

    try:
        fail()
    except ValueError as problem:
        frame = problem.__traceback__.tb_next.tb_frame
    assert frame_locals(frame)[0][0] == "kept"
    frame.clear()
    assert frame_locals(frame) == []


def test_threads_that_run_meanwhile():
    """Their frames come and go while they are read: nothing falls, and no reference is lost."""
    kept, stop = Kept(), threading.Event()

    def work(depth):
        mine, other = kept, [depth] * 9
        if depth:
            work(depth - 1)
        return lambda: (mine, other)

    def again():
        while not stop.is_set():
            work(12)

    before = sys.getrefcount(kept)
    threads = [threading.Thread(target=again) for _ in range(2)]
    for thread in threads:
        thread.start()
    gc.disable()
    try:
        end, count = time.perf_counter() + 1, 0
        while time.perf_counter() < end:
            for _, frame in running_frames():
                count += sum(value is kept for _, value in frame_locals(frame))
    finally:
        gc.enable()
        stop.set()
        for thread in threads:
            thread.join()
    del frame, _
    assert count
    gc.collect()
    assert sys.getrefcount(kept) == before


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="has a way of its own")
def test_slots_are_where_they_are_expected():
    assert slots_readable()


def test_a_thread_that_does_not_tell_its_name():
    class Nameless(threading.Thread):
        @property
        def name(self):
            raise RuntimeError

    begun, stop = threading.Event(), threading.Event()

    def work():
        begun.set()
        stop.wait()

    thread = Nameless(target=work)
    thread._name = "quiet"
    thread.start()
    begun.wait()
    try:
        names = {name for name, _ in running_frames()}
    finally:
        stop.set()
        thread.join()
    assert "quiet" in names
