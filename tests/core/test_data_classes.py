"""Tests that the data classes of this package behave like those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import sys
import tracemalloc

import pytest

from ipygpumem.core import data_classes

OPTIONS = (
    {},
    {"slots": True},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"repr": False},
)


def _classes(decorator, options):
    @decorator(**options)
    class Point:
        x: int
        y: float = 0.0
        note: str = dataclasses.field(default="", compare=False, repr=False)

        @property
        def total(self):
            return self.x + self.y

    @decorator(**options)
    class Labelled(Point):
        label: str = ""

        def __repr__(self):
            return self.label

    @decorator(**options)
    class Keyed:
        key: int
        rest: list = dataclasses.field(default_factory=list)

        def __eq__(self, other):
            return self.key == other.key

        def __hash__(self):
            return self.key

    @decorator(**options)
    class Empty:
        pass

    class Open(Point):
        """A subclass that is not a data class."""

    return Point, Labelled, Keyed, Empty, Open


def _attempt(function):
    try:
        return function()
    except Exception as error:
        return type(error), str(error)


def _behavior(classes):
    point, labelled, keyed, empty, open_class = classes
    first, equal, other = point(1, 2.0, "a"), point(1, 2.0, "b"), point(1, 3.0)
    nested = point([1])
    nested.x.append(nested)
    objects = (first, labelled(1, 2.0, label="l"), keyed(1), empty(), open_class(1))
    yield [first == equal, first == other, first == labelled(1, 2.0), first != other, first == 1, empty() == empty()]
    yield [keyed(1, [2]) == keyed(1, [3]), hash(keyed(7)), open_class(1) == open_class(1), open_class(1) == point(1)]
    yield [_attempt(lambda: hash(first) == hash(equal)), _attempt(lambda: len({first, equal, other, empty(), empty()}))]
    yield [repr(value).split(" object at")[0] for value in objects] + [repr(nested).split(" object at")[0]]
    for value in objects:
        for name in ("x", "unknown", "total"):
            yield _attempt(lambda value=value, name=name: setattr(value, name, 5))
            yield _attempt(lambda value=value, name=name: delattr(value, name))
    yield dataclasses.replace(other, y=9.0).total
    yield dataclasses.asdict(other), dataclasses.astuple(other)
    yield [copy.copy(other) == other, copy.deepcopy(other) == other, point.__match_args__, point.__doc__]
    yield [getattr(point, "__slots__", None), point.__hash__ is None, dataclasses.is_dataclass(other)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_behavior_is_that_of_the_standard_library(options):
    expected = _behavior(_classes(dataclasses.dataclass, options))
    actual = _behavior(_classes(data_classes.dataclass, options))
    for standard, own in zip(expected, actual, strict=True):
        # for some attributes of frozen classes with slots, the standard library raises a TypeError (cpython#90562)
        assert own == standard or "super(type, obj)" in str(standard)


@data_classes.dataclass(frozen=True, slots=True)
class Stored:
    value: int


def test_pickle_and_use_without_parentheses():
    assert pickle.loads(pickle.dumps(Stored(3))) == Stored(3)

    @data_classes.dataclass
    class Plain:
        value: int

    assert Plain(1) == Plain(1)
    assert repr(Plain(1)).endswith("Plain(value=1)")


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="measures the memory of CPython")
def test_classes_need_less_memory():
    def size(decorator):
        _classes(decorator, {"frozen": True, "slots": True})
        tracemalloc.start()
        try:
            classes = [_classes(decorator, {"frozen": True, "slots": True}) for _ in range(20)]
            gc.collect()
            return tracemalloc.get_traced_memory()[0] / len(classes)
        finally:
            tracemalloc.stop()

    assert size(data_classes.dataclass) < 0.75 * size(dataclasses.dataclass)
