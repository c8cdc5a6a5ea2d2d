"""Memory by module on a real GPU: all sums agree with the allocator's counters."""

import pytest

MIB = 1 << 20


def check_sums(report):
    (tree,) = report.modules
    device = report.devices[tree.device]
    high, after = device.high, device.after
    assert sum(part.peak for part in tree.parts) == high.requested
    assert sum(part.end for part in tree.parts) == after.requested
    assert sum(part.peak for part in tree.parts) + tree.rounding[0] + tree.pending[0] == high.allocated
    assert sum(part.end for part in tree.parts) + tree.rounding[1] + tree.pending[1] == after.allocated
    assert sum(phase.change for phase in tree.phases) == device.held
    assert max(phase.peak for phase in tree.phases) == high.allocated
    owned = {"parameters", "buffers", "gradients", "optimizer state", "activations", "forward, temporary", "recomputed"}
    assert tree.rows[0].peak == sum(part.peak for part in tree.parts if part.kind in owned)
    for row in tree.rows:
        children = [
            child for child in tree.rows if child.path.rpartition(".")[0] == row.path and child.depth == row.depth + 1
        ]
        if row.peak is not None and all(child.peak is not None for child in children):
            assert row.peak == row.own + sum(child.peak for child in children)
    return tree


@pytest.fixture
def gpt(torch):
    nn = torch.nn

    class Attention(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(b, t, c))

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.attention = Attention(width, 8)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            x = x + self.attention(self.norm(x))
            return x + self.mlp(x)

    class GPT(nn.Module):
        def __init__(self, width=512, layers=4, words=5000):
            super().__init__()
            self.embed = nn.Embedding(words, width)
            self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
            self.head = nn.Linear(width, words)
            self.checkpoint = None

        def forward(self, x):
            x = self.embed(x)
            for block in self.blocks:
                x = self.checkpoint(block, x) if self.checkpoint else block(x)
            return self.head(x)

    return GPT().cuda()


def steps(torch, model, optimizer, count=2):
    x = torch.randint(0, 5000, (8, 256), device="cuda")
    for _ in range(count):
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def size_of(tensors):
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@pytest.mark.parametrize("autocast", [False, True])
def test_training_step(torch, gpt, autocast):
    import ipygpumem

    optimizer = torch.optim.AdamW(gpt.parameters())
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
        steps(torch, gpt, optimizer, 1)
        with ipygpumem.measure(modules=gpt) as m:
            steps(torch, gpt, optimizer)
    tree = check_sums(m.report)
    root = tree.rows[0]
    assert root.parameters == size_of(gpt.parameters())
    assert root.gradients == size_of(parameter.grad for parameter in gpt.parameters())
    states = [tensor for state in optimizer.state.values() for tensor in state.values() if tensor.is_cuda]
    assert root.optimizer == size_of(states)
    assert tree.row("blocks.1").calls == 2
    assert tree.row("blocks.1.mlp").activations > tree.row("blocks.1.norm").activations
    assert [phase.name for phase in tree.phases] == ["forward", "backward", "optimizer", "other"]
    parts = {part.kind: part for part in tree.parts}
    assert parts["other threads"].peak == 0
    assert parts["activations"].peak + parts["gradients"].peak > 0
    inner = [tree.row(f"blocks.{number}").activations for number in (1, 2)]
    assert abs(inner[0] - inner[1]) <= MIB, "identical blocks keep the same amount of activations"
    if not autocast:
        from ipygpumem.core.tables import text_tables
        from ipygpumem.features.modules.table import module_tables

        print(text_tables(module_tables(m.report.modules)))


def test_checkpointing(torch, gpt):
    from torch.utils.checkpoint import checkpoint

    import ipygpumem

    optimizer = torch.optim.AdamW(gpt.parameters())
    steps(torch, gpt, optimizer, 1)
    with ipygpumem.measure(modules=gpt) as reference:
        steps(torch, gpt, optimizer, 1)
    gpt.checkpoint = lambda block, x: checkpoint(block, x, use_reentrant=False)
    with ipygpumem.measure(modules=gpt) as m:
        steps(torch, gpt, optimizer, 1)
    tree = check_sums(m.report)
    row = tree.row("blocks.2")
    assert row.note.startswith("recomputed during backward")
    assert row.activations < check_sums(reference.report).row("blocks.2").activations / 4
    parts = {part.kind: part for part in tree.parts}
    assert parts["other threads"].peak == 0


def test_compiled_model_is_reported_as_a_whole(torch, gpt):
    import ipygpumem

    compiled = torch.compile(gpt, backend="aot_eager")
    optimizer = torch.optim.SGD(gpt.parameters())
    steps(torch, compiled, optimizer, 1)
    with ipygpumem.measure(modules=compiled) as m:
        steps(torch, compiled, optimizer, 1)
    tree = check_sums(m.report)
    assert tree.rows[0].note == "compiled: the memory usage of the submodules is unknown"
    assert tree.rows[0].activations > 10 * MIB
    inner = tree.row("_orig_mod.blocks.1")
    assert inner.parameters > 0
    assert inner.activations is None


