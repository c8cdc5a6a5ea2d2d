"""Checkpointing and exceptions in backward passes end in the same way with and without the extension."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fakes.failing_programs import PROGRAMS

CODE = """
import torch
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from fakes.failing_programs import compare
shell = InteractiveShell.instance(colors="NoColor")
shell.display_pub = CapturingDisplayPublisher()
expected, differences = compare(shell, {name!r}, "cuda", {directory!r})
emit(torch=torch.__version__, expected=expected, differences=differences)
"""

ERRORS = {
    "error in recomputation": "LookupError",
    "error in reentrant recomputation": "LookupError",
    "error in forward of a function": "ValueError",
    "error in backward of a function": "KeyError",
    "error in backward of a checkpointed function": "KeyError",
    "error in backward hook": "ZeroDivisionError",
    "error in backward hook of a module": "ZeroDivisionError",
    "error in dispatch": "RuntimeError",
    "out of memory": "OutOfMemoryError",
}


@pytest.fixture(scope="module")
def outcomes(run_python, tmp_path_factory):
    with ThreadPoolExecutor(len(PROGRAMS)) as pool:
        codes = {name: CODE.format(name=name, directory=str(tmp_path_factory.mktemp("files"))) for name in PROGRAMS}
        return {name: pool.submit(run_python, code) for name, code in codes.items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_ends_as_without_the_extension(outcomes, name):
    values = outcomes[name].result()
    assert values["expected"][0] == ERRORS.get(name, "success")
    assert not values["differences"], "\n".join(f"{option}:\n{text}" for option, text in values["differences"].items())


LINES = """
import torch, ipygpumem
from torch.utils.checkpoint import checkpoint
ipygpumem.preload_pytorch()
MIB = 1 << 20

def allocate(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")

class Freeing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        older.clear()
        return gradient * 1

def step():
    global old
    kept = allocate(20)
    del old
    x = torch.ones(16, 16, device="cuda", requires_grad=True)
    y = checkpoint(Freeing.apply, x, use_reentrant=False)
    y.sum().backward()
    del kept

old, older = None, []
step()
with ipygpumem.measure(snapshot={path!r}):  # PyTorch keeps the stacks of these allocations
    old, older = allocate(7), [allocate(9)]
with ipygpumem.measure(lines=step, snapshot={path!r}) as m:
    step()
(device,) = m.report.lines
(listing,) = [listing for listing in device.listings if listing.title.startswith("step")]
emit(freed={{line.text.strip(): line.use.freed for line in listing.lines if line.use}})
"""


def test_freed_memory_by_line(run_python, tmp_path):
    script = tmp_path / "script.py"
    body = LINES.format(path=str(tmp_path / "x.pickle"))
    script.write_text(body)  # the lines of a file have source code
    values = run_python(f"source = open({str(script)!r}).read()\nexec(compile(source, {str(script)!r}, 'exec'))")
    freed = values["freed"]
    assert freed["del old"] == 7 << 20
    assert freed["del kept"] == 20 << 20
    assert freed["kept = allocate(20)"] == 0
    assert freed["y.sum().backward()"] >= 9 << 20
