"""``%%gpumem --lines`` and ``-f NAME``."""

from __future__ import annotations

import sys

import pytest
from IPython.core.error import UsageError

from ipygpumem import Snapshot
from ipygpumem.features.lines.peak import lines_at_peak

pytestmark = pytest.mark.ipython

MAKE = """\
def make(n):
    x = torch.ones(n << 20, dtype=torch.uint8, device='cuda')
    y = torch.ones(n << 20, dtype=torch.uint8, device='cuda')
    return x

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = make(1)

    def forward(self, n):
        return make(n)

net = Net()
"""


@pytest.fixture
def nb(gpu_notebook):
    assert gpu_notebook.run(MAKE).success
    return gpu_notebook


def uses(notebook):
    """Return the memory usage of all listed lines by the text of the line."""
    (device,) = notebook.last.lines
    return {
        line.text.strip(): line.use for listing in device.listings for line in listing.lines if line.use is not None
    }


def titles(notebook):
    (device,) = notebook.last.lines
    return [listing.title for listing in device.listings]


def test_cell_and_notebook_functions_that_ran(nb):
    result = nb.run("%%gpumem --lines\nkeep = []\nfor i in range(3):\n    keep.append(net.forward(10))\nlen(keep)")
    assert result.value == 3
    assert titles(nb) == ["In [2]", "make, In [1]", "Net.forward, In [1]"]
    lines = uses(nb)
    assert lines["keep.append(net.forward(10))"].allocated == 60 << 20
    assert lines["return make(n)"].allocations == 6
    assert lines["x = torch.ones(n << 20, dtype=torch.uint8, device='cuda')"].kept == 30 << 20
    assert nb.last.lines[0].listings[0].lines[0].text == "%%gpumem --lines"
    assert "cuda:0 by line of code" in result.text
    assert "60.0 MiB ×6" in result.text  # noqa: RUF001 (multiplication sign)
    assert "60.0 MiB ×6" in result.displays[0]["text/html"]  # noqa: RUF001 (multiplication sign)
    assert not nb.shell.user_ns["torch"]._C._cuda_isHistoryEnabled()


@pytest.mark.parametrize("name", ["make", "Net.forward", "net.forward", "net"])
def test_named_functions_only(nb, name):
    nb.run(f"%%gpumem -f {name}\na = net(2)")
    forward = (
        "Net.forward, In [1]" if sys.version_info >= (3, 11) else "forward, In [1]"
    )  # Python 3.11 added co_qualname
    assert titles(nb) == ["In [2]", "make, In [1]" if name == "make" else forward]


def test_function_defined_in_cell_is_listed_once(nb):
    cell = "%%gpumem -f late -f Late.step\ndef late():\n    return make(3)\n"
    cell += "class Late:\n    def step(self):\n        pass\n"
    assert nb.run(cell + "a = late()").success
    assert titles(nb) == ["In [2]"]
    assert uses(nb)["return make(3)"].kept == 3 << 20


def test_statement(nb):
    result = nb.run("%gpumem --lines a = make(4)")
    assert titles(nb) == ["make, In [1]", "In [2]"]
    assert uses(nb)["a = make(4)"].kept == 4 << 20
    assert uses(nb)["y = torch.ones(n << 20, dtype=torch.uint8, device='cuda')"].peak == (32 + 1 + 8) << 20
    assert "cuda:0 by line of code" in result.text


def test_repeated_cell_is_listed_under_latest_number(nb):
    for number in (2, 3):
        nb.run("%%gpumem --lines\na = make(1)")
        assert titles(nb)[0] == f"In [{number}]"


def test_failing_cell_is_listed(nb):
    result = nb.run("%%gpumem --lines\na = make(5)\n1/0")
    assert isinstance(result.error, ZeroDivisionError)
    assert uses(nb)["a = make(5)"].kept == 5 << 20


def test_awaiting_cell(nb):
    result = nb.run("%%gpumem --lines\nimport asyncio\nawait asyncio.sleep(0)\na = make(5)\n7")
    assert result.value == 7
    assert uses(nb)["a = make(5)"].kept == 5 << 20


def test_magics_in_cell_do_not_shift_lines(nb):
    nb.run("%%gpumem --lines\n%pwd\n%time a = make(5)\nb = make(6)")
    assert uses(nb)["b = make(6)"].kept == 6 << 20


