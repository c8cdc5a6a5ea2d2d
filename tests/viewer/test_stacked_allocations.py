"""The stacked allocations of a plot represent all events and allocations."""

from __future__ import annotations

import numpy as np
import pytest

from ipygpumem import Snapshot
from ipygpumem.viewer.stacked_allocations import EMPTY, SMALL, pixel_columns, stacked_pixels
from snapshot import files


@pytest.fixture(scope="module", params=["gpt_small", "oom_fragmented", "resnet50"])
def timeline(request):
    return files.snapshot(request.param).timeline()


@pytest.mark.parametrize(("events", "width"), [(3, 12), (12, 4), (7, 5), (5, 5), (0, 3)])
def test_columns_that_represent_events(events, width):
    trace = [
        {"action": "alloc", "addr": 4096 * number, "size": 1, "stream": 0, "time_us": number, "frames": []}
        for number in range(events)
    ]
    chosen = pixel_columns(Snapshot.load({"segments": [], "device_traces": [trace]}).timeline(0), width)
    points = events + 1
    ranges = [
        range(first := column * points // width, max((column + 1) * points // width, first + 1))
        for column in range(width)
    ]
    for point in range(points):
        expected = [column for column in range(width) if point in ranges[column]]
        assert chosen.span(point - 1, point - 1) == (expected[0], expected[-1] + 1)
        assert chosen.edges[expected[0]] < chosen.center(point - 1) < chosen.edges[expected[-1] + 1]
        for next_point in range(point, points):
            last = max(column for column in range(width) if next_point in ranges[column])
            assert chosen.span(point - 1, next_point - 1) == (expected[0], last + 1)


@pytest.mark.parametrize("width", [1, 7, 500, 20_000])
def test_each_column_shows_the_time_of_its_maximum(timeline, width):
    chosen = pixel_columns(timeline, width)
    bytes_, points = timeline.requested.bytes, len(timeline.requested)
    assert len(chosen) == width
    covered = 0
    for column in range(0, width, max(width // 100, 1)):
        first = column * points // width
        last = max((column + 1) * points // width, first + 1)
        assert chosen.first[column] == first - 1
        assert chosen.requested[column] == max(bytes_[first:last].tolist())
        assert bytes_[chosen.event[column] + 1] == chosen.requested[column]
        assert chosen.reserved[column] == max(timeline.reserved.bytes[first:last].tolist())
        covered += last - first
    assert covered >= min(points, 100)
    assert chosen.requested.max() == timeline.requested.peak()[1]
    event = timeline.requested.peak()[0]
    column = int(np.searchsorted(chosen.edges, chosen.center(event))) - 1
    assert chosen.event[column] == event


def test_every_pixel_shows_the_allocation_at_its_height(timeline):
    width, height = 90, 240
    chosen = pixel_columns(timeline, width)
    unit = timeline.requested.peak()[1] / 200
    allocations = timeline.allocations
    single = (np.arange(len(allocations)) % 100 + 2).astype(np.uint8)
    band = (allocations.stack % 5 + 110).astype(np.uint8)
    image = stacked_pixels(timeline, chosen, height, unit, single=single, band=band)
    assert image.shape == (height, width)
    tall = 0
    for column in range(width):
        strip = image[::-1, column]
        assert np.count_nonzero(strip) == round(int(chosen.requested[column]) / unit)
        assert (strip[np.count_nonzero(strip) :] == EMPTY).all()
        live = [row for row in range(len(allocations)) if allocations.start[row] <= chosen.event[column]]
        live = [row for row in live if allocations.end[row] > chosen.event[column]]
        live.sort(key=lambda row: allocations.start[row])
        low = 0
        for row in live:
            size = int(allocations.size[row])
            if size >= unit * 2:
                assert strip[int((low + size / 2) / unit)] == single[row]
                tall += 1
            low += size
        tall_values = {single[row] for row in live if allocations.size[row] >= unit}
        assert set(strip.tolist()) <= tall_values | {band[row] for row in live} | {SMALL, EMPTY}
    assert tall > 100


def test_columns_of_a_short_recording():
    """Each event has several columns, which show the allocations that are in use after it."""
    trace = [
        {"action": "alloc", "addr": 4096 * number, "size": 2, "stream": 0, "time_us": number, "frames": []}
        for number in range(3)
    ]
    timeline = Snapshot.load({"segments": [], "device_traces": [trace]}).timeline(0)
    chosen, values = pixel_columns(timeline, 10), np.arange(2, 5, dtype=np.uint8)
    image = stacked_pixels(timeline, chosen, 6, 1, single=values, band=values)
    assert chosen.event.tolist() == [-1, -1, -1, 0, 0, 1, 1, 1, 2, 2]
    for column, event in enumerate(chosen.event.tolist()):
        assert image[::-1, column].tolist() == [2, 2, 3, 3, 4, 4][: 2 * event + 2] + [EMPTY] * (4 - 2 * event)


def test_small_allocations_of_one_line_form_a_band():
    trace = [
        {"action": "alloc", "addr": 4096 * number, "size": size, "stream": 0, "time_us": number, "frames": frames}
        for number, (size, frames) in enumerate([(3, "a"), (4, "a"), (5, "b"), (20, "c"), (6, "a"), (6, "b"), (7, "b")])
    ]
    for event in trace:
        event["frames"] = [{"filename": f"/x/{event['frames']}.py", "line": 1, "name": "f"}]
    timeline = Snapshot.load({"segments": [], "device_traces": [trace]}).timeline()
    band = {0: 50, 1: 51, 2: 52}
    lines = np.asarray([band[stack] for stack in timeline.allocations.stack.tolist()], np.uint8)
    single = np.full(7, 9, np.uint8)
    image = stacked_pixels(timeline, pixel_columns(timeline, 1), 7, 10.0, single=single, band=lines)
    # from below: 7 of a and 5 of b are less than a pixel each, c is drawn individually, 6 of a is small, 13 of b a band
    assert image[::-1, 0].tolist() == [SMALL, 9, 9, SMALL, 51, 0, 0]
