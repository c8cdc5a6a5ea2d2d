"""Two devices in one process: each has its own breakdown and peaks, and peaks are not added up."""

import ipygpumem
from fakes.reports import imbalance
from ipygpumem.core.units import MIB
from ipygpumem.features.report.short_report import ShortReport


def tensor(torch, mib, index):
    return torch.empty(mib * MIB, dtype=torch.uint8, device=f"cuda:{index}")


def test_each_device_has_its_own_breakdown(torch_on_two_gpus):
    tensors = [tensor(torch_on_two_gpus, 1, 0), tensor(torch_on_two_gpus, 1, 1)]
    with ipygpumem.measure() as m:
        tensors.append(tensor(torch_on_two_gpus, 100, 0))
        for _ in range(3):
            tensor(torch_on_two_gpus, 200, 1)
    first, second = m.report.devices["cuda:0"], m.report.devices["cuda:1"]
    assert (first.held, first.peak) == (100 * MIB, 100 * MIB)
    assert (second.held, second.peak, second.cached) == (0, 200 * MIB, 200 * MIB)
    for device in (first, second):
        assert device.after.mode == "process"
        assert imbalance(device.after) == 0
    lines = ShortReport(m.report).text().splitlines()
    assert lines[0].startswith("cuda:0  +100.0 MiB held")
    assert lines[1].startswith("cuda:1  peak +200.0 MiB · cache +200.0 MiB")


def test_report_of_one_device(torch_on_two_gpus):
    tensors = tensor(torch_on_two_gpus, 1, 1)
    with ipygpumem.measure(devices=["cuda:1"]) as m:
        inner = tensor(torch_on_two_gpus, 50, 0)
        tensors = tensor(torch_on_two_gpus, 30, 1)
    assert list(m.report.devices) == ["cuda:1"]
    assert m.report.devices["cuda:1"].peak == 30 * MIB
    del tensors, inner


def test_nested_peaks_on_two_devices(torch_on_two_gpus):
    keep = tensor(torch_on_two_gpus, 1, 0), tensor(torch_on_two_gpus, 1, 1)
    with ipygpumem.measure() as outer:
        tensor(torch_on_two_gpus, 300, 0)
        with ipygpumem.measure() as inner:
            tensor(torch_on_two_gpus, 40, 1)
        tensor(torch_on_two_gpus, 20, 1)
    assert inner.report.devices["cuda:0"].peak == 0
    assert inner.report.devices["cuda:1"].peak == 40 * MIB
    assert outer.report.devices["cuda:0"].peak == 300 * MIB
    assert outer.report.devices["cuda:1"].peak == 40 * MIB
    del keep


def test_copy_between_devices_is_balanced(torch_on_two_gpus):
    source = tensor(torch_on_two_gpus, 64, 0)
    with ipygpumem.measure(synchronize=True) as m:
        copy = source.to("cuda:1")
    assert m.report.devices["cuda:0"].held == 0
    assert m.report.devices["cuda:1"].held == 64 * MIB
    assert all(imbalance(device.after) == 0 for device in m.report.devices.values())
    del copy