def test_overhead(torch, gpt):
    import time

    import ipygpumem

    optimizer = torch.optim.AdamW(gpt.parameters())
    steps(torch, gpt, optimizer, 3)

    def timed(**options):
        with ipygpumem.measure(**options):
            torch.cuda.synchronize()
            start = time.perf_counter()
            steps(torch, gpt, optimizer, 5)
            torch.cuda.synchronize()
            return (time.perf_counter() - start) / 5 * 1000

    reference, lines, modules = timed(), timed(lines=steps), timed(modules=gpt)
    print(f"MODULES a step: plain {reference:.1f} ms, --lines {lines:.1f} ms, --modules {modules:.1f} ms")


def test_cuda_graphs_and_side_streams(torch):
    import ipygpumem

    model = torch.nn.Linear(1024, 1024).cuda()
    x = torch.randn(1024, 1024, device="cuda")
    side = torch.cuda.Stream()
    with ipygpumem.measure(modules=model) as m:
        with torch.cuda.stream(side):
            y = model(x)
            y.record_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(side)
        z = y * 2
        y.record_stream(torch.cuda.current_stream())
        del y
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            w = model(x)
    tree = check_sums(m.report)
    assert tree.rows[0].calls == 2
    del z, w, graph


def test_fully_sharded_modules(run_python):
    values = run_python("""
        import sys
        sys.path.insert(0, "tests/gpu")
        import torch, torch.distributed as dist
        import ipygpumem
        from test_modules import check_sums
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:
            emit(skip="this version of PyTorch has no fully_shard")
            raise SystemExit
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        ipygpumem.preload_pytorch()
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(3))).cuda()
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(64, 1024, device="cuda")
        for measured in (False, True):
            with ipygpumem.measure(modules=model if measured else None) as m:
                model(x).square().mean().backward()
                optimizer.step()
        tree = check_sums(m.report)
        emit(
            types=[row.type for row in tree.rows], parameters=[row.parameters for row in tree.rows],
            gradients=[row.gradients for row in tree.rows], optimizer=tree.rows[0].optimizer,
            notes=list(m.report.notes),
        )
        dist.destroy_process_group()
    """)
    if "skip" in values:
        pytest.skip(values["skip"])
    size = 1024 * 1024 * 4
    assert values["types"] == ["FSDPSequential", "FSDPLinear", "FSDPLinear", "FSDPLinear"]
    assert values["parameters"] == [3 * size, size, size, size]
    assert values["gradients"] == [3 * size, size, size, size]
    assert values["optimizer"] == 6 * size


def test_notebook(torch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = (
        "%load_ext ipygpumem\nimport torch",
        (
            "def step(model, x):\n    y = model(x)\n    y.square().mean().backward()\n"
            "model = torch.nn.Linear(2048, 2048, bias=False).cuda()\nx = torch.randn(512, 2048, device='cuda')"
        ),
        "%%gpumem --modules model --lines\nfor i in range(3):\n    model.zero_grad()\n    step(model, x)",
        "import ipygpumem\n[tree] = ipygpumem.last.modules\ntree.row('').gradients",
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=240).execute()
    (bundle,) = [out["data"] for out in notebook.cells[2].outputs if out.output_type == "display_data"]
    text = bundle["text/plain"]
    print(text)
    assert "In [3]" in text
    assert "step, In [2]" in text
    backward = next(line for line in text.splitlines() if "backward()" in line)
    assert "MiB ×" in backward  # noqa: RUF001 (multiplication sign)
    assert "model: Linear" in text
    (value,) = [out["data"]["text/plain"] for out in notebook.cells[3].outputs if out.output_type == "execute_result"]
    assert value == str(2048 * 2048 * 4)


def test_tracking_keeps_nothing_alive(torch):
    class ReplacingModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(16 << 20, device="cuda"))
            self.head = torch.nn.Linear(1024, 4096, device="cuda")

        def forward(self, x):
            self.mean = self.mean + 1
            return self.head(x)

    def work(model):
        for _ in range(3):
            model(torch.ones(16, 1024, device="cuda")).sum().backward()
            model.head = None
            model.head = torch.nn.Linear(1024, 4096, device="cuda")

    import ipygpumem

    peaks = []
    for tracked in (False, True):
        model = ReplacingModel()
        with ipygpumem.measure(modules=model if tracked else None) as m:
            work(model)
        peaks.append(m.report.devices["cuda:0"].peak)
        del model
    assert abs(peaks[0] - peaks[1]) < 1 << 20
    check_sums(m.report)
    (tree,) = m.report.modules
    assert tree.row("head").calls == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from PyTorch's modules when inductor is imported
def test_tracking_does_not_cause_recompilation(torch):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
    from torch._dynamo.testing import CompileCounter

    import ipygpumem

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    x = torch.ones(4, 64, device="cuda")
    with ipygpumem.measure(modules=compiled):
        compiled(x)
        compiled(x)
    compiled(x)
    assert counter.frame_count == 1
