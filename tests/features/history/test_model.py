from __future__ import annotations

import dataclasses

from fakes.reports import MIB, after, before, report
from ipygpumem.core.device_names import HOST
from ipygpumem.features.history.model import changed_rows, report_rows


def test_row_has_the_values_of_the_report():
    single = report(cell=7, cell_id="a", code="x = f()")
    device = single.devices["cuda:0"]
    (row,) = report_rows(single)
    assert (row.cell, row.cell_id, row.code, row.seconds, row.device) == (7, "a", "x = f()", 2.31, "cuda:0")
    for name in ("held", "peak", "cached", "pending", "outside", "others", "unattributed"):
        assert getattr(row, name) == getattr(device, name)
    assert (row.peak_trust, row.outside_trust) == ("exact", "exact")
    assert row.allocated + row.cache + row.outside_level + row.others_level + 615 * MIB == device.after.used
    assert row.peak_level == 1300 * MIB


def test_device_without_a_context_has_no_row():
    idle = before("cuda:1", context=False)
    single = report()
    two_devices = dataclasses.replace(
        single, devices={**single.devices, "cuda:1": report(idle, idle, peak=None).devices.get("cuda:1")}
    )
    assert two_devices.devices["cuda:1"] is None
    two_devices = dataclasses.replace(two_devices, devices=single.devices)
    assert [row.device for row in report_rows(two_devices)] == ["cuda:0"]


def test_row_of_the_host_without_a_gpu():
    single = dataclasses.replace(report(), devices={})
    (row,) = report_rows(single)
    assert (row.device, row.held, row.peak, row.peak_trust) == (HOST, 0, 100 * MIB, "bound")
    assert (row.outside, row.outside_trust) == (None, "unknown")
    assert (row.allocated, row.capacity) == (single.host.after.rss, single.host.after.total)
    assert row.allocated != row.capacity


def test_changed_rows_of_several_devices():
    still, moved = report(before(), before(), peak=100 * MIB), report(before("cuda:1"), after("cuda:1"))
    two_devices = dataclasses.replace(still, devices={**still.devices, **moved.devices})
    assert [row.device for row in changed_rows([two_devices, still])] == ["cuda:1", "cuda:0"]
    failed = report(before(), before(ooms=1), peak=100 * MIB)
    assert changed_rows([failed])[0].changed
