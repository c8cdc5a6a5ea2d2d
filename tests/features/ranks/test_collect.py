"""The directory of a run: the files of the ranks, and unrelated files."""

from __future__ import annotations

import contextlib
import gc
import json
import lzma
import mmap
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import ipygpumem
from fakes import workers
from ipygpumem import OptionError, ReportError, measure, read_ranks
from ipygpumem.features.ranks import peak_summary, rank_files
from ipygpumem.features.ranks.comparison import rank_rows, spreads
from ipygpumem.features.ranks.rank_files import launch_ids, rank_and_world

DATA = Path(__file__).parents[2] / "data"
MIB = 1 << 20


def work(directory, rank, mib):
    gc.collect()  # otherwise, memory that earlier tests used may be freed during the measurement
    with measure(rank_reports=directory, rank=rank):
        data = mmap.mmap(-1, mib * MIB)  # new pages: bytes may reuse free memory of the process
        data.write(b"\1" * (mib * MIB))
    return len(data)


@pytest.fixture(scope="module")
def measured_run(tmp_path_factory):
    """Return the directory of a run with three ranks, the last of which keeps the most memory."""
    directory = tmp_path_factory.mktemp("measured run")
    for rank in range(3):
        work(directory, rank, 10 * (rank + 1))
    return directory


@pytest.fixture
def run(measured_run, tmp_path):
    """Return a copy of the measured run in which each rank starts 10 ms after the previous rank."""
    shutil.copytree(measured_run, tmp_path, dirs_exist_ok=True)
    began = time.time()
    for rank in range(3):
        change(tmp_path / f"rank_0000{rank}.json", began=began + rank / 100)
    return tmp_path


def change(path, **changes):
    data = json.loads(path.read_text())
    data["origin"] |= changes
    path.write_text(json.dumps(data))


def set_duration(path, seconds):
    data = json.loads(path.read_text())
    data["report"]["seconds"] = seconds
    path.write_text(json.dumps(data))


def test_each_rank_writes_a_report(run):
    ranks = read_ranks(run)
    assert [member.name for member in ranks.members] == ["0", "1", "2"]
    assert ranks.faults == () and ranks.lost == ()
    assert ranks.members[2].report.host.held >= 25 * MIB
    assert sorted(path.name for path in run.iterdir()) == [f"rank_0000{n}.json" for n in range(3)]
    assert "  2    host" in str(ranks) and "highest:" in str(ranks)
    assert "<table" in ranks._repr_html_()


def test_second_run_in_the_same_directory_replaces_the_files(fake_gpu, tmp_path):
    paths = [tmp_path / "rank_00003.json", tmp_path / "rank_00003.pickle"]
    contents = []
    for mib in (10, 20):
        with measure(rank_reports=tmp_path, rank=3):
            block = fake_gpu.alloc(mib * MIB)
        fake_gpu.free(block)
        contents.append([path.read_bytes() for path in paths])
    assert sorted(tmp_path.iterdir()) == paths
    assert contents[0][0] != contents[1][0] and contents[0][1] != contents[1][1]


def test_failed_rank_has_a_report(tmp_path):
    with pytest.raises(ZeroDivisionError), measure(rank_reports=tmp_path, rank=0):
        1 / 0  # noqa: B018
    assert read_ranks(tmp_path).members[0].report.success is False
    assert "failed" in str(read_ranks(tmp_path))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_killed_rank_has_a_start_report(tmp_path):
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException), measure(rank_reports=tmp_path, rank=1):
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    work(tmp_path, 0, 5)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    ranks = read_ranks(tmp_path)
    assert ranks.lost == ("1",) and ranks.members[1].state == "running"
    assert "started, but wrote no report (killed or still running)" in str(ranks)
    assert ranks.members[0].report is not None


def test_missing_ranks_are_listed(run):
    for path in run.glob("*.json"):
        change(path, world=5)
    (run / "rank_00001.json").unlink()
    ranks = read_ranks(run)
    assert [member.name for member in ranks.members] == ["0", "1", "2", "3", "4"]
    assert ranks.lost == ("1", "3", "4")
    assert "no report from ranks 1, 3, 4" in str(ranks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "invalid JSON"),
        (b'{"schema": 1, "state": "done", "ori', "the JSON data is incomplete"),
        (b"\x00\xff\xfe", "the text is not valid UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"schema": 1}', "not the report of a rank"),
        (b'{"schema": 1, "state": "done", "report": {"devices": {"\\u001b[2J": 5}}}', "schema"),
        (b"null", "not an object"),
        (b" " * (5 << 20), "the file is larger than 4.0 MiB"),
    ],
)
def test_invalid_report_does_not_affect_others(run, text, message):
    (run / "rank_00001.json").write_bytes(text)
    ranks = read_ranks(run)
    assert [member.name for member in ranks.members if member.report is not None] == ["0", "2"]
    assert len(ranks.faults) == 1 and ranks.faults[0].startswith("rank_00001.json: ") and message in ranks.faults[0]
    assert "\x1b" not in str(ranks) + ranks.faults[0]
    assert ranks.lost == ("1",)


