"""Tests of the details shown for real processes, and of the cases in which processes are not looked up."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fakes.nvml import FakeNvmlDevice
from ipygpumem.sources import host
from ipygpumem.sources.device_monitor import DeviceMonitor
from ipygpumem.sources.host import ProcessInfoCache, own_pid

MIB = 1 << 20
SLEEP = "import time; time.sleep(300)"


@pytest.fixture
def start(monkeypatch):
    """Return a function that starts processes without Jupyter's environment variables."""
    processes = []
    for name in ("JPY_SESSION_NAME", "JPY_PARENT_PID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def run(*words, **variables):
        words = words or (sys.executable, "-c", SLEEP)
        processes.append(subprocess.Popen(words, env={**os.environ, **variables}))
        _running(processes[-1].pid, words[0])
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.wait()


def _running(pid, program):
    """Wait until a process runs its program, for at most a minute."""
    for _ in range(6000):
        if psutil.Process(pid).cmdline()[:1] == [program]:
            return
        time.sleep(0.01)


@pytest.fixture
def outermost(monkeypatch):
    monkeypatch.setattr(host, "_may_be_nested", lambda: False)


@pytest.fixture
def nested(monkeypatch):
    monkeypatch.setattr(host, "_may_be_nested", lambda: True)


@pytest.fixture
def other_user(monkeypatch):
    """Make all processes except this process belong to another user."""
    mine = os.getpid()
    monkeypatch.setattr(host, "_has_same_user", lambda process: process.pid == mine)


def test_own_pid():
    assert own_pid() == os.getpid()


def test_child(start, outermost):
    child = start(sys.executable, "-c", SLEEP, "--hf-token", "hunter2", "--lr=3", "--password=hunter2")
    process = ProcessInfoCache().lookup(child.pid, 5, trusted=True)
    assert (process.pid, process.amount, process.relation, process.role, process.notebook, process.why) == (
        child.pid,
        5,
        "child",
        "",
        "",
        "",
    )
    assert process.name == f"{Path(sys.executable).name} -c"
    assert process.command == f"{sys.executable} -c ..."
    assert "hunter2" not in repr(process)
    assert process.began == pytest.approx(time.time(), abs=30)


def test_grandchild_is_a_child(start, outermost):
    shell = start("/bin/sh", "-c", "sleep 300 & wait")
    for _ in range(6000):
        children = psutil.Process(shell.pid).children()
        if children:
            break
        time.sleep(0.01)
    assert ProcessInfoCache().lookup(children[0].pid, trusted=True).relation == "child"
    children[0].kill()


def test_hidden_parent(start, outermost, monkeypatch):
    child = start("/bin/sleep", "300")

    class Process(psutil.Process):
        def __init__(self, pid=None):
            if pid not in {None, child.pid}:
                raise psutil.NoSuchProcess(pid)
            super().__init__(pid)

    monkeypatch.setattr(host, "own_pid", lambda: 1 << 22)
    monkeypatch.setattr(psutil, "Process", Process)
    process = ProcessInfoCache().lookup(child.pid, trusted=True)
    assert (process.name, process.relation, process.why) == ("sleep", "own", "")


@pytest.fixture
def unrelated(monkeypatch):
    """Make children of this process count as unrelated."""
    monkeypatch.setattr(host, "_is_descendant", lambda process: False)


def test_kernel_is_named_by_its_notebook(start, outermost, unrelated):
    this_pid = str(os.getpid())
    kernel = start(JPY_SESSION_NAME="/home/me/train.ipynb", JPY_PARENT_PID=this_pid)
    process = ProcessInfoCache().lookup(kernel.pid, trusted=True)
    assert (process.relation, process.role, process.notebook) == ("own", "kernel", "/home/me/train.ipynb")
    assert process.label == "kernel of train.ipynb"


def test_child_of_kernel_is_not_a_kernel(start, outermost, unrelated):
    script = start(JPY_SESSION_NAME="/home/me/train.ipynb", JPY_PARENT_PID="1", RANK="3", WORLD_SIZE="4")
    process = ProcessInfoCache().lookup(script.pid, trusted=True)
    assert (process.role, process.notebook) == ("rank 3", "/home/me/train.ipynb")
    assert process.label.endswith("-c, from train.ipynb")


def test_long_names_are_shortened(start, outermost, unrelated):
    this_pid = str(os.getpid())
    kernel = start(JPY_SESSION_NAME=f"/a/{'x' * 4000}\t1.ipynb", JPY_PARENT_PID=this_pid)
    process = ProcessInfoCache().lookup(kernel.pid, trusted=True)
    assert len(process.notebook) == 100
    assert process.notebook.endswith("xxx 1.ipynb")
    for rank in ("9" * 300, "\u0663"):
        script = start(JPY_PARENT_PID="1", RANK=rank, WORLD_SIZE="4")
        assert ProcessInfoCache().lookup(script.pid, trusted=True).role == ""


def test_only_program_of_another_user_is_shown(start, outermost, other_user, monkeypatch):
    other_process = start("/bin/sleep", "300", JPY_SESSION_NAME="secret.ipynb")
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: pytest.fail("another user's command line"))
    monkeypatch.setattr(psutil.Process, "environ", lambda self: pytest.fail("another user's environment"))
    process = ProcessInfoCache().lookup(other_process.pid, trusted=True)
    assert (process.name, process.relation, process.notebook, process.command) == ("sleep", "other", "", "")
    assert process.label == f"sleep, user {process.user}"


