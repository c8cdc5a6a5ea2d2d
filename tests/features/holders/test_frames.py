"""Local variables of frames are read completely and without side effects."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref

from ipygpumem.core.introspection import frame_locals, running_frames


class Value:
    pass


def test_every_kind_of_variable():
    outer = Value()

    def function(inner, first=1, *args, key=2, **kwargs):
        late = [inner]

        def user():
            return inner, outer, late

        del first
        return sys._getframe()

    variables = dict(frame_locals(function(Value(), 1, 7, key=3, other=4)))
    variables.pop("user")
    if sys.version_info[:2] == (3, 12):
        variables["outer"] = outer  # variables of enclosing functions are not read
    assert variables.keys() == {"inner", "args", "key", "kwargs", "late", "outer"}
    assert variables["outer"] is outer
    assert variables["late"] == [variables["inner"]]
    assert (variables["args"], variables["key"], variables["kwargs"]) == ((7,), 3, {"other": 4})


def test_dict_returned_by_locals_is_unchanged():
    def function():
        first = 1
        namespace = locals()
        before = list(namespace.items())
        second = first + 1
        variables = dict(frame_locals(sys._getframe()))
        assert list(namespace.items()) == before, "`second` must not be in it"
        assert (variables["second"], variables["namespace"] is namespace) == (second, True)

    function()


def test_many_variables():
    namespace = {"sys": sys}
    body = "".join(f"    v{i} = {i}\n" for i in range(150))
    exec(f"def many():\n{body}    return sys._getframe()", namespace)  # noqa: S102
    assert dict(frame_locals(namespace["many"]())) == {f"v{i}": i for i in range(150)}


def test_values_are_not_kept_alive():
    def function():
        value = Value()
        variables = frame_locals(sys._getframe())
        reference = weakref.ref(value)
        del value, variables
        return reference()

    assert function() is None


def test_running_and_finished_generators():
    def lazy(value):
        values = [value]
        yield values
        yield None

    generator = lazy(3)
    next(generator)
    frame = generator.gi_frame
    assert dict(frame_locals(frame)) == {"value": 3, "values": [3]}
    del generator
    gc.collect()
    assert dict(frame_locals(frame)) in ({}, {"value": 3, "values": [3]}), "this depends on the version of Python"


def test_cleared_frame_has_no_variables():
    def fail():
        value = Value()
        raise ValueError(value)

    try:
        fail()
    except ValueError as problem:
        frame = problem.__traceback__.tb_next.tb_frame
    assert frame_locals(frame)[0][0] == "value"
    frame.clear()
    assert frame_locals(frame) == []


def test_frames_of_concurrent_threads():
    value, stop = Value(), threading.Event()

    def recurse(depth):
        first, second = value, [depth] * 9
        if depth:
            recurse(depth - 1)
        return lambda: (first, second)

    def repeat():
        while not stop.is_set():
            recurse(12)

    before = sys.getrefcount(value)
    threads = [threading.Thread(target=repeat) for _ in range(2)]
    for thread in threads:
        thread.start()
    gc.disable()
    try:
        end, count = time.perf_counter() + 0.3, 0
        while time.perf_counter() < end or not count:
            for _, frame in running_frames():
                count += sum(variable is value for _, variable in frame_locals(frame))
    finally:
        gc.enable()
        stop.set()
        for thread in threads:
            thread.join()
    del frame, _
    assert count
    gc.collect()
    assert sys.getrefcount(value) == before


def test_thread_whose_name_raises():
    class UnnamedThread(threading.Thread):
        @property
        def name(self):
            raise RuntimeError

    running, stop = threading.Event(), threading.Event()

    def work():
        running.set()
        stop.wait()

    thread = UnnamedThread(target=work)
    thread._name = "quiet"
    thread.start()
    running.wait()
    try:
        names = {name for name, _ in running_frames()}
    finally:
        stop.set()
        thread.join()
    assert "quiet" in names