def test_invalid_snapshot_is_reported_once(run):
    (run / "rank_00002.pickle").write_bytes(b"junk")
    assert read_ranks(run).faults == ("rank_00002.pickle: the file is neither a pickle (protocols 2 to 5) nor JSON",)


def test_unrelated_files_are_ignored(run):
    (run / "notes.json").write_text("{}")
    (run / "weights.pickle").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    (run / ".rank_00000.json.77.tmp").write_text("{")
    (run / "._rank_00001.pickle").write_bytes(b"resource fork of macOS")
    (run / "rank_00007.json").mkdir()
    os.mkfifo(run / "rank_00008.json")
    (run / "rank_00009.json").symlink_to("/dev/zero")
    began = time.perf_counter()
    ranks = read_ranks(run)
    assert time.perf_counter() - began < 20
    assert [member.name for member in ranks.members if member.report] == ["0", "1", "2"]
    assert len(ranks.faults) == 3 and all("regular file" in fault or "directory" in fault for fault in ranks.faults)


def test_malicious_snapshot_is_not_executed(run, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    (run / "rank_00001.pickle").write_bytes(pickle.dumps(Evil()))
    (run / "rank_00002.pickle").write_bytes(lzma.decompress((DATA / "gpt_small.pickle.xz").read_bytes())[:50_000])
    ranks = read_ranks(run)
    assert not (tmp_path / "ran").exists()
    assert [fault.partition(":")[0] for fault in ranks.faults] == ["rank_00001.pickle", "rank_00002.pickle"]
    assert all(member.report is not None and not member.peaks for member in ranks.members)


def test_report_under_the_name_of_another_rank(run):
    (run / "rank_00009.json").write_bytes((run / "rank_00000.json").read_bytes())
    change(run / "rank_00000.json", rank=0)
    ranks = read_ranks(run)
    assert ranks.faults == ("rank_00009.json: contains the report of a different rank (0)",)


def test_older_run_with_more_ranks(run):
    for number, path in enumerate(sorted(run.glob("*.json"))):
        change(path, world=2 if number < 2 else 8, began=2e9 if number < 2 else 1e9)
    ranks = read_ranks(run)
    assert [member.name for member in ranks.members] == ["0", "1"]
    assert ranks.faults == ("rank_00002.json: from another run, with a world size of 8 instead of 2",)


EARLIER_RUN = "rank_00001.json: from an earlier run, which ended before rank 0 started"


def test_report_that_ended_before_the_newest_started(run):
    for rank in range(3):
        change(run / f"rank_0000{rank}.json", world=3, launch=[["master", "node0:29500"]])
    assert read_ranks(run).faults == ()
    change(run / "rank_00000.json", began=(began := time.time() + 86400))
    change(run / "rank_00002.json", began=began - 30)
    set_duration(run / "rank_00002.json", 40)
    ranks = read_ranks(run)
    assert ranks.faults == (EARLIER_RUN,)
    assert ranks.lost == ("1",)
    assert "no report from rank 1" in str(ranks) and "the report is from an earlier run" in str(ranks)
    # the clock of the shared directory is used for other machines
    change(run / "rank_00001.json", host="far", began=began + 1000, clock=-1000)
    assert read_ranks(run).faults == ()
    change(run / "rank_00001.json", began=began + 900)
    assert read_ranks(run).faults == (EARLIER_RUN,)
    change(run / "rank_00001.json", clock=None)
    assert read_ranks(run).faults == (), "the clocks cannot be compared"


@pytest.mark.parametrize("kind", ["elastic", "job", "parent", "master"])
def test_report_of_another_launch(run, kind):
    for rank in range(3):
        change(run / f"rank_0000{rank}.json", world=3, launch=[[kind, "b" if rank else "a"]])
    data = json.loads((run / "rank_00002.json").read_text())
    (run / "rank_00002.json").write_text(json.dumps({**data, "state": "running", "report": None}))
    ranks = read_ranks(run)
    assert ranks.faults == ("rank_00000.json: from an earlier run",)
    assert ranks.lost == ("0", "2")


@pytest.mark.parametrize("kind", ["elastic", "job", "parent"])
def test_ranks_of_one_launch_can_measure_in_sequence(run, kind):
    for rank in range(3):
        change(run / f"rank_0000{rank}.json", launch=[[kind, "a"]], began=1e9 + 60 * rank)
    assert read_ranks(run).faults == ()


def test_many_earlier_reports_are_one_message(run):
    for rank in range(3, 15):
        (run / f"rank_000{rank:02}.json").write_bytes((run / "rank_00000.json").read_bytes())
        change(run / f"rank_000{rank:02}.json", launch=[], began=1e9, rank=rank)
    names = ", ".join(f"rank_000{rank:02}.json" for rank in range(3, 11))
    assert read_ranks(run).faults == (f"{names} and 4 more: from an earlier run, which ended before rank 2 started",)


def test_parents_on_several_machines_differ(run):
    for rank in range(3):
        change(run / f"rank_0000{rank}.json", host=f"node{rank}", launch=[["parent", str(rank)]])
    assert read_ranks(run).faults == ()


def test_duplicate_rank(run):
    (run / "rank_0001.json").write_bytes((run / "rank_00001.json").read_bytes())
    began = json.loads((run / "rank_00001.json").read_text())["origin"]["began"]
    change(run / "rank_0001.json", rank=1, began=began + 0.001)
    ranks = read_ranks(run)
    assert [member.name for member in ranks.members] == ["0", "1", "2"]
    assert ranks.faults == ("rank_00001.json: older than another file of rank 1",)


def test_launch_ids(monkeypatch):
    ((kind, process),) = process_ids = launch_ids({})
    assert (kind, process.split()[0]) == ("process", str(os.getpid()))
    assert launch_ids({"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "1"}) == (
        *process_ids,
        ("job", "77.1"),
        ("master", "node0:29500"),
    )
    _, (name, run), (kind, parent) = launch_ids({"TORCHELASTIC_RUN_ID": "abc"})
    assert (name, run, kind) == ("elastic", "abc", "parent")
    number, began = parent.split()
    assert int(number) == os.getppid() and int(began) > 0
    assert launch_ids({"TORCHELASTIC_RUN_ID": "none"}) == (*process_ids, ("parent", parent))


def test_directory_with_snapshots_only(tmp_path):
    for name, source in (("a", "gpt_small"), ("b", "gpt_small"), ("odd", "resnet50")):
        (tmp_path / f"{name}.pickle.xz").write_bytes((DATA / f"{source}.pickle.xz").read_bytes())
    ranks = read_ranks(tmp_path)
    assert [member.name for member in ranks.members] == ["a", "b", "odd"]
    difference = ranks.difference
    assert (difference.outlier, difference.typical, difference.similar_count) == ("odd", "a", 2)
    files = [str(tmp_path / f"{name}.pickle.xz") for name in ("a", "odd", "b")]
    assert ranks.beside(8) == tuple(files)
    assert ranks.beside(2) == tuple(files[:2])
    peak = ranks.members[0].highest
    assert peak.requested == sum(line.amount for line in (*peak.lines, peak.rest))
    assert max(level for _, level in peak.curve) == peak.requested


def test_worker_processes_read_the_same(tmp_path):
    for number in range(3):
        (tmp_path / f"rank_{number}.pickle.xz").write_bytes((DATA / "resnet50.pickle.xz").read_bytes())
    (tmp_path / "rank_9.pickle").write_bytes(b"nothing")
    assert read_ranks(tmp_path, workers=2) == read_ranks(tmp_path)


def test_worker_processes_run_no_code_of_the_current_directory(tmp_path, monkeypatch):
    for number in range(4):
        (tmp_path / f"rank_{number}.pickle.xz").write_bytes((DATA / "cuda_graphs.pickle.xz").read_bytes())
    for module in ("json", "multiprocessing", "ipygpumem"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    ranks = read_ranks(".", workers=2)
    assert [rank.name for rank in ranks.members] == ["0", "1", "2", "3"]
    assert all(rank.peaks for rank in ranks.members)
    assert not (tmp_path / "executed").exists()


def test_killed_worker_is_reported_and_the_others_are_read(monkeypatch):
    code = peak_summary._WORKER.replace("run_worker()", "peak_summary._summary = workers.path_or_crash; run_worker()")
    code = code.replace("from", "from fakes import workers; from ipygpumem.features.ranks import peak_summary; from", 1)
    monkeypatch.setattr(peak_summary, "_WORKER", code)
    summaries = dict(peak_summary.summarize_files({str(number): Path(f"/{number}") for number in range(10)}, 2))
    assert summaries.pop("3") == "not enough memory to read the file: the worker process was killed"
    assert summaries == {str(number): f"/{number}" for number in range(10) if number != 3}


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_directories_that_cannot_be_read(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(ReportError, match=name):
        read_ranks(tmp_path / name)


def test_clocks_that_differ(run):
    began = json.loads((run / "rank_00000.json").read_text())["origin"]["began"]
    change(run / "rank_00001.json", host="far", began=began + 182.0, clock=-180.0)
    change(run / "rank_00002.json", began=began + 0.2)
    for path in run.glob("*.json"):
        set_duration(path, 5)
    text = str(read_ranks(run))
    assert "from which the clocks of these hosts differ by up to 3 min 00 s" in text
    assert "started later than the earliest rank: rank 1 by 2.00 s" in text


def test_clock_difference_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_files.time, "time", lambda real_time=time.time: real_time() - 300)
    work(tmp_path, 0, 1)
    assert read_ranks(tmp_path).members[0].origin.clock == pytest.approx(300, abs=2)


def test_full_disk_keeps_the_report_in_memory(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with pytest.warns(RuntimeWarning, match="rank_00000.json was not written: No space left"):  # noqa: SIM117 (the warning comes at the block's end)
        with measure(rank_reports=tmp_path, rank=0) as m:
            monkeypatch.setattr(Path, "replace", full)
    assert m.report.success is True
    assert read_ranks(tmp_path).members[0].state == "running"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": -1}, "an integer from 0 to 16,777,215, but got "),
        ({"rank": "0"}, "an integer from 0 to 16,777,215, but got "),
        ({"rank": 10**9}, "an integer from 0 to 16,777,215, but got 1000000000"),
        ({"rank_reports": 5}, "rank_reports must be a path to a directory, but got 5"),
        ({"snapshot": "x.pickle"}, "omit snapshot"),
        ({"rank_reports": ""}, "rank_reports must be a path to a directory, but got ''"),
        ({"rank_reports": "/dev/null/x"}, "cannot create the directory"),
        ({"rank_reports": None, "rank": 0}, "rank= requires rank_reports=DIRECTORY"),
    ],
)
def test_invalid_options(tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        measure(**{"rank_reports": tmp_path, **options})


def test_file_name_without_a_rank(tmp_path):
    with measure(rank_reports=tmp_path):
        pass
    (path,) = tmp_path.glob("*.json")
    assert path.name.endswith(f"-{os.getpid()}.json")
    assert read_ranks(tmp_path).members[0].origin.rank is None


def test_rank_from_the_environment():
    assert rank_and_world({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "0"}) == (3, 8)
    assert rank_and_world({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}) == (1, 2)
    assert rank_and_world({"SLURM_PROCID": "5"}) == (5, None)
    assert rank_and_world({"RANK": "x", "WORLD_SIZE": "8"}) == (None, None)


TORCHRUN = """
import sys, time, torch, torch.distributed as dist, ipygpumem
with ipygpumem.measure(rank_reports=sys.argv[1]) as m:
    dist.init_process_group("gloo")
    data = torch.ones((dist.get_rank() + 1) * 16 << 18)
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


@pytest.mark.cluster
def test_torchrun(tmp_path):
    count = 2
    script = tmp_path / "train.py"
    script.write_text(TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path(ipygpumem.__file__).parents[1])}
    subprocess.run(
        [*command, str(script), str(tmp_path / "run")], check=True, timeout=200, env=environment, capture_output=True
    )
    ranks = read_ranks(tmp_path / "run")
    assert [member.name for member in ranks.members] == [str(rank) for rank in range(count)]
    assert {member.origin.world for member in ranks.members} == {count}
    assert ranks.members[-1].report.host.held >= count * 16 * MIB
    (peak,) = [spread for spread in spreads(rank_rows(ranks.members)) if spread.metric == "peak"]
    assert peak.highest_owner == (str(count - 1), "host")


def spawned(rank, directory):
    """Run by torch.multiprocessing.spawn: the rank is unknown until torch.distributed is initialized."""
    import torch.distributed as dist

    with measure(rank_reports=directory):
        dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
        dist.barrier()
    dist.destroy_process_group()


@pytest.mark.cluster
def test_spawned_ranks_update_their_names(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(spawned, range(2), [str(tmp_path)] * 2))
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["rank_00000.json", "rank_00001.json"]
    members = read_ranks(tmp_path).members
    assert [member.origin.world for member in members] == [2, 2]
    assert {dict(member.origin.launch)["parent"].split()[0] for member in members} == {str(os.getpid())}


def test_forked_child_writes_nothing(tmp_path):
    with measure(rank_reports=tmp_path) as m:

        def end():
            os.environ["RANK"] = "5"
            m.__exit__(None, None, None)

        assert workers.exit_status_of_child(end) == 0
        assert [member.state for member in read_ranks(tmp_path).members] == ["running"]
    assert [(member.state, member.origin.pid) for member in read_ranks(tmp_path).members] == [("done", os.getpid())]
