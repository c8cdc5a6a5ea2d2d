"""The search finds objects that the garbage collector does not list, and observes its time limit."""

from __future__ import annotations

import _asyncio
import gc
import sys
import time
import types

import pytest

from ipygpumem.features.holders import tracked_objects
from ipygpumem.features.holders.name_assignment import ObjectNames
from ipygpumem.features.holders.reference_graph import ReferrerGraph
from ipygpumem.features.holders.tracked_objects import TrackedObjects

get_freeze_count = gc.get_freeze_count  # replaced in each test


def record_requests(monkeypatch, module):
    requests, get_referents = [], gc.get_referents

    def recording(*objects):
        requests.append(any(obj is module for obj in objects))
        return get_referents(*objects)

    monkeypatch.setattr(gc, "get_referents", recording)
    return requests


def test_frozen_objects_are_found(search, monkeypatch):
    """`gc.freeze` removes all objects from the collector's list, for example before a fork."""
    initialize = TrackedObjects.__init__

    def initialize_without_modules(heap, *arguments):  # their namespaces lead to all objects in memory
        initialize(heap, *arguments)
        heap.seen_ids.update(id(vars(module)) for module in list(sys.modules.values()))

    variables = {"model": {"weights": [search.tensor()]}, "asyncio": _asyncio}
    gc.freeze()
    monkeypatch.setattr(gc, "get_freeze_count", get_freeze_count)
    assert gc.get_freeze_count() > 1000
    monkeypatch.setattr(TrackedObjects, "__init__", initialize_without_modules)
    requests = record_requests(monkeypatch, _asyncio)
    result = search.result(variables)
    (storage,) = [storage for storage in result.storages if storage.location.size == search.elements * 4]
    assert storage.info.name == 'model["weights"][0]'
    assert result.complete
    assert len(requests) > 100
    assert not any(requests), "test_asyncio_referents_are_not_requested explains why"
    monkeypatch.setattr(tracked_objects, "_MIN_OBJECTS", 0)
    assert not search.result(variables, limit=0.0).complete


def test_asyncio_referents_are_not_requested(search, monkeypatch):
    """Up to Python 3.12.5, `gc.get_referents` of ``_asyncio`` can return freed objects (CPython #122695)."""
    asyncio_module, other_module = types.ModuleType("_asyncio"), types.ModuleType("another")
    requests = record_requests(monkeypatch, asyncio_module)
    assert search.storages({"x": search.tensor()})
    assert len(requests) > 100
    assert not any(requests)
    requests = record_requests(monkeypatch, other_module)
    assert search.storages({"x": search.tensor()})
    assert any(requests)


def test_search_that_times_out_is_incomplete(search, monkeypatch):
    monkeypatch.setattr(tracked_objects, "_MIN_OBJECTS", 0)
    assert not search.result({"x": search.tensor()}, limit=0.0).complete


STEPS = {
    "get_objects": gc,
    "follow": TrackedObjects,
    "add_referrers": ReferrerGraph,
    "name_from_roots": ObjectNames,
}


@pytest.mark.parametrize("step", STEPS)
def test_search_may_stop_at_any_step(search, monkeypatch, step):
    clock = [0.0]
    monkeypatch.setattr(tracked_objects, "_MIN_OBJECTS", 0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    chain = {"value": search.tensor()}
    for _ in range(3000):
        chain = {"next": chain}
    original = getattr(STEPS[step], step)

    def late(*arguments, **options):
        clock[0] = clock[0] if step == "get_objects" else 100.0
        result = original(*arguments, **options)
        clock[0] = 100.0
        return result

    monkeypatch.setattr(STEPS[step], step, late)
    distant_roots = search.distant_roots() if step == "get_objects" else []
    result = search.result({"chain": chain}, *distant_roots, limit=10)
    assert not result.complete
    named = [storage.holder for storage in result.storages if storage.location.size == search.elements * 4]
    assert named == (["chain"] if step == "get_objects" else [])
    assert "garbage" not in {place for storage in result.storages for place in storage.info.places}
