"""Tests with a real cluster of four engines on this machine and the shell of a notebook connected to it."""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import ipygpumem
from ipygpumem import OptionError
from ipygpumem.parallel import active, disable, enable

pytest.importorskip("ipyparallel")
pytestmark = pytest.mark.filterwarnings("ignore")  # zmq, tornado and jupyter_client have their own

ENGINES = 4
FAKES = Path(__file__).parents[3]
MIB = 1 << 20


@pytest.fixture
def shell():
    main, hooks = sys.modules["__main__"], (sys.excepthook, sys.displayhook)
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.run_cell("%load_ext ipygpumem")
    yield shell
    shell.run_cell("%unload_ext ipygpumem")
    # otherwise every shell stays alive, and searches of later tests read its objects
    shell.restore_sys_module_state()
    atexit.unregister(shell.atexit_operations)
    InteractiveShell.clear_instance()
    sys.modules["__main__"], (sys.excepthook, sys.displayhook) = main, hooks


@pytest.fixture
def client(shell, tmp_path_factory, monkeypatch):
    import ipyparallel

    monkeypatch.setattr("ipygpumem.features.ranks.engines.submission._OUTPUT_TIMEOUT", 60)

    directory = str(Path(ipygpumem.__file__).parents[1])
    paths = os.pathsep.join([directory, *filter(None, [os.environ.get("PYTHONPATH")])])
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "IPYTHONDIR")}
    os.environ |= {"PYTHONPATH": paths, "IPYTHONDIR": str(tmp_path_factory.mktemp("ipython"))}
    cluster = ipyparallel.Cluster(n=ENGINES, controller_ip="127.0.0.1", engine_timeout=200, log_level=40)
    with capture_output():
        client = cluster.start_and_connect_sync(activate=True)
    shell.user_ns["rc"] = client
    yield client
    disable()
    client.close()
    cluster.stop_cluster_sync()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def run(shell, code):
    with capture_output() as captured:
        result = shell.run_cell(code)
    texts = [output.data.get("text/plain", "") for output in captured.outputs]
    return result, "\n".join([captured.stdout, captured.stderr, *texts])


@pytest.mark.cluster
def test_session_with_four_engines(shell, client, tmp_path, monkeypatch):
    """All checks use the same cluster, because starting four engines and importing PyTorch takes 10 CPU seconds."""
    monkeypatch.chdir(tmp_path)
    check_busy_engines_without_the_package(shell, client, tmp_path / "busy")
    check_snapshots_of_engines_with_gpus(shell, client, tmp_path)
    _, text = run(shell, "%gpumem engines rc")
    assert "4 engines monitored on 1 host" in text
    engines = active()

    # one row per engine, and the spread
    _, text = run(shell, "%%px --no-stream\nimport os\nfrom ipygpumem.features.ranks.rank_files import rank_and_world\n"
                         "data = os.urandom((1 + rank_and_world()[0]) * 16 << 20)")  # fmt: skip
    assert [member.name for member in engines.last.members] == ["0", "1", "2", "3"]
    assert [round(member.report.host.held / (16 * MIB)) for member in engines.last.members] == [1, 2, 3, 4]
    assert text.count("4 engines on") == 1 and " ran: " not in text
    assert "highest: 1.6 times the median" in text
    assert "resident" not in text.partition("4 engines on")[0], "engines do not print reports"

    # recording is not possible here: %%px raises the error of the engines, and nothing runs
    result, text = run(shell, "%%gpumem --engines --snapshot run_{rank}.pickle\n%%px --targets 1:3\nx = 1")
    assert not result.success
    assert "PyTorch records allocation history only for GPU memory" in text
    assert "engines on" not in text, "all engines refused the options"

    check_notes(shell, tmp_path)

    # options before %%px, quiet, stored in a variable
    result, text = run(
        shell, "%%gpumem --engines -q -v merged\n%%px --no-stream --targets 1:3\ny = os.urandom(4 << 20)"
    )
    assert result.success and "engines on" not in text
    assert [member.name for member in shell.user_ns["merged"].members] == ["1", "2"]

    # engines check limits, and a violation fails the cell
    result, text = run(shell, "%%gpumem --engines --limit-host 1MiB\n%%px --no-stream\nz = os.urandom(64 << 20)")
    assert not result.success and "4 engines on" in text

    check_late_report(shell, tmp_path / "late")

    # other versions and invalid reports do not affect the other engines
    client[1].execute("from ipygpumem.features.ranks import rank_files; rank_files.__version__ = '9.9'", block=True)
    client[2].execute(
        "shell = get_ipython(); shell.magics_manager.registry['GPUMem'].cells.presenter.send.__self__.send = "
        'lambda key, value: shell.data_pub.publish_data({key: \'{"schema": 1, "sta\'})',
        block=True,
    )
    _, text = run(shell, "%%px --no-stream\nv = os.urandom(8 << 20)")
    assert "different versions of ipygpumem: 0.1.0 on engines 0, 3; 9.9 on engine 1" in text
    assert "the report cannot be read" in text and "no report from engine 2" in text

    # killed during a cell
    began = time.monotonic()
    _, text = run(shell, "%%px --no-stream\nimport signal\nu = os.urandom(32 << 20)\n"
                         "if rank_and_world()[0] == 3:\n    os.kill(os.getpid(), signal.SIGKILL)")  # fmt: skip
    assert time.monotonic() - began < 200
    states = {member.name: member.state for member in engines.last.members}
    assert (states["0"], states["1"], states["3"]) == ("done", "done", "died")
    assert engines.last.members[0].report.host.held >= 32 * MIB
    assert "died while running the cell" in text
    _, text = run(shell, "%gpumem engines")
    assert "3 engines monitored" in text
    assert "engines no longer running: 3" in text

    check_partial_report(shell, client, tmp_path / "partial")
    check_nested_cell(shell)

    check_reload(shell)

    # switching off restores the client and the engines
    _, text = run(shell, "%gpumem engines off")
    assert "no longer monitored" in text and active() is None
    assert "send_execute_request" not in vars(client)
    assert client[0].apply_sync(_loaded) is False
    assert "engines on" not in run(shell, "%%px --no-stream --targets 0\nk = os.urandom(32 << 20)")[1]

    check_closed_client(shell, client)


