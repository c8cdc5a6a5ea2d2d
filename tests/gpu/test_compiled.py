"""Memory by module and line of compiled models on a real GPU. A measurement compiles nothing again."""

import statistics
import time

import pytest

from gpu.test_modules import check_sums

MIB = 1 << 20

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture
def make(torch):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, width, graph_break):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)
            self.graph_break = graph_break

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 8, -1).permute(2, 0, 3, 1, 4)
            x = x + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c)
            if self.graph_break:
                torch._dynamo.graph_break()
            y = nn.functional.gelu(self.up(x))
            return x + self.down(y)

    class Net(nn.Module):
        def __init__(self, width, layers, graph_break):
            super().__init__()
            self.blocks = nn.ModuleList(Block(width, graph_break) for _ in range(layers))
            self.head = nn.Linear(width, 10)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    def make(width=512, layers=3, *, graph_break=False):
        return Net(width, layers, graph_break).cuda()

    torch._dynamo.reset()
    yield make
    torch._dynamo.reset()


def stepper(torch, model, call, optimizer_step=None, lengths=(256,)):
    optimizer = torch.optim.AdamW(model.parameters(), capturable=optimizer_step is not None)
    optimizer_step = torch.compile(optimizer.step) if optimizer_step else optimizer.step
    width, number = model.head.in_features, iter(range(1000))

    def step():
        x = torch.ones(16, lengths[next(number) % len(lengths)], width, device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = call(x).float().square().mean()
        loss.backward()
        optimizer_step()

    return step


def compilations():
    from torch._dynamo.utils import counters

    return counters["frames"]["total"], counters["stats"]["unique_graphs"], counters["aot_autograd"]["total"]


def measured(step, **options):
    """Run steps until all code is compiled, and measure one step, which must compile nothing."""
    import ipygpumem

    for _ in range(6):
        step()
    before = compilations()
    with ipygpumem.measure(**options) as m:
        step()
    step()
    print("COMPILED notes:", m.report.notes)
    assert compilations() == before
    return m.report


def show(report):
    from ipygpumem.core.tables import text_tables
    from ipygpumem.features.modules.table import module_tables

    print(text_tables(module_tables(report.modules)))


def check_phases(tree):
    phases = {phase.name: phase for phase in tree.phases}
    assert {"forward", "backward", "optimizer"} <= set(phases), phases
    assert phases["backward"].count == 1
    return phases


def test_modules_and_time(torch, make):
    import ipygpumem

    model = make(2048)  # a step takes about as long as one of GPT-2
    step = stepper(torch, model, torch.compile(model), lengths=(1024,))
    report = measured(step, modules=model)
    show(report)
    tree = check_sums(report)
    phases = check_phases(tree)
    assert phases["forward"].change > 100 * MIB
    root, blocks = tree.rows[0], [tree.row(f"blocks.{number}") for number in (1, 2)]
    assert root.note == "compiled"
    assert root.activations > 100 * MIB
    assert abs(blocks[0].activations - blocks[1].activations) <= root.activations / 20
    assert tree.row("blocks.1.up").activations + tree.row("blocks.1").own > 0
    unknown = sum(row.activations for row in tree.rows if "compiled graph" in row.path)
    print(f"COMPILED activations {root.activations / MIB:.0f} MiB, of unknown modules {unknown / MIB:.0f} MiB")
    assert unknown <= root.activations / 10

    def timed(**options):
        with ipygpumem.measure(**options):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(5):
                step()
            torch.cuda.synchronize()
            return (time.perf_counter() - start) / 5

    plain, tracked = zip(*((timed(), timed(modules=model)) for _ in range(7)), strict=True)
    ratio = statistics.median(tracked) / statistics.median(plain)
    print(f"COMPILED a step: {statistics.median(plain) * 1000:.1f} ms, --modules {ratio:.2f} times")
    assert ratio <= 1.2


def test_lines(torch, make):
    model = make()
    report = measured(stepper(torch, model, torch.compile(model)), lines=type(model.blocks[0]).forward)
    (device,) = report.lines
    uses = {line.text.strip(): line.use for listing in device.listings for line in listing.lines}
    for text, use in uses.items():
        print(f"COMPILED {use.allocated / MIB if use else 0:8.1f} MiB {text}")
    assert uses["y = nn.functional.gelu(self.up(x))"].allocated >= 3 * 16 * 256 * 4 * 512 * 2
    assert uses["return x + self.down(y)"].allocated > 0
    assert (uses["def forward(self, x):"] or uses["return x + self.down(y)"]).allocated > 0


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune-no-cudagraphs"])
def test_modes(torch, make, mode):
    from torch._inductor import config

    model = make(layers=1)
    with config.patch(max_autotune_gemm_backends="ATEN"):  # fewer kernels to compare
        report = measured(stepper(torch, model, torch.compile(model, mode=mode)), modules=model)
    show(report)
    tree = check_sums(report)
    check_phases(tree)
    if mode != "reduce-overhead":  # the memory of a replayed CUDA graph was allocated when the graph was recorded
        assert tree.rows[0].activations > MIB


@pytest.mark.parametrize("kind", ["graph break", "dynamic shapes", "submodules", "compiled optimizer"])
def test_kinds_of_compiled_code(torch, make, kind):
    model = make(256, 2, graph_break=kind == "graph break")
    call, lengths = model, (64,)
    if kind == "submodules":
        model.blocks[0].compile()
        model.blocks[1] = torch.compile(model.blocks[1])
    else:
        call = torch.compile(model, dynamic=True if kind == "dynamic shapes" else None)
        lengths = (64, 80, 96) if kind == "dynamic shapes" else lengths
    step = stepper(torch, model, call, kind == "compiled optimizer", lengths)
    report = measured(step, modules=model)
    show(report)
    tree = check_sums(report)
    check_phases(tree)
    assert tree.rows[0].activations > MIB


def test_compiled_autograd(torch, make):
    from torch._dynamo import compiled_autograd

    model = make(256, 1)
    optimizer = torch.optim.SGD(model.parameters())
    call = torch.compile(model)

    def step():
        optimizer.zero_grad()
        loss = call(torch.ones(16, 64, 256, device="cuda")).square().mean()
        with compiled_autograd._enable(torch.compile(backend="inductor")):
            loss.backward()
        optimizer.step()

    tree = check_sums(measured(step, modules=model))
    check_phases(tree)
    assert tree.rows[0].gradients > 0
