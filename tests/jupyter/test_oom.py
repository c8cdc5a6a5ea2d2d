"""Each cell that runs out of memory on the fake GPU has one panel, and its error is unchanged."""

from __future__ import annotations

from unittest.mock import Mock

import IPython
import pytest
import torch
from traitlets import TraitError

from ipygpumem.features.oom import observer
from ipygpumem.features.oom.observer import oom_path
from ipygpumem.snapshot import Snapshot

UNUSED_PID = 9_000_001  # larger than any process ID
GPU = "dtype=torch.uint8, device='cuda')"
STEP = f"def step(n):\n    x = torch.ones(10 << 30, {GPU}\n    y = torch.ones(n << 30, {GPU}\n    return x, y"


@pytest.fixture
def oom_notebook(gpu_notebook):
    gpu_notebook.run(f"big = torch.ones(60 << 30, {GPU}")
    gpu_notebook.run(STEP)
    return gpu_notebook


def panels(result):
    return [text for text in result.texts if "is out of memory" in text]


def test_panel(oom_notebook, fake_gpu):
    fake_gpu.nvml.devices[0].others[UNUSED_PID] = 50 << 30
    result = oom_notebook.run("step(40)")
    assert type(result.error) is torch.OutOfMemoryError
    (panel,) = result.texts
    head, holders = panel.split("\n\n")
    assert head.startswith("cuda:0 is out of memory: 40.0 GiB requested\n")
    assert "other processes            50.0 GiB" in head
    assert f"pid {UNUSED_PID}              50.0 GiB" in head
    assert head.endswith("called by In [2]:3 step()")
    assert holders.startswith("cuda:0: memory holders now\n")
    names = [line.split("  ")[1] for line in holders.splitlines()[2:4]]
    assert names == ["big", "last exception: step() x"]
    assert holders.splitlines()[-4:] == [
        "cells that added the most memory since the baseline: In [1] +60.0 GiB, In [3] +10.0 GiB",
        f"another process uses 50.0 GiB on this device: pid {UNUSED_PID}",
        "%gpumem free would free 10.0 GiB",
        "to find the largest size that fits, run %gpumem fit n=1..40 step(n)",
    ]
    assert "fragmentation" not in panel
    assert oom_notebook.last.devices["cuda:0"].ooms == 1


def test_error_that_caused_another_exception(oom_notebook):
    result = oom_notebook.run("try:\n    step(80)\nexcept Exception as error:\n    raise ValueError('no') from error")
    assert type(result.error) is ValueError
    assert "requested\n" in panels(result)[0]
    assert "last exception: step() x" in panels(result)[0]


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_panel_from_error_if_allocator_reports_no_failures(make_gpu, notebook, backend):
    make_gpu(backend=backend)
    notebook.run("import torch\n%load_ext ipygpumem")
    notebook.run(f"big = torch.ones(60 << 30, {GPU}")
    table = notebook.run("%gpumem who").text
    assert ("cuBLAS workspace from the preload" in table) == (backend == "cudaMallocAsync")
    result = notebook.run(f"{STEP}\nstep(200)")
    (panel,) = panels(result)
    assert "called by In [4]:3 step()" in panel
    assert "  big " in panel
    assert f"the allocator backend {backend} does not report failed allocations" in panel


def test_error_caught_by_user_code(oom_notebook):
    result = oom_notebook.run("try:\n    step(80)\nexcept Exception as error:\n    print('caught')")
    assert (result.success, result.stdout) == (True, "caught\n")
    (panel,) = panels(result)
    assert "80.0 GiB requested (caught by the code)" in panel
    assert "memory holders at the time of the failure" in panel
    assert "thread MainThread: step() x" in panel, (
        "holders at the time of the failure, although the frame no longer exists"
    )


def test_error_caught_by_user_code_if_the_search_failed(oom_notebook, monkeypatch):
    """The panel lists the current holders if the search at the time of the failure failed."""
    monkeypatch.setattr(observer, "holders", Mock(side_effect=RuntimeError))
    (panel,) = panels(oom_notebook.run("try:\n    step(80)\nexcept Exception as error:\n    pass"))
    assert "memory holders now" in panel


RAISING = {
    "exceptions": "exceptions = 7",
    "property": "@property\n    def exceptions(self): raise RuntimeError('user code')",
    "class": "@property\n    def __class__(self): raise RuntimeError('user code')",
    "cause": "def __getattribute__(self, name):\n        if name in {'__cause__', 'exceptions'}: raise KeyError(name)"
    "\n        return Exception.__getattribute__(self, name)",
}


@pytest.mark.parametrize("body", RAISING.values(), ids=RAISING)
def test_exception_that_raises_when_read_keeps_panel_and_report(oom_notebook, body):
    if IPython.version_info < (8,) and "__getattribute__" in body:
        pytest.skip("this version of IPython cannot show the traceback of such an exception")
    oom_notebook.run(f"class Raising(Exception):\n    {body}")
    result = oom_notebook.run("try:\n    step(80)\nexcept Exception as error:\n    raise Raising() from error")
    (panel,) = panels(result)
    assert "80.0 GiB requested\n" in panel
    assert "Error in callback" not in result.stdout + result.stderr
    assert oom_notebook.last.devices["cuda:0"].ooms == 1


def test_cell_with_a_later_error_has_no_note(oom_notebook):
    result = oom_notebook.run("try:\n    step(80)\nexcept Exception:\n    pass\nraise ValueError('no')")
    (panel,) = panels(result)
    assert "caught by the code" not in panel


def test_error_in_thread(oom_notebook):
    cell = "import threading\nthreading.excepthook = lambda hook: None"
    cell += "\nt = threading.Thread(target=step, args=(80,), name='w')"
    result = oom_notebook.run(f"{cell}\nt.start(); t.join()")
    (panel,) = panels(result)
    assert "in thread w" in panel


