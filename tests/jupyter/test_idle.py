"""Reports that are created when the kernel is idle, because they are not displayed."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from ipygpumem.jupyter.idle import IdleCall
from ipygpumem.sources import device, device_monitor

MIB = 1 << 20


def shell(**content):
    return SimpleNamespace(kernel=object(), get_parent=lambda: {"content": content})


def postpone(call, *, seconds=0.0):
    """Postpone a call in an event loop that runs for some time. Return whether this succeeded, and the calls."""
    calls = []

    async def cell():
        postponed = call.postpone(lambda: calls.append(threading.current_thread()))
        assert not calls
        await asyncio.sleep(seconds)
        return postponed

    return asyncio.run(cell()), calls


def test_call_when_idle():
    assert postpone(IdleCall(shell()), seconds=0.5) == (True, [threading.main_thread()])


def test_call_before_the_next_cell():
    call = IdleCall(shell(user_expressions={}))
    postponed, calls = postpone(call)
    assert (postponed, calls) == (True, [])
    call.run()
    call.run()
    assert len(calls) == 1


@pytest.mark.parametrize("parts", [SimpleNamespace(kernel=None), SimpleNamespace(), shell(user_expressions={"a": "1"})])
def test_not_postponed(parts):
    call = IdleCall(parts)
    assert postpone(call) == (False, [])
    call.run()


def test_not_postponed_without_event_loop():
    assert IdleCall(shell()).postpone(print) is False


def test_not_postponed_in_another_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(postpone(IdleCall(shell()))))
    thread.start()
    thread.join()
    assert results == [(False, [])]


def test_postponed_call_fails(capsys):
    call = IdleCall(shell())

    async def cell():
        call.postpone(lambda: 1 / 0)

    asyncio.run(cell())
    call.run()
    assert "this cell has no report (ZeroDivisionError" in capsys.readouterr().err


@pytest.fixture
def postponed(gpu_notebook, monkeypatch):
    """Return a function that runs a cell and returns the calls that were postponed."""
    gpu_notebook.run("0")  # the modes of the devices are known after the first report
    calls = []
    idle = gpu_notebook.shell.magics_manager.registry["GPUMem"].cells.idle
    monkeypatch.setattr(idle, "postpone", lambda function: not calls.append(function))

    def run(code):
        calls.clear()
        result = gpu_notebook.run(code)
        assert not (calls and result.texts)
        return list(calls)

    return run


def test_report_of_a_cell_that_changes_nothing(gpu_notebook, postponed):
    reports = gpu_notebook.reports
    count = len(reports)
    (finish,) = postponed("0")
    assert len(reports) == count
    finish()
    assert len(reports) == count + 1
    assert (reports[-1].code, reports[-1].devices["cuda:0"].held) == ("0", 0)
    assert reports[-1].host.after.rss > MIB


def test_host_memory_of_the_next_cell(gpu_notebook, monkeypatch):
    """The host is read when the postponed report is created, and the values are also those before the next cell."""
    monkeypatch.setattr(device_monitor, "_LIFETIME", 60.0)
    idle = gpu_notebook.shell.magics_manager.registry["GPUMem"].cells.idle
    postponed = []

    def postpone(function):
        postponed.append(function)
        idle.function = function  # IPython calls `run` before the next cell
        return True

    gpu_notebook.run("0")
    monkeypatch.setattr(idle, "postpone", postpone)
    gpu_notebook.run("1")
    gpu_notebook.run("2")
    gpu_notebook.run("import ipygpumem")
    assert len(postponed) == 3
    first, second = gpu_notebook.reports[-2:]
    assert (first.code, second.code) == ("1", "2")
    assert first.host.after is second.host.before
    assert first.host.after.rss > MIB


def test_host_memory_with_its_own_peak_is_read_at_the_end_of_the_cell(gpu_notebook, monkeypatch):
    added = []
    gpu_notebook.run("%config GPUMem.host_peak = 'reset'")
    monkeypatch.setattr(device_monitor.DeviceMonitor, "add_host", added.append)
    assert gpu_notebook.run("0").success
    assert (added, gpu_notebook.reports[-1].host.after.rss > MIB) == ([], True)


@pytest.mark.parametrize(
    "setup",
    [
        "%config GPUMem.report = 'always'",
        "%config GPUMem.report = 'off'",
        "%config GPUMem.min_change = 0",
        "%config GPUMem.limit = '100 GiB'",
        "%config GPUMem.log = 'reports.jsonl'",
    ],
)
def test_settings_that_need_the_report(postponed, tmp_path, monkeypatch, setup):
    monkeypatch.chdir(tmp_path)
    assert len(postponed("0")) == 1
    postponed(setup)
    assert postponed("0") == []


@pytest.mark.parametrize("change", [None, "allocated", "peak", "outside", "processes", "mode"])
def test_changes(gpu_notebook, fake_gpu, postponed, monkeypatch, change):
    monkeypatch.setattr(device, "_LIST_LIFETIME", -1.0)  # reads NVML's list in each cell
    fake_gpu.nvml_device.others[76] = 4 * MIB
    fake_gpu.free(fake_gpu.alloc(4 * MIB))  # the peak below does not need another segment
    gpu_notebook.run("0")

    def cell():
        if change == "allocated":
            fake_gpu.alloc(4 * MIB)
        elif change == "peak":
            fake_gpu.free(fake_gpu.alloc(4 * MIB))
        elif change == "outside":
            fake_gpu.outside(4 * MIB)
        elif change == "processes":
            fake_gpu.nvml_device.others[77] = fake_gpu.nvml_device.others.pop(76)
        elif change == "mode":
            gpu_notebook.shell.magics_manager.registry["GPUMem"].cells.presenter._modes.modes["cuda:0"] = "device"

    gpu_notebook.shell.user_ns["cell"] = cell
    assert bool(postponed("cell()")) is (change is None)


def test_the_other_reports_are_not_postponed(postponed):
    assert postponed("%%gpumem\n0") == []
    assert postponed("%gpumem 0") == []