def check_busy_engines_without_the_package(shell, client, file):
    client[0:2].execute("import sys; sys.modules['ipygpumem'] = None", block=True)
    client[2].execute("import sys, types; sys.modules['ipygpumem'] = types.ModuleType('ipygpumem')", block=True)
    client[3].execute(wait_code(file))
    with pytest.MonkeyPatch.context() as patch:
        times = iter((0, 0, 0, 0, 200))  # the time at the beginning, and before waiting for each engine
        patch.setattr("ipygpumem.features.ranks.engines.collect.time", SimpleNamespace(monotonic=lambda: next(times)))
        enable(client, timeout=200)
    _, text = run(shell, "%gpumem engines")
    assert "0 engines monitored" in text
    assert "engine 3 is not monitored: the engine is busy; monitoring starts once it is idle" in text
    assert "engine 2 is not monitored: the installed version of ipygpumem does not support engines" in text
    assert "engine 0 is not monitored" in text
    file.touch()
    _, text = run(shell, "%%px --no-stream\nimport os; data = os.urandom(16 << 20)")
    assert "no report from engines 0, 1, 2" in text
    assert active().last.members[3].report.host.held >= 16 * MIB
    assert "1 engine monitored" in run(shell, "%gpumem engines")[1]
    shell.user_ns["some"] = client[3:]
    run(shell, "%gpumem engines some")
    run(shell, "%%px --no-stream\nmore = os.urandom(16 << 20) if 'os' in globals() else 0")
    assert [member.name for member in active().last.members] == ["3"], "only engines of the view are monitored"
    assert "no longer monitored" in run(shell, "%gpumem engines off")[1]
    client[0:3].execute("del sys.modules['ipygpumem']", block=True)
    client[:].execute("del data; more = None", block=True)


