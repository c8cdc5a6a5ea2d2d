"""Memory usage by module, with real modules and optimizers whose CPU storages are blocks of a fake device."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import time
import weakref

import pytest
import torch
import torch._dynamo  # binds names of torch._C, which must happen before a fake device replaces them
from torch import nn
from torch.nn.modules import module as hooks
from torch.utils.checkpoint import checkpoint

import ipygpumem
from fakes.allocation_mode import AllocationMode
from ipygpumem.core.errors import OptionError
from ipygpumem.sources.storages import StorageInspector

KIB = 1 << 10
needs_hidden_hooks = pytest.mark.skipif(
    not hasattr(hooks, "_has_any_global_hook"),
    reason="compiled code depends on global hooks in old versions of PyTorch, such as 2.4 (no _has_any_global_hook)",
)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x):
        return x * self.scale + self.down(torch.relu(self.up(x)))


@pytest.fixture
def traffic(fake_gpu, monkeypatch):
    torch.cuda.init()
    fake_gpu.free(fake_gpu.alloc(512))
    traffic = AllocationMode(fake_gpu)
    monkeypatch.setattr(StorageInspector, "storage_locations", lambda _, *storage: traffic.storage_locations(*storage))
    with traffic:
        yield traffic
    gc.collect()


def make(width=64):
    return nn.Sequential(nn.Linear(32, width, bias=False), Block(width), nn.Linear(width, 8, bias=False))


def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()


def tree_of(m):
    assert m.report.modules, m.report.notes
    (tree,) = m.report.modules
    return tree


def check_sums(m):
    tree = tree_of(m)
    device = m.report.devices[tree.device]
    high, after = device.high, device.after
    assert sum(part.peak for part in tree.parts) + tree.rounding[0] + tree.pending[0] == high.allocated
    assert sum(part.end for part in tree.parts) + tree.rounding[1] + tree.pending[1] == after.allocated
    assert tree.allocated == (high.allocated, after.allocated)
    assert sum(phase.change for phase in tree.phases) == device.held
    assert max(phase.peak for phase in tree.phases) == high.allocated
    root = tree.rows[0]
    owned = {"parameters", "buffers", "gradients", "optimizer state", "activations", "forward, temporary", "recomputed"}
    assert root.peak == sum(part.peak for part in tree.parts if part.kind in owned)
    for row in tree.rows:
        children = [
            child for child in tree.rows if child.path.rpartition(".")[0] == row.path and child.depth == row.depth + 1
        ]
        if row.peak is not None and all(child.peak is not None for child in children):
            assert row.peak == row.own + sum(child.peak for child in children)
        for name in ("parameters", "gradients", "optimizer"):
            assert getattr(row, name) >= sum(getattr(child, name) for child in children)
    return tree


def check_nothing_is_patched():
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks
    assert not hasattr(torch.autograd.profiler.record_function.__enter__, "__wrapped__")
    assert not hasattr(torch.compile, "__wrapped__")
    assert not any(hasattr(value, "_ipygpumem_graph") for value in globals().values())
    assert not hasattr(torch.autograd._engine_run_backward, "__wrapped__")
    assert not hasattr(getattr(hooks, "_has_any_global_hook", None), "__wrapped__")


class Residual(nn.Module):
    def __init__(self, *, checkpointed):
        super().__init__()
        self.first, self.dropout, self.last = nn.Linear(32, 64), nn.Dropout(0.1), nn.Linear(64, 8)
        self.blocks = nn.ModuleList(Block(64) for _ in range(4))
        self.checkpointed = checkpointed

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + self.dropout(checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x))
        return self.last(x).float()


@pytest.mark.parametrize("autocast", [False, True])
def test_peak_with_checkpointing_of_repeated_modules(traffic, autocast):
    notes, peaks = [], []
    for checkpointed in (False, True):
        model = Residual(checkpointed=checkpointed)
        optimizer, x = torch.optim.Adam(model.parameters(), foreach=False), torch.randn(1024, 32)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            step(model, optimizer, x)
            gc.collect()
            with ipygpumem.measure(modules=model) as m:
                step(model, optimizer, x)
        notes.append(tree_of(m).notes)
        peaks.append(tree_of(m).allocated[0])
    del model, optimizer
    (note,) = notes[0]
    assert "checkpointing (torch.utils.checkpoint) of the 4 modules in blocks would lower the peak by" in note
    # autocast converts gradients before they reach a block, which is not distinguished from its backward pass
    assert float(note.split()[-2]) == pytest.approx(peaks[1] / (1 << 20), rel=0.06 if autocast else 0.01)
    assert notes[1] == ()


def test_training_step(traffic):
    model = make()
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(16, 32)
    with ipygpumem.measure(modules=model) as m:
        for _ in range(3):
            step(model, optimizer, x)
    check_nothing_is_patched()
    tree = check_sums(m)
    assert [row.path for row in tree.rows] == ["", "0", "1", "1.up", "1.down", "2"]
    assert [row.type for row in tree.rows] == ["Sequential", "Linear", "Block", "Linear", "Linear", "Linear"]
    weights = {"0": 32 * 64 * 4, "1": 2 * 64 * 256 * 4, "1.up": 64 * 256 * 4, "1.down": 64 * 256 * 4, "2": 64 * 8 * 4}
    for path, size in weights.items():
        row = tree.row(path)
        assert (row.calls, row.parameters, row.gradients) == (3, size, size)
        assert 2 * size <= row.optimizer <= 2 * size + 64, "two averages, and the count of steps"
    assert tree.row("1").buffers == 64 * 4
    assert tree.rows[0].parameters == sum(weights[path] for path in ("0", "1", "2"))
    # saved for backward: the input of each product; relu saves the input of `down`
    assert tree.row("0").activations == 16 * 64 * 4, "the output is the input of the block"
    assert tree.row("1.up").activations == 0
    assert tree.row("1.up").temporary == 16 * 256 * 4, "the output stays alive until relu has run"
    assert tree.rows[0].temporary >= tree.row("1").temporary >= 16 * 256 * 4, "submodules are included"
    assert [row.depth for row in tree.rows] == [0, 1, 1, 2, 2, 1]
    assert tree.row("1").activations >= 16 * 256 * 4
    assert [(phase.name, phase.count) for phase in tree.phases] == [
        ("forward", 3),
        ("backward", 3),
        ("optimizer", 3),
        ("other", 10),
    ]
    parts = {part.kind: part for part in tree.parts}
    assert parts["gradients"].end == parts["parameters"].end == tree.rows[0].parameters
    assert parts["activations"].end == 0
    assert parts["other threads"].peak == 0


def test_class_that_cannot_be_hashed(traffic):
    class Meta(type):
        def __hash__(cls):
            raise RuntimeError("hash")

    odd = Meta("Odd", (), {})()
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    step(model, optimizer, torch.randn(16, 32))
    with ipygpumem.measure(modules=model) as m:
        model(torch.randn(16, 32))
    (tree,) = m.report.modules
    assert tree.rows[0].optimizer == tree.rows[0].parameters
    assert type(odd).__name__ == "Odd"


def test_phases_add_up_to_run_time(traffic, monkeypatch):
    from ipygpumem.features.modules.storages import ModelStorages

    addresses, find_optimizers = ModelStorages.addresses, ModelStorages.find_optimizers
    now, scans = [0.0], []

    def delayed(function):
        def wrapper(self, **options):
            now[0] += 0.1
            scans.append(function)
            return function(self, **options)

        return wrapper

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(ModelStorages, "addresses", delayed(addresses))
    monkeypatch.setattr(ModelStorages, "find_optimizers", delayed(find_optimizers))
    model = make()
    optimizer = torch.optim.SGD(model.parameters())
    model.register_forward_hook(lambda *_: now.__setitem__(0, now[0] + 2))
    with ipygpumem.measure(modules=model) as m:
        for _ in range(3):
            step(model, optimizer, torch.randn(16, 32))
        now[0] += 5
    assert len(scans) >= 9
    assert m.report.seconds == pytest.approx(3 * 2 + 5)
    assert sum(phase.seconds for phase in tree_of(m).phases) == pytest.approx(3 * 2 + 5)


def test_gradients_freed_before_end(traffic):
    model = make()
    with ipygpumem.measure(modules=model) as m:
        model(torch.randn(16, 32)).square().mean().backward()
        model.zero_grad()
    tree = check_sums(m)
    assert tree.rows[0].gradients == tree.rows[0].parameters
    assert {part.kind: part.end for part in tree.parts}["gradients"] == 0


def test_inference_keeps_only_output(traffic):
    model = make()
    x = torch.randn(16, 32)
    with torch.no_grad(), ipygpumem.measure(modules=model) as m:
        y = model(x)
    tree = check_sums(m)
    assert tree.rows[0].activations == y.untyped_storage().nbytes()
    assert tree.rows[0].gradients == tree.rows[0].optimizer == 0
    assert [phase.name for phase in tree.phases] == ["forward", "other"]


def test_checkpointed_modules_are_recomputed(traffic):
    model = make()
    x = torch.randn(16, 32)

    def forward(x):
        x = model[0](x)
        x = checkpoint(model[1], x, use_reentrant=False)
        return model[2](x)

    with ipygpumem.measure(modules=model) as m:
        forward(x).square().mean().backward()
    tree = check_sums(m)
    row = tree.row("1")
    assert (row.calls, row.note) == (1, "recomputed during backward")
    assert tree.row("1.up").note == "recomputed during backward"
    assert tree.row("0").note == ""
    assert row.activations == 16 * 64 * 4, "the output only; the activations inside are discarded"
    assert row.temporary >= 16 * 256 * 4
    assert [(phase.name, phase.count) for phase in tree.phases if phase.name != "other"] == [
        ("forward", 3),
        ("backward", 1),
    ]
    check_nothing_is_patched()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # raised by dynamo
def test_compiled_modules_are_reported_as_a_whole(traffic, monkeypatch):
    model = make()
    model[1] = torch.compile(model[1], backend="eager")
    model[2].compile(backend="eager")
    original = model[2]._compiled_call_impl
    x = torch.randn(16, 32)
    with AllocationMode.paused():
        model(x)
    with ipygpumem.measure(modules=model) as m:
        model(x).square().mean().backward()
    assert model[2]._compiled_call_impl is original
    tree = check_sums(m)
    compiled = tree.row("1")
    assert (compiled.type, compiled.calls) == ("OptimizedModule", 1)
    assert compiled.note.startswith("compiled")
    assert compiled.activations > 0
    inner = tree.row("1._orig_mod.up")
    assert inner.parameters == inner.gradients == 64 * 256 * 4, "addresses are known in compiled code"
    assert inner.note == "in compiled code"
    assert tree.row("2").calls == 1
    assert tree.row("2").note.startswith("compiled")
    monkeypatch.setattr("ipygpumem.features.modules.collect.cause_recompilation", lambda: True)
    with ipygpumem.measure(modules=model) as m:
        model(x)
    assert "recompiles modules" in tree_of(m).notes[-1]


@needs_hidden_hooks
def test_hooks_cause_no_graph_break_and_no_recompilation():
    model = make()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    x = torch.randn(16, 32)
    compiled(x)
    assert len(graphs) == 1
    from ipygpumem.features.modules.tracker import ModuleTracker

    tracker = ModuleTracker(compiled)
    tracker.start()
    compiled(x)
    tracker.stop()
    compiled(x)
    assert len(graphs) == 1
    assert [call.graph is None for call in tracker.calls] == [True, False, False, True]


def test_failing_step_leaves_no_hook(traffic):
    model = make()

    class FailingModule(nn.Module):
        def forward(self, x):
            raise ZeroDivisionError

    model.append(FailingModule())
    with pytest.raises(ZeroDivisionError), ipygpumem.measure(modules=model) as m:
        model(torch.randn(16, 32))
    check_nothing_is_patched()
    check_sums(m)
    assert m.report.success is False
    assert tree_of(m).row("3").calls == 1


def test_interrupt_leaves_no_hook(traffic):
    class InterruptedModule(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    model = nn.Sequential(nn.Linear(32, 8), InterruptedModule())
    with pytest.raises(KeyboardInterrupt), ipygpumem.measure(modules=model) as m:
        try:
            model(torch.randn(16, 32))
        except KeyboardInterrupt:
            model[0](torch.randn(16, 32))
            raise
    check_nothing_is_patched()
    check_sums(m)


def test_attribution_is_correct_after_caught_error(traffic):
    model = make()
    x = torch.randn(16, 32)
    with ipygpumem.measure(modules=model) as m:
        with pytest.raises(RuntimeError):
            model(torch.randn(16, 31))
        y = model(x)
        z = torch.ones(16 * KIB)
    tree = check_sums(m)
    parts = {part.kind: part for part in tree.parts}
    assert parts["outside the model"].end >= z.untyped_storage().nbytes()
    assert tree.row("0").calls == 2
    del y


def test_copies_and_files_of_model_contain_no_hooks(traffic):
    model = make()
    with ipygpumem.measure(modules=model) as m:
        clone = copy.deepcopy(model)
        restored = pickle.loads(pickle.dumps(model[0]))
        clone(torch.randn(16, 32))
    check_sums(m)
    assert not restored._forward_hooks
    assert tree_of(m).rows[0].calls == 0, "a copy is another model"
    assert "no module of the model was called" in tree_of(m).notes[0]


def test_tied_weights_are_counted_once(traffic):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(32, 64, bias=False)
            self.head = nn.Linear(32, 64, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.embed(x) + self.head(x)

    model = Tied()
    with ipygpumem.measure(modules=model) as m:
        model(torch.randn(16, 32)).sum().backward()
    tree = check_sums(m)
    assert (tree.row("embed").parameters, tree.row("head").parameters) == (32 * 64 * 4, 0)
    assert tree.rows[0].parameters == tree.rows[0].gradients == 32 * 64 * 4


def test_storage_shared_by_modules_belongs_to_common_parent(traffic):
    model = nn.Sequential(Block(8), nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)))
    flat = torch.zeros(2, 8, 8)
    for number in range(2):
        model[1][number].weight = nn.Parameter(flat[number])
    with ipygpumem.measure(modules=model) as m:
        model(torch.randn(4, 8))
    tree = check_sums(m)
    assert tree.row("1").parameters == 2 * 8 * 8 * 4
    assert tree.row("1.0").parameters == tree.row("1.1").parameters == 0


def test_allocations_of_other_threads_are_not_attributed_to_model(traffic, fake_gpu):
    blocks = []

    class Slow(nn.Module):
        def forward(self, x):
            thread = threading.Thread(target=lambda: blocks.append(fake_gpu.alloc(64 * KIB)))
            thread.start()
            thread.join()
            return x + 1

    model = nn.Sequential(nn.Linear(32, 32), Slow())
    with ipygpumem.measure(modules=model) as m:
        model(torch.randn(16, 32))
    tree = check_sums(m)
    assert {part.kind: part.end for part in tree.parts}["other threads"] == 64 * KIB
    assert tree.row("1").activations == 16 * 32 * 4, "only the output of this module"


def test_optimizer_that_did_not_step_is_listed(traffic):
    model = make()
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(16, 32)
    step(model, optimizer, x)
    with ipygpumem.measure(modules=model) as m:
        model(x)
    assert check_sums(m).rows[0].optimizer >= 2 * tree_of(m).rows[0].parameters


def test_closure_has_its_phases(traffic):
    model = make()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    x = torch.randn(16, 32)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with ipygpumem.measure(modules=model) as m:
        optimizer.step(closure)
    tree = check_sums(m)
    assert {phase.name for phase in tree.phases} == {"forward", "backward", "optimizer", "other"}


def test_untouched_counters_give_bounds(traffic):
    model = make()
    keep = torch.ones(1 << 20)
    del keep
    with ipygpumem.measure(modules=model, peaks="untouched") as m:
        model(torch.randn(16, 32))
    tree = tree_of(m)
    assert all(phase.peak is None for phase in tree.phases)
    assert tree.allocated[0] is None
    from ipygpumem.core.tables import text_tables
    from ipygpumem.features.modules.table import module_tables

    assert "unknown" in text_tables(module_tables(m.report.modules))


def test_lines_and_modules_combined(traffic):
    model = make()
    with ipygpumem.measure(modules=model, lines=True) as m:
        loss = model(torch.randn(16, 32)).square().mean()
        loss.backward()
    check_sums(m)
    (device,) = m.report.lines
    uses = {line.text.strip(): line.use for line in device.listings[0].lines}
    assert uses["loss.backward()"].allocations > 0
    check_nothing_is_patched()


def test_ring_buffer_overflow(traffic):
    model = make()
    with ipygpumem.measure(modules=model, max_entries=5) as m:
        model(torch.randn(16, 32))
    assert m.report.modules == ()
    assert m.report.notes[0].startswith("this report has no modules: the ring buffer dropped ")


@pytest.mark.parametrize("value", [3, "model", torch.ones(1), nn.Linear, [nn.Linear(1, 1)]])
def test_object_that_is_not_a_module(fake_gpu, value):
    with pytest.raises(OptionError, match=r"modules must be a torch\.nn\.Module, but got"):
        ipygpumem.measure(modules=value)


class Hostile(nn.Module):
    def __getattr__(self, name):
        raise SystemExit(name)

    def __len__(self):
        raise SystemExit

    def forward(self, x):
        return x


def test_unusual_modules_and_tensors(traffic):
    model = nn.Sequential(Hostile(), nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))
    model[1].register_buffer("sparse", torch.eye(3).to_sparse())
    model[1].register_buffer("nothing", None)
    model.append(model)  # a module that contains itself
    with ipygpumem.measure(modules=model) as m:
        model[1](model[0](torch.randn(2, 4)))
    check_sums(m)
    assert [row.path for row in tree_of(m).rows] == ["", "0", "1", "2"]


def test_tensors_and_modules_replaced_by_step_are_freed(traffic):
    class ReplacingModule(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(50_000))
            self.head = nn.Linear(32, 1000, bias=False)

        def forward(self, x):
            self.mean = self.mean + 1
            return self.head(x)

    def run(model):
        for _ in range(3):
            model(torch.randn(16, 32)).sum().backward()
            model.head = None
            model.head = nn.Linear(32, 1000, bias=False)

    with ipygpumem.measure() as bare:
        run(ReplacingModule())
    model = ReplacingModule()
    with ipygpumem.measure(modules=model) as m:
        run(model)
    tree = check_sums(m)
    device, bare_device = m.report.devices["cuda:0"], bare.report.devices["cuda:0"]
    model_size = 50_000 * 4 + 32 * 1000 * 4  # the first measurement includes the model itself
    assert abs(device.high.allocated - device.before.allocated - (bare_device.peak - model_size)) < 4 * KIB
    assert tree.row("").buffers == 2 * 50_000 * 4, "the old and the new module exist at the same time"
    assert tree.row("head").parameters == 32 * 1000 * 4, "only one module exists at a time"
    assert tree.row("head").calls == 3
    parts = {part.kind: part for part in tree.parts}
    assert parts["parameters"].end == 32 * 1000 * 4


def test_replacement_by_module_of_another_class_is_noted(traffic):
    model = nn.Sequential(nn.Linear(32, 8))
    with ipygpumem.measure(modules=model) as m:
        model[0] = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
        model(torch.randn(16, 32))
    tree = check_sums(m)
    assert [(row.path, row.type) for row in tree.rows] == [("", "Sequential"), ("0", "Linear, then Sequential")]
    assert tree.row("0").parameters == (32 * 64 + 64 + 32 * 8 + 8) * 4, (
        "both modules, because the old one is freed later"
    )
    assert tree.row("0").calls == 1


def test_model_dropped_by_step_is_freed(traffic):
    model = make(256)
    alive = weakref.ref(model)
    with ipygpumem.measure(modules=model) as m:
        model(torch.randn(16, 32))
        del model
        gc.collect()
        assert alive() is None
    check_sums(m)


@needs_hidden_hooks
@pytest.mark.parametrize("compiled_part", ["model", "part", "function"])
def test_code_compiled_during_measurement_is_not_recompiled(compiled_part):
    from ipygpumem.features.modules.tracker import ModuleTracker

    torch._dynamo.reset()
    model, graphs = make(), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    call = model
    if compiled_part == "model":
        call = model = torch.compile(model, backend=backend)
    elif compiled_part == "part":
        model[0] = torch.compile(model[0], backend=backend)
    else:

        def call(inputs):
            return model(inputs) * 2

        call = torch.compile(call, backend=backend)
    tracker, x = ModuleTracker(model), torch.randn(16, 32)
    tracker.start()
    call(x)
    call(x)
    during = len(graphs)
    tracker.stop()
    call(x)
    assert during == len(graphs) == 1
    calls = [call for call in tracker.calls if call.graph is None]
    assert len(calls) == (0 if compiled_part == "function" else 4 if compiled_part == "model" else 2 * 2 * 6)
    assert len(tracker.calls) == len(calls) + 4, "each call to the graph is recorded"
    check_nothing_is_patched()
    callbacks = torch._dynamo.callback.callback_handler
    assert not callbacks.start_callbacks
    assert not callbacks.end_callbacks


def test_step_that_raises_ends_its_phase(traffic):
    model = make()
    optimizer = torch.optim.SGD(model.parameters())
    x = torch.randn(16, 32)

    class FailingOptimizer(torch.optim.SGD):
        def step(self, closure=None):
            raise ZeroDivisionError

    failing = FailingOptimizer(model.parameters())
    with ipygpumem.measure(modules=model) as m:
        model(x).sum().backward()
        with pytest.raises(ZeroDivisionError):
            failing.step()
        step(model, optimizer, x)
        with pytest.raises(ZeroDivisionError):
            failing.step()
        tensor = torch.zeros(100_000)
    tree = check_sums(m)
    phases = {phase.name: phase for phase in tree.phases}
    assert phases["forward"].count == 2
    assert phases["backward"].count == 2
    assert phases["optimizer"].count == 3
    assert phases["forward"].change > 0
    assert phases["optimizer"].change == 0, "the failed steps have ended"
    del tensor


@pytest.fixture
def process_group():
    dist = torch.distributed
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this build of PyTorch has no Gloo backend")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_distributed_data_parallel(process_group, traffic):
    model = nn.parallel.DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters())
    with ipygpumem.measure(modules=model) as m:
        for _ in range(3):
            step(model, optimizer, torch.randn(16, 32))
    check_nothing_is_patched()
    tree = check_sums(m)
    inner = tree.row("module")
    assert (inner.calls, inner.parameters) == (3, tree.row("").parameters)
    assert inner.gradients == inner.parameters
    assert tree.row("").activations == inner.activations, "gradient buckets are not activations"
    parts = {part.kind: part for part in tree.parts}
    assert parts["activations"].end == 0
    assert parts["outside the model"].end >= inner.parameters
    assert "the gradient buckets are counted as memory outside the model" in tree.row("").note


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("original", [False, True])
def test_fully_sharded_data_parallel(process_group, traffic, original):
    from torch.distributed.fsdp import FullyShardedDataParallel

    unsharded = make()
    size = sum(parameter.numel() * 4 for parameter in unsharded.parameters())
    model = FullyShardedDataParallel(unsharded, device_id=torch.device("cpu"), use_orig_params=original)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    with ipygpumem.measure(modules=model) as m:
        for _ in range(2):
            step(model, optimizer, torch.randn(16, 32))
    check_nothing_is_patched()
    tree = check_sums(m)
    root = tree.row("")
    assert root.type == "FullyShardedDataParallel"
    assert size <= root.parameters <= size + 64
    assert size <= root.gradients <= size + 64
    assert size <= root.optimizer <= size + 64
    assert tree.row("_fsdp_wrapped_module.1.up").calls == 2
    assert "stored together" in root.note
