"""Cells with checkpointing or with exceptions in backward passes, which must end in the same way under every option.

`compare` runs a cell in an IPython shell, first without the extension and then under each option.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import sys
import traceback

SETUP = """
import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, device=device) for _ in range(4)))
inputs = torch.randn(8, 64, device=device)
count = 0

def gradients():
    print([layer.weight.grad.double().sum().item() for layer in model])

class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fail=None):
        ctx.fail = fail
        if fail == "forward":
            temporary = x * 2
            raise ValueError("forward")
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        temporary = (gradient * 2) @ inputs.T
        if ctx.fail == "backward":
            raise KeyError("backward")
        if ctx.fail == "memory":
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        return gradient * 1, None

class Dispatching(torch.Tensor):
    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=data.dtype, device=data.device, requires_grad=data.requires_grad
        )

    def __init__(self, data):
        self.data_of_subclass = data

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        if "mul" in str(function) and torch._C._current_autograd_node() is not None:
            raise RuntimeError("dispatch")
        unwrapped = [a.data_of_subclass if isinstance(a, cls) else a for a in arguments]
        result = function(*unwrapped, **(options or {}))
        return cls(result) if isinstance(result, torch.Tensor) else result

def checkpointed(x, **options):
    for layer in model:
        x = checkpoint(layer, x, **options)
    return x

def fail_on_recomputation(x):
    global count
    count += 1
    if count % 2 == 0:
        raise LookupError("recomputation")
    return model(x)

def fail(*arguments):
    temporary = inputs * 2
    raise ZeroDivisionError("hook")
"""

PROGRAMS = {
    "non-reentrant": "checkpointed(x, use_reentrant=False).sum().backward()\ngradients()",
    "reentrant": "checkpointed(x, use_reentrant=True).sum().backward()\ngradients()",
    "nested": """
def inner(x):
    return checkpointed(x, use_reentrant=False).relu()
checkpoint(inner, x, use_reentrant=False).sum().backward()
gradients()
""",
    "no early stop": """
with set_checkpoint_early_stop(False):
    checkpoint(lambda x: checkpointed(x, use_reentrant=False).relu(), x, use_reentrant=False).sum().backward()
gradients()
""",
    "error in recomputation": "checkpoint(fail_on_recomputation, x, use_reentrant=False).sum().backward()",
    "error in reentrant recomputation": "checkpoint(fail_on_recomputation, x, use_reentrant=True).sum().backward()",
    "error in forward of a function": "Identity.apply(model(x), 'forward').sum().backward()",
    "error in backward of a function": "model(Identity.apply(model(x), 'backward')).sum().backward()",
    "error in backward of a checkpointed function": """
checkpoint(lambda x: Identity.apply(model(x), "backward"), x, use_reentrant=False).sum().backward()
""",
    "error caught in the cell": """
import traceback
try:
    torch.autograd.grad(Identity.apply(model(x), "backward").sum(), x)
except KeyError:
    print(traceback.format_exc())
""",
    "error in backward hook": "y = model(x)\ny.register_hook(fail)\nmodel(y).sum().backward()",
    "error in backward hook of a module": """
handle = model[1].register_full_backward_hook(fail)
try:
    model(x).sum().backward()
finally:
    handle.remove()
""",
    "error in dispatch": "(Dispatching(model(x)) * 2).sum().backward()",
    "out of memory": "model(Identity.apply(model(x), 'memory')).sum().backward()",
}

OPTIONS = {
    "loaded": "# cell",
    "snapshot": "%%gpumem --snapshot {directory}/{number}.pickle",
    "lines": "%%gpumem --lines",
    "modules": "%%gpumem --modules model",
    "outside": "%%gpumem --outside",
    "limit": "%%gpumem --limit 100GiB",
    "timeline": "%%gpumem --timeline {directory}/{number}.html",
    "lines and snapshot": "%%gpumem --lines --snapshot {directory}/{number}.pickle",
    "oom_snapshot": "# cell",
}

_OLD_PYTHON = sys.version_info < (3, 11)
_CELL = re.compile(r"Cell In ?\[\d+\]|In \[\d+\]|<ipython-input-[^>]*>|\S*ipykernel_\d+\S*\.py|Input In")
_OTHER_PROCESS = re.compile(r"Process \d+ has [\d.]+ \w+ memory in use\. ?")
_NUMBER = re.compile(r"0x[0-9a-f]+|[\d.]+ (?:bytes|[KMGTPE]iB)")


def _normalized(text):
    return _NUMBER.sub("<number>", _OTHER_PROCESS.sub("", _CELL.sub("<cell>", text)))


def _frames(error, *, hooks):
    """Return the frames of a traceback from the first frame of a cell.

    If ``hooks`` is true, the frames of ``torch/nn/modules/module.py`` are omitted: PyTorch calls a module
    differently if there are global forward hooks. Before Python 3.11, a function cannot remove its own frame from a
    traceback.
    """
    omitted = ("torch/nn/modules/module.py",) if hooks else ()
    omitted += ("ipygpumem/sources/pytorch.py",) if _OLD_PYTHON else ()
    frames = traceback.extract_tb(error.__traceback__)
    in_cell = [_normalized(frame.filename) == "<cell>" for frame in frames]
    frames = frames[in_cell.index(True) :] if any(in_cell) else frames
    return [
        _normalized(f"{frame.filename}:{frame.lineno} {frame.name}: {frame.line}")
        for frame in frames
        if not frame.filename.endswith(omitted)
    ]


def _result(shell, cell, *, hooks):
    """Return the lines that describe how a cell ended."""
    shell.display_pub.outputs.clear()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        result = shell.run_cell(cell, store_history=True)
    error, text = result.error_in_exec or result.error_before_exec, printed.getvalue()
    if error is None:
        return ["success", *map(_normalized, text.splitlines())]
    lines = []
    shown = text.partition(f"\n{type(error).__name__}")[0].splitlines()
    while error is not None:
        lines += [type(error).__name__, *_normalized(str(error)).splitlines(), *_frames(error, hooks=hooks)]
        error = error.__cause__ or error.__context__
    return lines if hooks or _OLD_PYTHON else [*lines, *map(_normalized, shown)]


def compare(shell, name, device, directory, options=tuple(OPTIONS)):
    """Run a program under each option. Return how it ended without the extension, and the differences by option."""
    shell.user_ns["device"] = device
    result = shell.run_cell(SETUP, store_history=True)
    result.raise_error()
    program = f"model.zero_grad()\nx = inputs.clone().requires_grad_()\n{PROGRAMS[name].strip()}"
    expected = {hooks: _result(shell, f"# cell\n{program}", hooks=hooks) for hooks in (False, True)}
    shell.run_cell("%load_ext ipygpumem").raise_error()
    differences = {}
    for number, option in enumerate(options):
        if option == "oom_snapshot":
            shell.run_cell(f"%config GPUMem.oom_snapshot = '{directory}/oom.pickle'").raise_error()
        hooks = option == "modules"
        cell = f"{OPTIONS[option].format(directory=directory, number=number)}\n{program}"
        lines = _result(shell, cell, hooks=hooks)
        if lines != expected[hooks]:
            differences[option] = "\n".join(difflib.unified_diff(expected[hooks], lines, lineterm=""))
    return expected[False], differences
