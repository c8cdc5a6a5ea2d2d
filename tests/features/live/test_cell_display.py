"""The display of a running cell, as text and as HTML."""

from __future__ import annotations

import re

from ipygpumem.core.reading import DeviceReading, HostReading, Reading
from ipygpumem.features.live.cell_display import live_bundle

MIB = 1 << 20
GIB = 1 << 30


def device_reading(allocated, name="cuda:0", *, cached=64 * MIB, outside=686 * MIB, others=0, used=2 * GIB, own=True):
    allocated *= MIB
    reserved = allocated + cached
    facts = {"allocated": allocated, "reserved": reserved, "active": allocated, "others": others, "total": 140 * GIB}
    if own:
        return DeviceReading(name, True, **facts, used=used, process=reserved + outside, mode="process")
    return DeviceReading(name, True, **facts, used=reserved + outside, mode="device")


def reading(time, *devices):
    return Reading(time, {device.name: device for device in devices}, HostReading(300 * MIB, total=24 * GIB))


def test_usage_as_text():
    bundle = live_bundle([reading(1.0, device_reading(100)), reading(1.5, device_reading(400))], 12.34, 7)
    assert bundle["text/plain"] == (
        "cuda:0  allocated 400.0 MiB · reserved 464.0 MiB · outside PyTorch 686.0 MiB · 2.0 of 140.0 GiB used"
        "   In [7], running for 12 s"
    )


def test_unknown_usage():
    unknown = DeviceReading("cuda:0", context=True)
    assert live_bundle([reading(1.0, unknown)], 125, None)["text/plain"] == "cuda:0  unknown   running for 2 min 05 s"
    whole_device = device_reading(1, own=False, others=None)
    assert (
        "outside PyTorch 686.0 MiB (this process or another)"
        in live_bundle([reading(1.0, whole_device)], 5, 1)["text/plain"]
    )


def test_host_and_many_devices():
    assert live_bundle([reading(1.0)], 3, 2)["text/plain"] == (
        "host memory (RSS)  0.3 of 24.0 GiB resident   In [2], running for 3 s"
    )
    eight_devices = live_bundle([reading(1.0, *(device_reading(1, f"cuda:{i}") for i in range(8)))], 3, 2)
    assert eight_devices["text/plain"].splitlines()[1:][-1] == "4 more devices"
    assert eight_devices["text/html"].count("<svg") == 4


def test_chart_is_valid_svg():
    history = [reading(i / 2, device_reading(i * 10 % 700, others=i * MIB)) for i in range(110)]
    html = live_bundle(history, 55, 3)["text/html"]
    assert len(html) < 10_000
    shapes = re.findall(r'<polygon fill="#[0-9a-f]{6}" points="([^"]+)"/>', html)
    assert len(shapes) == html.count("<polygon") == 4
    for shape in shapes:
        points = [tuple(map(float, point.split(","))) for point in shape.split()]
        assert all(0 <= x <= 220 and 0 <= y <= 36 for x, y in points)
    allocated, cache, outside, others = "#3b82f6", "#93c5fd", "#f59e0b", "#9ca3af"
    assert re.findall('fill="([^"]+)"', html) == [others, outside, cache, allocated], "lower areas cover higher ones"
    assert "script" not in html
    assert live_bundle([reading(1.0, DeviceReading("<b>", context=True))], 3, 1)["text/html"].count("<b>") == 1, (
        "names are escaped"
    )


def test_single_reading():
    unused = device_reading(0, cached=0, outside=0, others=0)
    assert live_bundle([reading(1.0, unused)], 2, 1)["text/html"].count("polygon") == 0