def test_long_program_name_of_another_user(start, outermost, other_user, monkeypatch):
    other_process = start()
    monkeypatch.setattr(psutil.Process, "name", lambda self: "trainer-of-my-secret-model --token 5")
    assert ProcessInfoCache().lookup(other_process.pid, trusted=True).name == "trainer-of-my-s"


def test_control_characters_are_removed(start, outermost, monkeypatch):
    other_process = start()
    monkeypatch.setattr(psutil.Process, "name", lambda self: "py\x1b[2Jthon\n")
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: ["py\x1b[2J", "a\nb", "c\td"])
    process = ProcessInfoCache().lookup(other_process.pid, trusted=True)
    assert "\x1b" not in repr(process) and "\\x1b" not in repr(process)
    assert process.command == "*** *** ***"


def test_pid_that_may_belong_to_another_namespace(start, outermost):
    child = start()
    process = ProcessInfoCache().lookup(child.pid, 5, trusted=False)
    assert (process.name, process.relation, process.command, process.amount) == ("", "unknown", "", 5)
    assert process.why == "not looked up, because NVML's PID may belong to another PID namespace"


def test_only_processes_that_use_the_driver_are_looked_up_in_containers(start, nested, monkeypatch, tmp_path):
    child = start()
    assert ProcessInfoCache().lookup(child.pid, trusted=True).relation == "unknown"
    monkeypatch.setattr(host, "_uses_driver", lambda pid: pid == child.pid)
    assert ProcessInfoCache().lookup(child.pid, trusted=True).relation == "child"
    assert ProcessInfoCache().lookup(child.pid, trusted=False).relation == "child"


def test_process_uses_driver(start, tmp_path, monkeypatch):
    child = start()
    assert not host._uses_driver(child.pid)
    assert not host._uses_driver(1 << 30)
    folder = tmp_path / "fd"
    folder.mkdir()
    (folder / "3").symlink_to("/dev/nvidiactl")
    monkeypatch.setattr(host, "Path", lambda name: folder)
    assert host._uses_driver(child.pid)


def test_ended_process_keeps_its_name(start, outermost):
    child = start()
    directory = ProcessInfoCache()
    directory.record(((child.pid, MIB),), trusted=True)
    child.kill()
    child.wait()
    process, running = directory.lookup_ended(child.pid, trusted=True)
    assert (process.relation, running) == ("child", False)
    same_process, running = directory.lookup_ended(child.pid, trusted=True)
    assert (same_process.name, same_process.relation, running) == ("", "unknown", False)
    assert same_process.why == "the process has ended or is hidden from this user"


def test_reused_pid_is_another_process(start, outermost):
    directory = ProcessInfoCache()
    first = start("/bin/sleep", "300")
    directory.record(((first.pid, MIB),), trusted=True)
    process = directory._processes[first.pid, True]
    previous_process = host.replace(process, name="the process before", began=process.began - 100)
    directory._processes[first.pid, True] = previous_process
    assert directory.lookup(first.pid, trusted=True).name == "sleep"


def test_untrusted_process_is_looked_up_again(start, outermost):
    child, directory = start(), ProcessInfoCache()
    directory.record(((child.pid, MIB),), trusted=False)
    assert directory.lookup(child.pid, trusted=False).relation == "unknown"
    assert directory.lookup(child.pid, trusted=True).relation == "child"


