"""The history of memory usage as JSON data for the monitor's page."""

from __future__ import annotations

import json

from fakes.reports import report
from ipygpumem.core.reading import DeviceReading, HostReading, Reading
from ipygpumem.features.live.monitor import UsageHistory, usage_update


def reading(time, *names):
    device = DeviceReading("cuda:0", context=True, allocated=1, reserved=3, active=1, used=6, total=10, mode="device")
    return Reading(time, dict.fromkeys(names, device), HostReading(5, total=100))


def test_columns_have_equal_lengths():
    history = UsageHistory(1.0)
    history.add(reading(10.0, "cuda:0"))
    history.add(reading(11.0, "cuda:0", "cuda:1"))
    history.add(reading(12.0))
    data = json.loads(json.dumps(history.data([], (7, 11.5))))
    assert data["time"] == [10, 11, 12]
    assert data["devices"]["cuda:0"]["allocated"] == [1, 1, None]
    assert data["devices"]["cuda:0"]["outside"] == [3, 3, None]
    assert data["devices"]["cuda:0"]["used"] == [6, 6, None]
    assert data["devices"]["cuda:1"]["allocated"] == [None, 1, None]
    assert data["devices"]["cuda:1"]["others"] == [None] * 3
    assert data["devices"]["cuda:1"]["own"] == [True, False, True]
    assert (data["rss"], data["total"], data["running"]) == ([5, 5, 5], 100, [7, 11.5])


def test_empty_history():
    data = UsageHistory(1.0).data([report()], None)
    assert (data["time"], data["devices"], data["cells"], data["running"]) == ([], {}, [], None)


def test_history_is_one_hour():
    history = UsageHistory(2.0)
    for i in range(5000):
        history.add(reading(float(i)))
    assert len(history.data([], None)["time"]) == 1800


def test_cells_since_a_time():
    reports = [
        report(cell=1, seconds=5.0),  # cells 1 to 6
        report(cell=None, seconds=50.0),
        report(cell=2, seconds=20.0, success=False),
    ]
    assert usage_update(reading(30.0), reports, 0.0, None)["cells"] == [[1, 1, 6, True], [2, 1, 21, False]]
    assert usage_update(reading(30.0), reports, 10.0, None)["cells"] == [[2, 1, 21, False]]
    assert usage_update(reading(30.0), reports, 60.0, None)["cells"] == []