def check_snapshots_of_engines_with_gpus(shell, client, directory):
    client[:].execute(
        f"import os, sys; os.chdir({str(directory)!r}); sys.path.insert(0, {str(FAKES)!r})\n"
        "import torch; from fakes.cuda import FakeGpu; from fakes.nvml import FakeNvmlDevice\n"
        "from ipygpumem.measurement import runtime; runtime.close()",
        block=True,
    )
    for number, letter in enumerate("aabc"):
        client[number].execute(
            f"gpu = FakeGpu(nvml_devices=[FakeNvmlDevice(uuid='GPU-{letter * 8}-1')]).install()", block=True
        )
    _, text = run(shell, "%gpumem engines rc")
    assert "4 engines monitored on 1 host, 3 GPUs" in text
    body = """
def usual():
    return torch.ones(64 << 20, dtype=torch.uint8, device='cuda')
def odd():
    return torch.ones(32 << 20, dtype=torch.uint8, device='cuda')
block = usual()
from ipygpumem.features.ranks.rank_files import rank_and_world
if rank_and_world()[0] == 2:
    more = odd()
"""
    result, text = run(
        shell, f"%%gpumem --engines --snapshot 'run_{{rank}}.pickle' --collect here\n%%px --no-stream\n{body}"
    )
    assert result.success, text
    ranks = active().last
    assert [member.report.devices["cuda:0"].held for member in ranks.members] == [
        64 * MIB,
        64 * MIB,
        96 * MIB,
        64 * MIB,
    ]
    assert [len(member.peaks) for member in ranks.members] == [1] * ENGINES
    assert (ranks.difference.outlier, ranks.difference.similar_count) == ("2", 3)
    ((label, typical, excess),) = ranks.difference.lines
    assert "odd()" in label and (typical, excess) == (0, 32 * MIB)
    assert "engine 2 deviates most; engine 0 is the most typical" in text
    assert "shared by 2 processes, counted once" in text
    names = [f"run_{number}.pickle" for number in range(ENGINES)]
    assert sorted(path.name for path in (directory / "here").iterdir()) == names
    assert all((directory / "here" / name).read_bytes() == (directory / name).read_bytes() for name in names)

    # the files alone give the same result
    _, text = run(shell, "%gpumem ranks here")
    assert "rank 2 deviates most; rank 0 is the most typical" in text

    assert "no longer monitored" in run(shell, "%gpumem engines off")[1]
    client[:].execute("runtime.close(); gpu.uninstall(); del block; more = None", block=True)


def check_notes(shell, directory):
    path = f"{directory}/t_{{rank}}.json"
    result, text = run(
        shell,
        f"%%gpumem --engines --limit 1MiB --trace {path}\n%%px --no-stream --targets 1:3\n"
        "import torch; x = torch.ones(9)",
    )
    assert result.success, text
    assert "notes by engine" in text
    note = "engines 1, 2: limits on GPU memory (peak 1.0 MiB) were not checked because no GPU was measured"
    assert note in text
    for number in (1, 2):
        assert (directory / f"t_{number}.json").exists()
        assert f"trace: {directory}/t_{number}.json (" in text
    assert "profiling itself took" in text


def wait_code(path):
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.02)"


def check_late_report(shell, file):
    run(shell, f"%%px --noblock\n{wait_code(file)}\nw = os.urandom(8 << 20)")
    _, text = run(shell, "%gpumem engines")
    assert "still running on 4 engines (0, 1, 2, 3): import os, time" in text
    file.touch()
    shell.user_ns["rc"].wait(timeout=200)
    _, text = run(shell, "1")
    assert "4 engines on" in text and " ran: import os, time" in text, (
        "a report below a different cell contains the code"
    )
    assert "engines on" not in run(shell, "1")[1], "each report is shown once"


def check_partial_report(shell, client, file):
    engines = active()
    wait = wait_code(file).replace("while", "while rank_and_world()[0] and")
    run(shell, f"%%px --noblock --targets 0:2\n{wait}\nt = os.urandom(8 << 20)")
    engines._submissions[-1].replies[0].wait(200)
    (ranks,) = engines.collect(include_partial=True)
    assert [member.state for member in ranks.members] == ["done", "late"]
    assert "still running" in str(ranks)
    assert "started later than the earliest engine" not in str(ranks), "the start of the other engine is unknown"
    assert engines.collect(include_partial=True) == [], "each report is returned once"
    assert "engines on" not in run(shell, "1 / 0")[1], "no report below a cell that sends nothing to the engines"
    file.touch()
    client.wait(timeout=200)
    (ranks,) = engines.collect()
    assert [member.state for member in ranks.members] == ["done", "done"]


def check_reload(shell):
    _, text = run(shell, "%reload_ext ipygpumem")
    assert "engines are no longer monitored" in text and active() is None
    run(shell, "%gpumem engines rc")


def check_nested_cell(shell):
    """%%px --local also runs the cell in the notebook: if it fails there, the engines may still be running."""
    code = (
        "%%px --local --no-stream --targets 0:2\nimport os, time\nj = os.urandom(8 << 20)\n"
        "if '_local_only' in globals():\n    1 / 0\ntime.sleep(1)"
    )
    shell.user_ns["_local_only"] = 1
    _, text = run(shell, code)
    assert "ZeroDivisionError" in text
    assert text.count("2 engines on") == 1
    assert "still running" not in text


def check_closed_client(shell, client):
    run(shell, "%gpumem engines rc")
    client.close()
    closed = "the client is closed: use %gpumem engines CLIENT with an open client, or %gpumem engines off"
    assert f"ipygpumem: {closed}" in run(shell, "%gpumem engines")[1]
    result, text = run(shell, "%%gpumem --engines\n1")
    assert f"UsageError: %%gpumem --engines: {closed}" in text and type(result.error_in_exec).__name__ == "UsageError"
    assert "no longer monitored" in run(shell, "%gpumem engines off")[1], "closed clients are handled"


