"""Stacks of generated code with the source code from which torch.fx generated it (``augment_with_fx_traces``)."""

from __future__ import annotations

import pickle
import traceback

import pytest

from ipygpumem.core.errors import SnapshotError
from ipygpumem.snapshot import Snapshot
from snapshot.entries import event, frame

GENERATED = "fx_generated__abc.py"


class Probe:
    def __add__(self, other):
        stack = reversed(traceback.extract_stack()[:-1])
        self.frames = [{"filename": frame.filename, "line": frame.lineno, "name": frame.name} for frame in stack]
        return self


class Model:
    def forward(self, x):
        return x + 1


def test_allocation_of_generated_code_is_attributed_to_source_code():
    torch = pytest.importorskip("torch")
    augment = getattr(torch._utils, "_augment_memory_snapshot_stack_traces", None)
    if augment is None:
        pytest.skip("PyTorch 2.10 added FX traces of snapshots")
    from torch.fx.experimental import _config

    class Module(Model, torch.nn.Module):
        pass

    tracer = torch.fx.Tracer()
    tracer.record_stack_traces = True
    with _config.patch(enrich_profiler_metadata=True):
        graph = torch.fx.GraphModule(torch.nn.Module(), tracer.trace(Module()))
    probe = Probe()
    graph(probe)
    raw = augment({"segments": [], "device_traces": [[event("alloc", 512, 8, 1, probe.frames)]]})
    snapshot = Snapshot.load(pickle.dumps(raw, 4))
    (line,) = snapshot.by_line()
    assert (line.file, line.name) == (__file__, "forward")
    assert line.line == Model.forward.__code__.co_firstlineno + 1
    source, generated = next(iter(snapshot.live().by("stack"))).frames[:2]
    assert (source.file, generated.file[:13]) == (__file__, "fx_generated_")


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ('  File "/a.py", line 3, in forward\n  File "/lib/python3/x.py", line 4, in f', ("/a.py", 3, "forward")),
        ('File "/a.py", line 3, in f\n  File "/a.py", line 5, in <lambda>\n', ("/a.py", 5, "<lambda>")),
        ('File "/lib/python3/x.py", line 4, in f', ("/train.py", 9, "step")),
        ('File "', ("/train.py", 9, "step")),
        (None, ("/train.py", 9, "step")),
    ],
)
def test_innermost_frame_of_user_code(trace, expected):
    stack = [frame(GENERATED, 7, "forward") | {"fx_original_trace": trace}, frame("/train.py", 9, "step")]
    snapshot = Snapshot.load(pickle.dumps({"device_traces": [[event("alloc", 512, 8, 1, stack)]]}, 4))
    (line,) = snapshot.by_line()
    assert (line.file, line.line, line.name) == expected


def test_invalid_traces():
    stack = [frame(GENERATED, 7, "forward") | {"fx_original_trace": 5}]
    with pytest.raises(SnapshotError, match="fx_original_trace is an int, not a string"):
        Snapshot.load({"device_traces": [[event("alloc", 512, 8, 1, stack)]]})


def test_file_that_repeats_a_long_trace():
    trace = 'File "x", line 1, in f\n' * 50_000
    frames = [frame(GENERATED, number, "f") | {"fx_original_trace": trace} for number in range(2000)]
    raw = {"device_traces": [[event("alloc", 512, 8, 1, frames)]]}
    (group,) = Snapshot.load(pickle.dumps(raw, 4)).live().by("stack")
    assert len(group.frames) == 4000
