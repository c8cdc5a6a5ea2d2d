"""Who other processes are: real ones, as this system shows them; and when nobody is to be looked up."""

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
from ipygpumem.sources import process_names as processes
from ipygpumem.sources.device_monitor import DeviceMonitor
from ipygpumem.sources.process_names import ProcessDirectory, own_pid

MIB = 1 << 20
SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def start(monkeypatch):
    """A real process, with these variables and no others of Jupyter's."""
    started = []
    for name in ("JPY_SESSION_NAME", "JPY_PARENT_PID", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def run(*words, **variables):
        words = words or (sys.executable, "-c", SLEEP)
        started.append(subprocess.Popen(words, env={**os.environ, **variables}))
        _running(started[-1].pid, words[0])
        return started[-1]

    yield run
    for one in started:
        one.kill()
        one.wait()


def _running(pid, program):
    """Wait until it is no copy of this one any more."""
    for _ in range(200):
        if psutil.Process(pid).cmdline()[:1] == [program]:
            return
        time.sleep(0.01)


@pytest.fixture
def outermost(monkeypatch):
    monkeypatch.setattr(processes, "_may_be_nested", lambda: False)


@pytest.fixture
def nested(monkeypatch):
    monkeypatch.setattr(processes, "_may_be_nested", lambda: True)


@pytest.fixture
def stranger(monkeypatch):
    """All processes but this one are another user's."""
    mine = os.getpid()
    monkeypatch.setattr(processes, "_has_same_user", lambda process: process.pid == mine)


def test_our_own_number_is_that_of_proc():
    assert own_pid() == os.getpid()


def test_a_child_is_told_from_others(start, outermost):
    child = start(sys.executable, "-c", SLEEP, "--hf-token", "hunter2", "--lr=3", "--password=hunter2")
    one = ProcessDirectory().lookup(child.pid, 5, trusted=True)
    assert (one.pid, one.amount, one.relation, one.role, one.notebook, one.why) == (child.pid, 5, "child", "", "", "")
    assert one.name == f"{Path(sys.executable).name} -c"
    assert one.command.endswith("--hf-token *** --lr=3 --password=***")
    assert "hunter2" not in repr(one)
    assert one.began == pytest.approx(time.time(), abs=30)


def test_a_grandchild_is_a_child(start, outermost):
    shell = start("/bin/sh", "-c", "sleep 60 & wait")
    for _ in range(200):
        below = psutil.Process(shell.pid).children()
        if below:
            break
        time.sleep(0.01)
    assert ProcessDirectory().lookup(below[0].pid, trusted=True).relation == "child"
    below[0].kill()


def test_a_parent_that_is_hidden_hides_nobody_below_it(start, outermost, monkeypatch):
    child = start("/bin/sleep", "60")

    class Process(psutil.Process):
        def __init__(self, pid=None):
            if pid not in {None, child.pid}:
                raise psutil.NoSuchProcess(pid)
            super().__init__(pid)

    monkeypatch.setattr(processes, "own_pid", lambda: 1 << 22)  # or the search would end with the parent
    monkeypatch.setattr(psutil, "Process", Process)
    one = ProcessDirectory().lookup(child.pid, trusted=True)
    assert (one.name, one.relation, one.why) == ("sleep", "own", "")


@pytest.fixture
def unrelated(monkeypatch):
    """Children of this process are somebody else's."""
    monkeypatch.setattr(processes, "_is_descendant", lambda process: False)


def test_a_kernel_is_named_by_its_notebook(start, outermost, unrelated):
    here = str(os.getpid())
    kernel = start(JPY_SESSION_NAME="/home/me/train.ipynb", JPY_PARENT_PID=here)
    one = ProcessDirectory().lookup(kernel.pid, trusted=True)
    assert (one.relation, one.role, one.notebook) == ("own", "kernel", "/home/me/train.ipynb")
    assert one.label == "kernel of train.ipynb"


def test_what_a_notebook_started_is_not_its_kernel(start, outermost, unrelated):
    script = start(JPY_SESSION_NAME="/home/me/train.ipynb", JPY_PARENT_PID="1", RANK="3", WORLD_SIZE="4")
    one = ProcessDirectory().lookup(script.pid, trusted=True)
    assert (one.role, one.notebook) == ("rank 3", "/home/me/train.ipynb")
    assert one.label.endswith("-c, from train.ipynb")


def test_names_of_any_length_stay_short(start, outermost, unrelated):
    here = str(os.getpid())
    kernel = start(JPY_SESSION_NAME=f"/a/{'x' * 4000}\t1.ipynb", JPY_PARENT_PID=here)
    one = ProcessDirectory().lookup(kernel.pid, trusted=True)
    assert len(one.notebook) == 100
    assert one.notebook.endswith("xxx 1.ipynb")
    for rank in ("9" * 300, "\u0663"):
        script = start(JPY_PARENT_PID="1", RANK=rank, WORLD_SIZE="4")
        assert ProcessDirectory().lookup(script.pid, trusted=True).role == ""


def test_of_another_user_the_programs_name_is_all(start, outermost, stranger, monkeypatch):
    other = start("/bin/sleep", "60", JPY_SESSION_NAME="secret.ipynb")
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: pytest.fail("another user's command line"))
    monkeypatch.setattr(psutil.Process, "environ", lambda self: pytest.fail("another user's environment"))
    one = ProcessDirectory().lookup(other.pid, trusted=True)
    assert (one.name, one.relation, one.notebook, one.command) == ("sleep", "other", "", "")
    assert one.label == f"sleep, user {one.user}"