def _loaded():
    from IPython import get_ipython

    return "GPUMem" in get_ipython().magics_manager.registry


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%gpumem engines", "no engines are monitored"),
        ("%gpumem engines off", "no engines were monitored"),
        ("%gpumem engines missing_name", "missing_name"),
        ("%gpumem engines shell", "expected an ipyparallel.Client"),
        ("%gpumem engines a b", "expected a single client"),
        ("%%gpumem --engines\n1", "no engines are monitored"),
        ("%%gpumem --collect x\n1", "--collect requires snapshots from engines"),
        ("%%gpumem --engines --collect x\n1", "--collect requires snapshots from engines"),
        ("%%gpumem --engines --view\n1", "--view requires a snapshot"),
    ],
)
def test_invalid_arguments(shell, line, message):
    shell.user_ns["shell"] = shell
    assert message in run(shell, line)[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--lines", "--lines, --function and --modules support only a single process"),
        ("-f train", "--lines, --function and --modules support only a single process"),
        ("--modules m", "--lines, --function and --modules support only a single process"),
        (
            "--snapshot run.pickle",
            "each engine needs a separate snapshot file: use a file name such as run_{rank}.pickle",
        ),
        (
            "--snapshot run_{host}.pickle",
            "each engine needs a separate snapshot file: use a file name such as run_{rank}.pickle",
        ),
        ("--trace t.json", "each engine needs a separate trace file: use a file name such as trace_{rank}.json.gz"),
        ("--timeline t.html", "each engine needs a separate timeline file: use a file name such as memory_{rank}.html"),
        ("--trace {rank}.json --snapshot {rank}.json", "must have different file names"),
        ("--trace {rank}.txt", "'{rank}.txt' is not a valid name for the trace: it must end in .json or .json.gz"),
        ("--trace {rank}.json --outside", "both use CUPTI"),
        ("--limit xx", "'xx' is not a size"),
        ("--limit-host=-1", "'-1' is not a size"),
        ("-d xx", "'xx' is not a device: use, for example, cuda:0 or 0"),
        ("--snapshot {rank}.pickle --collect {tmp}/file", "cannot create the directory"),
    ],
)
def test_options_are_checked_before_anything_is_sent(shell, monkeypatch, tmp_path, options, message):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("ipygpumem.features.ranks.engines.cell.active", lambda: SimpleNamespace(numbers=[0]))
    result, text = run(shell, f"%%gpumem --engines {options.replace('{tmp}', str(tmp_path))}\n1")
    assert type(result.error_in_exec).__name__ == "UsageError"
    assert "UsageError: %%gpumem --engines: " in text and message in text


def test_without_ipyparallel(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    with pytest.raises(OptionError, match=r"pip install ipygpumem\[parallel\]"):
        enable(object())


def test_results_are_sent_as_json(shell):
    from fakes.sessions import cell
    from ipygpumem.features.ranks.model import RankResult, rank_result_from

    member = RankResult("", "done", None, cell(1, held=3))
    assert rank_result_from(json.loads(json.dumps(member.to_dict())), "").report.devices["cuda:0"].held == 3 * MIB


@pytest.mark.parametrize("data", ["[" * 100_000, "[1]", "null", "{", '{"schema": 1, "state": ["a"]}'])
def test_invalid_reports_are_notes(data):
    from ipygpumem.features.ranks.engines.submission import engine_result

    reply = SimpleNamespace(output=SimpleNamespace(metadata={"data": {"ipygpumem1": data}}))
    result = engine_result(3, reply, {}, {})
    assert (result.name, result.state, result.report) == ("3", "missing", None)
    assert result.note.startswith("the report cannot be read: ")


def test_texts_of_engines_are_printed_without_control_characters():
    from ipygpumem.features.ranks.engines.collect import Engines
    from ipygpumem.features.ranks.engines.submission import engine_identity
    from ipygpumem.features.ranks.model import RankInfo

    def fail(_):
        raise type("E", (Exception,), {"ename": "E\x1b[31m", "evalue": "\x1b]0;a\x07\u202e b"})

    reply = SimpleNamespace(done=lambda: True, wait_for_output=lambda _: None, get=fail)
    engines = Engines(SimpleNamespace(ids=[0, 1], direct_view=lambda _: None), None)
    engines.notes[0] = engine_identity(reply)
    engines.origins[1] = RankInfo(host="h", version="0\x1b[2J")
    assert engines.notes[0] == "E?[31m: ?]0;a?? b"
    assert str(engines).replace("\n", "").isprintable()
    assert "engine 1 uses 0?[2J" in str(engines)
