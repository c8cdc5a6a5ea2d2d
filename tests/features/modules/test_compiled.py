"""Memory usage by module and line of compiled code. Dynamo is real; only the GPU is fake."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch._dynamo.compiled_autograd
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters

import ipygpumem
from fakes.allocation_mode import AllocationMode
from features.modules.test_collect import KIB, check_nothing_is_patched, check_sums, needs_hidden_hooks, traffic  # noqa: F401
from ipygpumem.features import recording_analysis
from ipygpumem.features.modules.tracker import ModuleTracker
from ipygpumem.measurement.compiled_graphs import CompiledGraph, GraphNode
from ipygpumem.snapshot.model.stacks import Frame

pytestmark = [
    needs_hidden_hooks,
    pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore::DeprecationWarning"),
]


PACKAGE = Path(ipygpumem.__file__).parent


class Block(nn.Module):
    def __init__(self, width, *, graph_break):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.graph_break = graph_break

    def forward(self, x):
        y = torch.relu(self.up(x))
        if self.graph_break:
            torch._dynamo.graph_break()
        return x + self.down(y)


class Net(nn.Module):
    def __init__(self, *, graph_break=False):
        super().__init__()
        self.inp = nn.Linear(32, 64)
        self.blocks = nn.ModuleList([Block(64, graph_break=graph_break), Block(64, graph_break=False)])

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return x.square()


def stepper(model, call=None, *, optimizer=None, step=None, sizes=(16,), backward=contextlib.nullcontext):
    call, sizes = model if call is None else call, itertools.cycle(sizes)
    optimizer = optimizer or torch.optim.SGD(model.parameters())

    def train():
        optimizer.zero_grad()
        x = torch.ones(next(sizes), 32)
        with AllocationMode.paused():  # Dynamo runs nothing in a dispatch mode; the backend enables the mode again
            y = call(x)
        loss = y.mean()
        with backward():
            loss.backward()
        (step or optimizer.step)()

    return model, train


def whole(compile_code):
    model = Net()
    return stepper(model, compile_code(model))


def container(compile_code):
    model = nn.Sequential(nn.Linear(32, 8), nn.ReLU())
    return stepper(model, compile_code(model))


def in_place(compile_code):
    model = Net()
    model.compile(backend=compile_code.keywords["backend"])
    return stepper(model)


def graph_break(compile_code):
    model = Net(graph_break=True)
    return stepper(model, compile_code(model))


def dynamic_shapes(compile_code):
    model = Net()
    return stepper(model, compile_code(model, dynamic=True), sizes=(16, 17, 18))


def submodules(compile_code):
    model = Net()
    model.blocks[0].compile(backend=compile_code.keywords["backend"])
    model.blocks[1] = compile_code(model.blocks[1])
    return stepper(model)


def nested(compile_code):
    model = submodules(compile_code)[0]
    return stepper(model, compile_code(model))


def function(compile_code):
    model = Net()
    return stepper(model, compile_code(lambda x: model(x) * 2))


def compiled_optimizer(compile_code):
    model = nn.Linear(32, 8)
    optimizer = torch.optim.SGD(model.parameters())
    return stepper(model, compile_code(model), optimizer=optimizer, step=compile_code(optimizer.step))


def compiled_autograd(compile_code):
    return stepper(nn.Linear(32, 8, bias=False), backward=lambda: torch._dynamo.compiled_autograd._enable(compile_code))


@pytest.fixture
def compile_code():
    """Return `torch.compile` with the backend "eager", and pause the garbage collector.

    Dynamo counts the frames of functions in `gc.callbacks`, such as Hypothesis's.
    """
    torch._dynamo.reset()
    gc.disable()
    yield functools.partial(torch.compile, backend="eager")
    gc.enable()
    torch._dynamo.reset()


def counts():
    return [counters["frames"]["total"], counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())]


@pytest.mark.parametrize(
    "scenario",
    [whole, container, in_place, graph_break, dynamic_shapes, nested, function, compiled_optimizer, compiled_autograd],
)
def test_measurement_compiles_nothing(compile_code, scenario):
    counters.clear()
    model, train = scenario(compile_code)
    train()
    train()
    compiled = counts()
    assert compiled[1] > 0
    tracker = ModuleTracker(model)
    tracker.start()
    train()
    tracker.stop()
    assert counts() == compiled
    train()
    assert counts() == compiled
    check_nothing_is_patched()
    phases = [call.phases[-1] for call in tracker.calls if call.enter] + [name for name, _, _ in tracker.spans]
    assert set(phases) == {"forward", "backward", "optimizer"}


def test_training_step_compiled_during_measurement(compile_code):
    """AOTAutograd runs a backward pass to trace it, and compiles the backward graph during the backward pass."""
    runs = []
    for tracked in (False, True):
        torch._dynamo.reset()
        counters.clear()
        model, x = nn.Linear(32, 8), torch.ones(16, 32)
        tracker = ModuleTracker(model)

        @functools.partial(compile_code, backend="aot_eager")
        def forward_and_backward(model=model, x=x):
            model(x).mean().backward()

        if tracked:
            tracker.start()
        forward_and_backward()
        tracker.stop()
        forward_and_backward()
        runs.append(counts())
    assert runs[0] == runs[1]
    assert [name for name, _, _ in tracker.spans] == ["backward"]
    assert [call.phases for call in tracker.calls] == [("forward",)] * 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames cannot be removed from tracebacks")
def test_error_in_graph_has_the_same_traceback(compile_code):
    def backend(graph, inputs):
        return lambda *inputs: 1 / 0

    model, train = in_place(functools.partial(compile_code, backend=backend))
    tracker = ModuleTracker(model)
    for _ in range(2):
        tracker.start()
        with pytest.raises(ZeroDivisionError) as error:
            train()
        tracker.stop()
        assert not [entry.path for entry in error.traceback if PACKAGE in entry.path.parents]
        assert "forward" not in tracker.phases.running_phases
    assert [call.enter for call in tracker.calls].count(False) == len(tracker.calls) / 2


@pytest.fixture
def compile_for_gpu(compile_code, traffic):  # noqa: F811
    def eager(graph, inputs):
        def run(*inputs):
            with traffic:
                return graph.forward(*inputs)

        run.named_parameters = graph.named_parameters  # as AOTAutograd does
        return run

    def with_aot_autograd(graph, inputs):
        return aot_autograd(fw_compiler=lambda graph, inputs: make_boxed_func(eager(graph, inputs)))(graph, inputs)

    return lambda aot=False: functools.partial(torch.compile, backend=with_aot_autograd if aot else eager)


def measured(train, **options):
    train()
    train()
    with ipygpumem.measure(**options) as m:
        train()
    return m


@pytest.mark.parametrize(
    ("scenario", "own"), [(whole, 4 * KIB), (in_place, 4 * KIB), (graph_break, 0), (submodules, 0), (function, 0)]
)
def test_rows_of_compiled_code_are_those_of_the_modules(compile_for_gpu, scenario, own):
    model, train = scenario(compile_for_gpu())
    tree = check_sums(measured(train, modules=model))
    rows = {row.path.replace("_orig_mod.", ""): row for row in tree.rows if not row.path.endswith("_orig_mod")}
    assert rows[""].activations == sum(rows[path].activations for path in ("inp", "blocks")) + own
    assert rows["blocks"].activations == 2 * (16 * 256 + 16 * 64) * 4, "the outputs of relu and of each block"
    for block in ("blocks.0", "blocks.1"):
        values = [(rows[block + path].activations, rows[block + path].temporary) for path in ("", ".up", ".down")]
        assert values == [(20 * KIB, 16 * KIB), (0, 16 * KIB), (0, 4 * KIB)], (
            "the values are those without torch.compile"
        )
    assert [(phase.name, phase.count) for phase in tree.phases[:3]] == [
        ("forward", 1),
        ("backward", 1),
        ("optimizer", 1),
    ]
    assert not any("compiled graph" in path for path in rows)
    assert all("unknown" not in row.note for row in tree.rows)


def test_graph_without_provenance_has_a_row(compile_for_gpu):
    model, train = graph_break(compile_for_gpu(aot=True))
    tree = check_sums(measured(train, modules=model))
    graphs = [row for row in tree.rows if "compiled graph" in row.path]
    assert [row.path.rpartition(".")[0] for row in graphs] == ["blocks.0", "blocks.0", "blocks.1"], (
        "the graph break divides blocks.0 into two graphs"
    )
    assert [row.activations for row in graphs] == [16 * KIB, 4 * KIB, 20 * KIB]
    assert {(row.type, row.calls) for row in graphs} == {("operations of unknown modules", 1)}
    assert tree.rows[0].note == "compiled: the memory usage of the submodules is unknown"
    assert tree.row("blocks.1.up").activations is None
    assert tree.rows[0].activations == 40 * KIB


def test_lines_of_compiled_code(compile_for_gpu):
    _, train = whole(compile_for_gpu())
    (device,) = measured(train, lines=Block.forward).report.lines
    uses = {line.text.strip(): line.use for listing in device.listings for line in listing.lines}
    use = uses["y = torch.relu(self.up(x))"]
    assert (use.allocated, use.allocations) == (4 * 16 * KIB, 4)
    assert uses["return x + self.down(y)"].allocated == 4 * 4 * KIB
    assert uses["def forward(self, x):"] is None


GENERATED = """\
def call(self, args):
    buf0 = empty_strided_cuda((64, 16), (16, 1), torch.float32)
    buf1 = empty_strided_cuda((64, 64), (64, 1), torch.float32)
    buf9 = buf1; del buf1  # reuse
    # Topologically Sorted Source Nodes: [x, y], Original ATen: [aten.addmm]
    raw_stream0 = get_raw_stream(0)
    triton_poi_fused_0.run(arg0_1, buf0, buf9, 4096, stream=raw_stream0)
    del arg0_1
    # Topologically Sorted Source Nodes: [y, z], Original ATen: [aten._scaled_dot_product_flash_attention]
    buf2 = torch.ops.aten._scaled_dot_product_flash_attention.default(buf0, buf9)
    buf3 = empty_strided_cuda((1, 4), (4, 1), torch.float32)
    cpp_fused_sum_0(buf2, buf3)
"""


def test_operations_in_generated_code(tmp_path):
    file = tmp_path / f"c{'a' * 51}.py"
    file.write_text(GENERATED)
    nodes = {name: GraphNode((f"L['self'].{name}",), "") for name in "xyz"}
    graph = CompiledGraph("0/0", nodes)

    def names(line, **changes):
        operations = recording_analysis._operations(replace(graph, **changes), Frame(str(file), line, "call"))
        return [node.modules[0][-1] for node in operations]

    assert [names(line) for line in (2, 3, 10)] == [["x", "y"], ["x", "y"], ["z"]]
    assert names(11) == names(12) == [], "no comment above the kernel"
    assert names(2, nodes={"x": nodes["x"]}) == ["x"], "Inductor inserted the other operation"
    assert names(99) == []