def test_a_long_name_of_another_users_is_cut_where_the_kernel_cuts_it(start, outermost, stranger, monkeypatch):
    other = start()
    monkeypatch.setattr(psutil.Process, "name", lambda self: "trainer-of-my-secret-model --token 5")
    assert ProcessDirectory().lookup(other.pid, trusted=True).name == "trainer-of-my-s"


def test_names_and_users_do_not_move_anybodys_cursor(start, outermost, monkeypatch):
    other = start()
    monkeypatch.setattr(psutil.Process, "name", lambda self: "py\x1b[2Jthon\n")
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: ["py\x1b[2J", "a\nb", "c\td"])
    one = ProcessDirectory().lookup(other.pid, trusted=True)
    assert "\x1b" not in repr(one) and "\\x1b" not in repr(one)
    assert one.command == "py?[2J *** ***"


def test_a_number_is_not_looked_up_where_it_may_be_another_namespaces(start, outermost):
    child = start()
    one = ProcessDirectory().lookup(child.pid, 5, trusted=False)
    assert (one.name, one.relation, one.command, one.amount) == ("", "unknown", "", 5)
    assert one.why == "not looked up: NVML's pid may belong to another PID namespace"


def test_in_a_container_only_a_process_that_has_the_driver_open_is_named(start, nested, monkeypatch, tmp_path):
    child = start()
    assert ProcessDirectory().lookup(child.pid, trusted=True).relation == "unknown"
    monkeypatch.setattr(processes, "_uses_driver", lambda pid: pid == child.pid)
    assert ProcessDirectory().lookup(child.pid, trusted=True).relation == "child"
    assert ProcessDirectory().lookup(child.pid, trusted=False).relation == "child"


def test_whether_a_process_has_the_driver_open(start, tmp_path, monkeypatch):
    child = start()
    assert not processes._uses_driver(child.pid)
    assert not processes._uses_driver(1 << 30)
    folder = tmp_path / "fd"
    folder.mkdir()
    (folder / "3").symlink_to("/dev/nvidiactl")
    monkeypatch.setattr(processes, "Path", lambda name: folder)
    assert processes._uses_driver(child.pid)


def test_who_has_ended_keeps_the_name_it_had(start, outermost):
    child = start()
    directory = ProcessDirectory()
    directory.record(((child.pid, MIB),), trusted=True)
    child.kill()
    child.wait()
    one, lives = directory.lookup_ended(child.pid, trusted=True)
    assert (one.relation, lives) == ("child", False)
    again, lives = directory.lookup_ended(child.pid, trusted=True)
    assert (again.name, again.relation, lives) == ("", "unknown", False)
    assert again.why == "the process has ended or is hidden by the system"


def test_a_number_that_was_given_again_is_another_process(start, outermost):
    directory = ProcessDirectory()
    first = start("/bin/sleep", "60")
    directory.record(((first.pid, MIB),), trusted=True)
    known = directory._known[first.pid]
    known.process = processes.replace(known.process, name="the one before", began=known.process.began - 100)
    assert directory.lookup(first.pid, trusted=True).name == "sleep"


def test_who_was_met_too_early_is_looked_at_again(start, outermost):
    child, directory = start(), ProcessDirectory()
    directory.record(((child.pid, MIB),), trusted=False)
    assert directory.lookup(child.pid, trusted=False).relation == "unknown"
    assert directory.lookup(child.pid, trusted=True).relation == "child"