def test_snapshot_and_lines_share_one_recording(nb, tmp_path):
    path = tmp_path / "x.pickle"
    result = nb.run(f"%%gpumem --lines --snapshot {path}\na = make(5)")
    assert path.exists()
    assert uses(nb)["a = make(5)"].kept == 5 << 20
    assert f"snapshot {path}" in result.text
    assert "at its peak, by line of code" not in result.text, "the listing contains the peak"


def test_lines_and_limits_below_another_magic(nb):
    nb.run("%%capture\n%%gpumem --lines\na = make(5)")
    assert uses(nb)["a = make(5)"].kept == 5 << 20


def test_time_magic_below_own_magic(nb):
    result = nb.run("%%gpumem --lines\n\n%%time\na = make(5)\nb = make(6)\nmake(7).shape")
    assert result.success
    lines = uses(nb)
    assert lines["a = make(5)"].kept == 5 << 20
    assert lines["b = make(6)"].kept == 6 << 20
    assert lines["make(7).shape"].peak >= 25 << 20
    assert "b = make(7)" not in lines


def test_cell_that_runs_a_cell(nb):
    nb.run("%%gpumem --lines\nget_ipython().run_cell('c = make(8)')")
    assert uses(nb)["c = make(8)"].kept == 8 << 20


def test_combined_with_oom_recording(nb, tmp_path):
    nb.run(f"%config GPUMem.oom_snapshot = {str(tmp_path / 'oom_{n}.pickle')!r}")
    recording = nb.shell.user_ns["torch"]._C._cuda_isHistoryEnabled
    assert nb.run("%%gpumem\nkept = make(2)\ntorch._C._cuda_isHistoryEnabled()").value is True
    nb.run("%%gpumem --lines\na = make(3)")
    assert titles(nb) == ["In [4]", "make, In [1]"]
    assert uses(nb)["a = make(3)"].kept == 3 << 20
    nb.run("more = make(1)")
    assert recording()
    nb.run("%gpumem --lines b = make(4)")
    assert titles(nb) == ["make, In [1]", "In [6]"], "not the cells that allocated before"
    assert recording()


def test_recording_options_apply_to_lines(nb):
    assert nb.run("%%gpumem --lines --max-entries 2\na = make(5); b = make(5)").success
    assert any("dropped" in note for note in nb.last.notes)
    assert nb.last.lines == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-f nope", "'nope' is not defined"),
        ("-f net.nope", "'net.nope' is not defined"),
        ("-f Net", "'Net' is a class: specify a method, such as Net.forward"),
        ("-f len", "'len' is not a function or method written in Python"),
        ("-f torch.sum", "'torch.sum' is not a function or method written in Python"),
        ("--lines --stacks none", "memory by line requires allocation stacks: set stacks to 'python' or 'all'"),
        ("--lines train", "unrecognized arguments: train"),
    ],
)
def test_invalid_options_end_cell_before_it_runs(nb, options, message):
    result = nb.run(f"%%gpumem {options}\nran = True")
    assert isinstance(result.error, UsageError)
    assert message in str(result.error)
    assert "ran" not in nb.shell.user_ns


def test_code_of_named_objects_is_not_run(nb):
    nb.run(
        "class Trap:\n"
        "    def __getattr__(self, name):\n        raise SystemExit(name)\n"
        "    __class__ = property(lambda self: 1/0)\n"
        "trap = Trap()"
    )
    result = nb.run("%%gpumem -f trap.step\nran = True")
    assert isinstance(result.error, UsageError)
    result = nb.run("%%gpumem -f trap\nran = True")
    assert isinstance(result.error, UsageError)


def test_without_gpu(cpu_notebook):
    result = cpu_notebook.run("%%gpumem --lines\nran = True")
    assert isinstance(result.error, UsageError)
    assert "only for GPU memory" in str(result.error)


def test_labels_of_lines_at_peak(gpu_notebook, tmp_path):
    path = tmp_path / "x.pickle"
    make = "def make():\n    return torch.ones(40 << 20, dtype=torch.uint8, device='cuda')\n"
    long_line = f"ones = torch.ones(33 << 20, dtype=torch.uint8, device='cuda')  # {'long ' * 20}"
    gpu_notebook.run(f"%%gpumem --snapshot {path}\n{make}kept = make()\n{long_line}")
    in_function, in_cell, *_ = (line.label for line in lines_at_peak(Snapshot.load(path), 0))
    assert in_function == "In [1]:3 make(): return torch.ones(40 << 20, dtype=torch.uint8, device='cuda')"
    assert in_cell.startswith("In [1]:5: ones = torch.ones(33 << 20")
    assert len(in_cell) == 90
    assert in_cell.endswith("…")