def test_several_failures_have_one_panel(oom_notebook):
    result = oom_notebook.run(
        "for n in (100, 90, 80):\n    try:\n        step(n)\n    except torch.OutOfMemoryError:\n        pass"
    )
    (panel,) = panels(result)
    assert "80.0 GiB requested" in panel
    assert "3 allocations failed in this cell; the last failure is shown" in panel


def test_next_cell_has_no_panel(oom_notebook):
    oom_notebook.run("step(80)")
    assert oom_notebook.run("1 + 1").texts == []


def test_no_panel_while_reports_are_off(oom_notebook):
    oom_notebook.run("%gpumem off")
    assert oom_notebook.run("step(80)").texts == []
    oom_notebook.run("%gpumem on")
    assert oom_notebook.run("1 + 1").texts == []


def test_measured_cell_has_panel_and_table(oom_notebook):
    result = oom_notebook.run("%%gpumem\nstep(80)")
    assert len(result.texts) == 2
    assert len(panels(result)) == 1


def test_no_panel_without_extension(oom_notebook):
    from ipygpumem.features.oom.observer import failed_allocations

    oom_notebook.run("%unload_ext ipygpumem")
    assert oom_notebook.run("step(80)").texts == []
    assert failed_allocations().count == 0
    oom_notebook.load()
    assert len(panels(oom_notebook.run("step(80)"))) == 1


def test_snapshot_of_each_failure(oom_notebook, fake_gpu, tmp_path):
    result = oom_notebook.run(f"%config GPUMem.oom_snapshot = '{tmp_path}/oom_{{n}}.pickle'")
    assert "the last 100,000 allocations and frees are recorded" in result.stdout
    assert fake_gpu.history["max_entries"] == 100_000
    (panel,) = panels(oom_notebook.run("step(80)"))
    assert f"snapshot {tmp_path}/oom_1.pickle" in panel
    oom_notebook.run("step(81)")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["oom_1.pickle", "oom_2.pickle"]
    snapshot = Snapshot.load(tmp_path / "oom_2.pickle")
    assert "big" in snapshot.own.variables.values()
    assert [int(size) >> 30 for size in snapshot.timelines[0].trace.size][-2:] != []
    assert "allocations are no longer recorded" in oom_notebook.run("%config GPUMem.oom_snapshot = None").stdout
    assert fake_gpu.history is None


def test_history_is_interrupted_by_other_recordings(oom_notebook, fake_gpu, tmp_path):
    oom_notebook.run(f"%config GPUMem.oom_snapshot = '{tmp_path}/oom.pickle'")
    result = oom_notebook.run("%gpumem record start")
    assert result.success
    assert fake_gpu.history["max_entries"] == 1_000_000
    oom_notebook.run("%gpumem record stop")
    oom_notebook.run("1 + 1")
    assert fake_gpu.history["max_entries"] == 100_000
    result = oom_notebook.run(f"%%gpumem --snapshot {tmp_path}/own.pickle\nx = torch.ones(9 << 20, {GPU}")
    assert "own.pickle" in result.text
    assert "cut out" not in result.text
    oom_notebook.run("1 + 1")
    assert fake_gpu.history["max_entries"] == 100_000
    oom_notebook.run("%unload_ext ipygpumem")
    assert fake_gpu.history is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("/proc/no/oom.pickle", "no"),
        ("{unknown}.pickle", "the only valid placeholders"),
        ("{n[0]}.pickle", "the only valid placeholders"),
        ("{n:>99999999}.pickle", "at most 3 digits"),
        ("{n:{n}0000000}.pickle", "at most 3 digits"),
        ("{n.pickle", "the only valid placeholders"),
        ("{n:x}{host:d}.pickle", "the only valid placeholders"),
        ("", "not a file name"),
        (3, "not a file name"),
    ],
)
def test_invalid_path_is_rejected_when_set(oom_notebook, value, message):
    magics = oom_notebook.shell.magics_manager.registry["GPUMem"]
    with pytest.raises(TraitError, match=message):
        magics.oom_snapshot = value
    assert magics.oom_snapshot is None


def test_number_in_a_path_is_formatted(oom_notebook, tmp_path):
    assert oom_path(f"{tmp_path}/{{n:03}}.pickle", 7) == tmp_path / "007.pickle"


TRAIN = f"""
def train(batch):
    weights = torch.ones(1 << 30, {GPU}
    activations = [torch.ones(batch << 28, {GPU} for _ in range(4)]
"""


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([8, 12], "as predicted from the recorded runs with 8 and 12"),
        ([12], "if the memory of the recorded run with 12 grows in proportion to this number"),
    ],
)
def test_size_that_would_have_fit(oom_notebook, tmp_path, sizes, reason):
    """With recorded runs of the same cell at smaller sizes, the panel contains the largest size that fits."""
    oom_notebook.run(f"%config GPUMem.oom_snapshot = '{tmp_path}/oom_{{n}}.pickle'")
    oom_notebook.run(TRAIN)
    for code in (*(f"train(batch={size})" for size in sizes), "other = train(3)"):
        oom_notebook.run(code)
    (panel,) = panels(oom_notebook.run("train(batch=200)"))
    line = next(line for line in panel.splitlines() if "would have fit" in line)
    largest = int(line.split()[0])
    assert line == f"{largest} instead of 200 would have fit, {reason}"
    assert "run %gpumem fit batch=1..200 train(batch=batch)" in panel
    oom_notebook.run("%gpumem free")
    oom_notebook.run("torch.cuda.empty_cache()")
    assert oom_notebook.run(f"train(batch={largest})").success
    if len(sizes) > 1:
        assert not oom_notebook.run(f"train(batch={largest + 1})").success