def test_those_that_were_met_do_not_pile_up(start, outermost):
    child, directory = start(), ProcessDirectory()
    directory.record([(pid, 1) for pid in range(1 << 22, (1 << 22) + 5000)], trusted=False)
    directory.record([(child.pid, 1)], trusted=True)
    assert list(directory._known) == [child.pid]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (psutil.AccessDenied(), "the system gives no information about this process"),
        (OSError("no"), "the system gives no information about this process"),
        (psutil.NoSuchProcess(5), "the process has ended or is hidden by the system"),
        (psutil.ZombieProcess(5), "the process has ended or is hidden by the system"),
    ],
)
def test_a_process_that_cannot_be_looked_at(start, outermost, monkeypatch, error, why):
    child = start()

    def refuse(self):
        raise error

    monkeypatch.setattr(psutil.Process, "create_time", refuse)
    assert ProcessDirectory().lookup(child.pid, trusted=True).why == why


def test_a_process_that_hides_its_environment_has_its_name(start, outermost, monkeypatch):
    child = start("/bin/sleep", "60")

    def refuse(self):
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "environ", refuse)
    one = ProcessDirectory().lookup(child.pid, trusted=True)
    assert (one.name, one.relation, one.notebook) == ("sleep", "child", "")


def test_workers_of_multiprocessing_and_of_a_dataloader(start, outermost, monkeypatch):
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), name="Feeder-7")
    process.start()
    try:
        assert ProcessDirectory().lookup(process.pid, trusted=True).role == "Feeder-7"
        monkeypatch.setattr(psutil.Process, "name", lambda self: "pt_data_worker")
        assert ProcessDirectory().lookup(process.pid, trusted=True).role == "DataLoader worker"
    finally:
        process.kill()
        process.join()


# on a card


def test_names_on_a_card_in_each_regime(make_gpu, start, outermost):
    child = start("/bin/sleep", "60")
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(others={child.pid: 300 * MIB})])
    gpu.alloc(MIB)
    monitor = DeviceMonitor()
    reading = monitor.read().devices["cuda:0"]
    assert reading.listed == ((child.pid, 300 * MIB),)
    (one,) = monitor.other_processes(0)
    assert (one.name, one.relation, one.amount) == ("sleep", "child", 300 * MIB)


def test_host_numbers_in_a_container_are_never_matched_with_ours(make_gpu, start, outermost):
    child = start("/bin/sleep", "60")
    # regime A adds 3,000,000 to every number: this one stands in the list as that of our own child
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(regime="A", others={child.pid - 3_000_000: 300 * MIB})])
    gpu.alloc(MIB)
    monitor = DeviceMonitor()
    monitor.read()
    (one,) = monitor.other_processes(0)
    assert (one.pid, one.name, one.relation, one.amount) == (child.pid, "", "unknown", 300 * MIB)
    assert one.why


@pytest.mark.parametrize("regime", ["B", "wsl", "hidden", "shared"])
def test_where_our_entry_is_unknown_nobody_is_a_neighbour(make_gpu, start, outermost, regime):
    child = start("/bin/sleep", "60")
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(regime=regime, others={child.pid: 300 * MIB})])
    gpu.alloc(MIB)
    monitor = DeviceMonitor()
    assert monitor.read().devices["cuda:0"].listed == ()
    assert monitor.other_processes(0) == ()


def test_two_cards_that_do_not_agree_are_not_trusted(make_gpu, start, outermost):
    child = start("/bin/sleep", "60")
    cards = [
        FakeNvmlDevice(uuid="GPU-1", others={child.pid: MIB}),
        FakeNvmlDevice(uuid="GPU-2", regime="A", pci="00000000:19:00.0"),
    ]
    gpu = make_gpu(nvml_devices=cards)
    gpu.alloc(MIB)
    monitor = DeviceMonitor()
    monitor.read()
    assert monitor.other_processes(0)[0].relation == "child"
    gpu.alloc(MIB, 1)
    monitor.read()
    assert not monitor.has_local_pids(monitor.devices[0])


def test_equal_lists_are_one(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(others={9000001: 300 * MIB})])
    gpu.alloc(MIB)
    monitor = DeviceMonitor()
    first, second = (monitor.read().devices["cuda:0"].listed for _ in range(2))
    assert first is second