def test_number_of_known_processes_is_limited(start, outermost):
    child, directory = start(), ProcessInfoCache()
    directory.record([(pid, 1) for pid in range(1 << 22, (1 << 22) + 5000)], trusted=False)
    directory.record([(child.pid, 1)], trusted=True)
    assert list(directory._processes) == [(child.pid, True)]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (psutil.AccessDenied(), "the operating system provides no information about the process"),
        (OSError("no"), "the operating system provides no information about the process"),
        (psutil.NoSuchProcess(5), "the process has ended or is hidden from this user"),
        (psutil.ZombieProcess(5), "the process has ended or is hidden from this user"),
    ],
)
def test_unreadable_process(start, outermost, monkeypatch, error, reason):
    child = start()

    def refuse(self):
        raise error

    monkeypatch.setattr(psutil.Process, "create_time", refuse)
    assert ProcessInfoCache().lookup(child.pid, trusted=True).why == reason


def test_process_with_hidden_environment(start, outermost, monkeypatch):
    child = start("/bin/sleep", "300")

    def refuse(self):
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "environ", refuse)
    process = ProcessInfoCache().lookup(child.pid, trusted=True)
    assert (process.name, process.relation, process.notebook) == ("sleep", "child", "")


def test_workers_of_multiprocessing_and_dataloader(start, outermost, monkeypatch):
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(300,), name="Feeder-7")
    process.start()
    try:
        assert ProcessInfoCache().lookup(process.pid, trusted=True).role == "Feeder-7"
        monkeypatch.setattr(psutil.Process, "name", lambda self: "pt_data_worker")
        assert ProcessInfoCache().lookup(process.pid, trusted=True).role == "DataLoader worker"
    finally:
        process.kill()
        process.join()


# on a device


def test_other_processes_on_device(make_gpu, start, outermost):
    child = start("/bin/sleep", "300")
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(others={child.pid: 300 * MIB})])
    gpu.alloc(MIB)
    monitor = DeviceMonitor()
    reading = monitor.read().devices["cuda:0"]
    assert reading.listed == ((child.pid, 300 * MIB),)
    (process,) = monitor.other_processes(reading)
    assert (process.name, process.relation, process.amount) == ("sleep", "child", 300 * MIB)


def test_host_pids_are_not_looked_up(make_gpu, start, outermost):
    child = start("/bin/sleep", "300")
    # regime A adds 3,000,000 to every pid: this process is listed with the pid of our child
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(regime="A", others={child.pid - 3_000_000: 300 * MIB})])
    gpu.alloc(MIB)
    monitor = DeviceMonitor()
    (process,) = monitor.other_processes(monitor.read().devices["cuda:0"])
    assert (process.pid, process.name, process.relation, process.amount) == (child.pid, "", "unknown", 300 * MIB)
    assert process.why


@pytest.mark.parametrize("regime", ["B", "wsl", "hidden", "shared"])
def test_no_other_processes_without_own_entry(make_gpu, start, outermost, regime):
    child = start("/bin/sleep", "300")
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(regime=regime, others={child.pid: 300 * MIB})])
    gpu.alloc(MIB)
    monitor = DeviceMonitor()
    reading = monitor.read().devices["cuda:0"]
    assert reading.listed == monitor.other_processes(reading) == ()


def test_pids_are_not_local_if_devices_disagree(make_gpu, start, outermost):
    child = start("/bin/sleep", "300")
    nvml_devices = [
        FakeNvmlDevice(uuid="GPU-1", others={child.pid: MIB}),
        FakeNvmlDevice(uuid="GPU-2", regime="A", pci="00000000:19:00.0"),
    ]
    gpu = make_gpu(nvml_devices=nvml_devices)
    gpu.alloc(MIB)
    monitor = DeviceMonitor()
    assert monitor.other_processes(monitor.read().devices["cuda:0"])[0].relation == "child"
    gpu.alloc(MIB, 1)
    monitor.read()
    assert not monitor.has_local_pids(monitor.devices[0])


def test_equal_lists_are_the_same_object(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(others={9000001: 300 * MIB})])
    gpu.alloc(MIB)
    monitor = DeviceMonitor()
    first, second = (monitor.read().devices["cuda:0"].listed for _ in range(2))
    assert first is second
