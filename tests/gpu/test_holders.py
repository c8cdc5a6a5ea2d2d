"""`%gpumem who`, `%gpumem free` and the out-of-memory panel in a real kernel on a GPU."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

MIB = 1 << 20
GIB = 1 << 30
TOLERANCE = 2 * MIB

START = """
%load_ext ipygpumem
import gc, json, torch, ipygpumem
def emit(**values):
    print("VALUES " + json.dumps(values))
def who():
    holders = ipygpumem.holders()
    first = holders.largest(1)[0]
    total = holders.total("cuda:0")
    emit(
        first=first.name, amount=first.amount, note=first.note, kinds=dict(first.kinds), part=first.parts[0].name,
        free=holders.freeable("cuda:0", "traceback"), free_out=holders.freeable("cuda:0", "traceback", "output"),
        sum=total.held + total.unreached, allocated=total.allocated, seconds=holders.seconds, complete=holders.complete,
        rest={part.label: part.amount for part in total.rest}, now=torch.cuda.memory_allocated(),
    )
def allocated():
    emit(now=torch.cuda.memory_allocated())
"""


def run(*cells, **environment):
    texts = [textwrap.dedent(cell).strip() for cell in (START, *cells)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in texts])
    client = nbclient.NotebookClient(notebook, timeout=120, allow_errors=True)
    client.execute(env={**os.environ, "PYTHONFAULTHANDLER": "1", **environment})
    return [CellOutput(cell) for cell in notebook.cells[1:]]


class CellOutput:
    def __init__(self, cell):
        self.printed = "".join(out["text"] for out in cell.outputs if out.output_type == "stream")
        self.error = next((out.ename for out in cell.outputs if out.output_type == "error"), None)
        self.shown = "\n".join(out["data"]["text/plain"] for out in cell.outputs if out.output_type == "display_data")
        self.values = {}
        for line in self.printed.splitlines():
            if line.startswith("VALUES "):
                self.values.update(json.loads(line.removeprefix("VALUES ")))

    def __getattr__(self, name):
        return self.values[name]


def is_close(nbytes, expected):
    return abs(nbytes - expected) <= TOLERANCE


@pytest.fixture(scope="module")
def cases():
    names, cells = [], []

    def case(name, *steps):
        for step in steps:
            names.append(name)
            cells.append(step)

    case(
        "loss",
        """
        net = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4))).cuda()
        x = torch.randn(8192, 2048, device="cuda")
        losses = []
        for _ in range(6):
            losses.append(net(x).relu().square().mean())
        """,
        "who()",
        "before = torch.cuda.memory_allocated(); del losses; emit(freed=before - torch.cuda.memory_allocated())",
        "del net, x",
    )
    case(
        "traceback",
        """
        def fail(n):
            x = torch.ones(n, dtype=torch.uint8, device="cuda")
            raise ValueError("no")
        fail(2 << 30)
        """,
        "who()",
        "%gpumem free",
        "allocated()",
        "%debug",
    )
    case(
        "output",
        "net = torch.nn.Linear(4096, 4096).cuda(); x = torch.randn(65536, 4096, device='cuda')",
        "net(x)",
        "who()",
        "del net, x; who()",
        "%gpumem free --out",
        "allocated()",
    )
    case(
        "lru",
        """
        import functools
        @functools.lru_cache(maxsize=None)
        def load(i):
            return torch.ones(256 << 20, dtype=torch.uint8, device="cuda")
        for i in range(4): load(i)
        """,
        "who()",
        "load.cache_clear()",
    )
    case(
        "closure",
        """
        def make():
            batch = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
            def predict():
                return batch.sum()
            return predict
        predict = make()
        """,
        "who()",
        "before = torch.cuda.memory_allocated()\n%gpumem free predict",
        "emit(freed=before - torch.cuda.memory_allocated())",
    )
    case(
        "optimizer",
        """
        layers = torch.nn.ModuleList(torch.nn.Linear(4096, 4096) for _ in range(8)).cuda()
        optimizer = torch.optim.AdamW(layers.parameters())
        layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2)).cuda()
        """,
        "who()",
        "del optimizer, layers",
    )
    case("end", "gc.collect(); allocated()")
    outputs = {}
    for name, output in zip(names, run(*cells), strict=True):
        outputs.setdefault(name, []).append(output)
    return outputs


def test_holders_add_up_to_the_allocated_memory(cases):
    for name in ("loss", "traceback", "output", "lru", "closure", "optimizer"):
        output = next(output for output in cases[name] if "sum" in output.values)
        assert output.sum == output.allocated == output.now, (name, output.values)
        assert output.complete
        assert output.seconds < 2


def test_list_of_losses(cases):
    _, search, deleted, *_ = cases["loss"]
    assert search.first == "losses"
    assert is_close(search.amount, deleted.freed)
    assert search.kinds.keys() == {"activation"}
    assert "store the result of .item() instead" in search.note


def test_local_variables_of_failed_cell(cases):
    failed, search, free, after, debug = cases["traceback"]
    assert failed.error == "ValueError"
    assert search.first == "last exception: fail() x"
    assert is_close(search.amount, 2 * GIB)
    assert is_close(search.free, 2 * GIB)
    assert is_close(search.now - after.now, search.free), "%gpumem free frees the announced size"
    assert "freed: the traceback of ValueError" in free.shown
    assert "-2.0 GiB" in free.shown
    assert debug.error is None


def test_displayed_output(cases):
    _, _, search, after_free, free, after = cases["output"]
    assert search.first.startswith("Out[")
    assert is_close(search.amount, 65536 * 4096 * 4)
    assert after_free.first == search.first
    assert is_close(after_free.now - after.now, after_free.free_out), "--out frees the announced size"
    assert after_free.free_out > search.free_out, "the autograd graph of the output keeps its input alive"
    assert "freed: 1 output" in free.shown


def test_result_cache(cases):
    assert cases["lru"][1].first == "load"
    assert is_close(cases["lru"][1].amount, GIB)


def test_closure(cases):
    _, search, _, deleted = cases["closure"]
    assert (search.first, search.part) == ("predict", "predict (closure batch)")
    assert is_close(search.amount, GIB)
    assert is_close(deleted.freed, GIB)


def test_parameters_held_only_by_optimizer(cases):
    search = cases["optimizer"][1]
    assert search.first == "optimizer"
    assert is_close(search.amount, 8 * (4096 * 4096 + 4096) * 4)
    assert search.part.startswith("optimizer.param_groups[0][")


def test_all_memory_was_freed(cases):
    assert cases["end"][0].now < 64 * MIB, "only cuBLAS's workspace remains"


def test_fragmented_heap():
    outputs = run(
        """
        torch.cuda.set_per_process_memory_fraction((4 << 30) / torch.cuda.get_device_properties(0).total_memory)
        whole = torch.empty(3500 << 20, dtype=torch.uint8, device="cuda"); del whole
        parts = [torch.empty(14 << 20, dtype=torch.uint8, device="cuda") for _ in range(250)]
        del parts[::2]
        """,
        "big = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')",
        "who()",
    )
    assert outputs[1].error == "OutOfMemoryError"
    assert "cuda:0 is out of memory: 1.0 GiB requested" in outputs[1].shown
    assert "requested by In [3]:1" in outputs[1].shown
    assert "the largest 14.0 MiB" in outputs[1].shown
    lines = outputs[1].shown.splitlines()
    advice = [line for line in lines if line.startswith("fragmentation") or " was free on the device" in line]
    assert advice[0].startswith("fragmentation: PyTorch had 1.7 GiB of free memory, but in 12")
    assert "expandable_segments:True" in advice[0]
    assert "PyTorch is limited to 4.0 GiB" in advice[1]
    assert "another process" not in outputs[1].shown
    assert outputs[2].first == "parts"


def test_expandable_segments_are_not_fragmented():
    outputs = run(
        """
        torch.cuda.set_per_process_memory_fraction((2 << 30) / torch.cuda.get_device_properties(0).total_memory)
        held = torch.empty(1500 << 20, dtype=torch.uint8, device="cuda")
        """,
        "big = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')",
        PYTORCH_ALLOC_CONF="expandable_segments:True",
    )
    assert "is out of memory" in outputs[1].shown
    assert "fragmentation:" not in outputs[1].shown
    assert "held" in outputs[1].shown


OTHER_PROCESS = """
import sys, torch
free, total = torch.cuda.mem_get_info()
keep = torch.empty(free - (6 << 30), dtype=torch.uint8, device="cuda")
print(keep.numel(), flush=True)
sys.stdin.readline()
"""


def test_another_process_fills_device():
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        allocated_elsewhere = int(process.stdout.readline())
        try:
            output = run("x = torch.empty(40 << 30, dtype=torch.uint8, device='cuda')")[0]
        finally:
            process.stdin.close()
    assert output.error == "OutOfMemoryError"
    line = next(line for line in output.shown.splitlines() if line.startswith("another process uses"))
    assert f"pid {process.pid}" in line
    assert f"{allocated_elsewhere / GIB:.0f}"[:2] in line
    assert "fragmentation:" not in output.shown


def test_out_of_memory_in_every_location():
    outputs = run(
        "torch.cuda.set_per_process_memory_fraction((2 << 30) / torch.cuda.get_device_properties(0).total_memory)\n"
        "def step(n):\n    x = torch.ones(1 << 30, dtype=torch.uint8, device='cuda')\n"
        "    y = torch.ones(n << 30, dtype=torch.uint8, device='cuda')\n    return x, y",
        "try:\n    step(5)\nexcept Exception as error:\n    raise ValueError('in step') from error",
        "%gpumem free",
        "try:\n    step(5)\nexcept torch.OutOfMemoryError as error:\n    print('caught')",
        "import threading\nthreading.excepthook = lambda hook: None\n"
        "worker = threading.Thread(target=step, args=(5,), name='worker'); worker.start(); worker.join()",
        """
        class Big(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1
            @staticmethod
            def backward(ctx, grad):
                return grad * torch.ones(5 << 28, device="cuda").sum()
        v = torch.ones(4, device="cuda", requires_grad=True)
        Big.apply(v).sum().backward()
        """,
        "torch.cuda.memory_allocated()",
    )
    _, cause, _, caught_error, thread, backward, after = outputs
    assert cause.error == "ValueError"
    assert "is out of memory: 5.0 GiB requested\n" in cause.shown
    assert "last exception: step() x" in cause.shown
    assert caught_error.error is None and "caught" in caught_error.printed
    assert "5.0 GiB requested (caught by the code)" in caught_error.shown
    # holders at the time of the failure, although the frame no longer exists
    assert "step() x" in caught_error.shown, caught_error.shown
    assert "in thread worker" in thread.shown
    assert backward.error == "OutOfMemoryError"
    assert "is out of memory" in backward.shown
    assert "In [7]" in backward.shown
    assert all(output.shown.count("is out of memory") == 1 for output in (cause, caught_error, thread, backward))
    assert after.shown == ""


def test_oom_snapshot_of_any_cell(tmp_path):
    outputs = run(
        f"%config GPUMem.oom_snapshot = '{tmp_path}/oom_{{n}}.pickle'",
        "def train():\n    a = torch.ones(1 << 30, dtype=torch.uint8, device='cuda')\n"
        "    return a, torch.empty(1 << 40, dtype=torch.uint8, device='cuda')\ntrain()",
        "b = torch.ones(64 << 20, dtype=torch.uint8, device='cuda')\nmade = ipygpumem.holders()\n"
        "print([part.made for holder in made.holders if holder.name == 'b' for part in holder.parts])",
        "%config GPUMem.oom_snapshot = None",
        "torch._C._cuda_isHistoryEnabled()",
    )
    from ipygpumem.snapshot import Snapshot

    assert "about 10%" in outputs[0].printed
    assert f"snapshot {tmp_path}/oom_1.pickle" in outputs[1].shown
    snapshot = Snapshot.load(tmp_path / "oom_1.pickle")
    assert "oom" in snapshot.summary().lower()
    assert "In [4]:1" in outputs[2].printed
    assert [path.name for path in tmp_path.iterdir()] == ["oom_1.pickle"]


def test_no_hook_is_called_and_no_checkpoint_is_recomputed(run_python):
    values = run_python(
        """
        import torch, ipygpumem
        from torch.utils.checkpoint import checkpoint
        calls = []
        def block(x):
            calls.append("forward")
            return (x @ x).relu()
        def unpack(packed):
            calls.append("unpack")
            return packed
        x = torch.randn(2048, 2048, device="cuda", requires_grad=True)
        y = checkpoint(block, x, use_reentrant=False)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            z = (x * 2).exp()
        before = list(calls)
        torch.cuda.synchronize()
        holders = ipygpumem.holders()
        total = holders.total("cuda:0")
        off = total.allocated - total.held - total.unreached
        emit(same=calls == before, names=[holder.name for holder in holders.holders], off=off)
        z.sum().backward()
        emit(ran="unpack" in calls)
        """
    )
    assert values["same"]
    assert values["ran"]
    assert {"x", "y", "z"} <= set(values["names"])
    assert values["off"] == 0


def test_ten_thousand_tensors_in_a_million_objects(run_python):
    values = run_python(
        """
        import torch, ipygpumem
        keep = [{"a": [i], "b": str(i)} for i in range(500_000)]
        tensors = [torch.ones(100, device="cuda") for _ in range(10_000)]
        ipygpumem.holders()
        holders = ipygpumem.holders()
        emit(seconds=holders.seconds, objects=holders.objects, name=holders.holders[0].name,
             count=holders.holders[0].count, complete=holders.complete)
        """
    )
    assert values["objects"] > 1_000_000
    assert (values["name"], values["count"]) == ("tensors", 10_000)
    assert values["complete"]
    print("seconds", values["seconds"])


def test_memory_of_another_process_is_reported_separately(run_python):
    values = run_python(
        """
        import torch, ipygpumem
        import torch.multiprocessing as processes
        def child(queue, done):
            shared = torch.ones(64 << 20, dtype=torch.uint8, device="cuda")
            queue.put(shared)
            done.wait()
        if __name__ == "__main__":
            context = processes.get_context("fork")
            queue, done = context.Queue(), context.Event()
            process = context.Process(target=child, args=(queue, done))
            process.start()
            shared = queue.get()
            own = torch.ones(8 << 20, dtype=torch.uint8, device="cuda")
            holders = ipygpumem.holders()
            total = holders.total("cuda:0")
            names = [holder.name for holder in holders.holders]
            emit(names=names, notes=list(holders.notes), sum=total.held + total.unreached,
                 allocated=torch.cuda.memory_allocated())
            del shared
            done.set()
            process.join()
        """
    )
    assert values["names"] == ["own"]
    assert values["sum"] == values["allocated"] == 8 * MIB
    assert "64.0 MiB of tensor memory is not counted because PyTorch did not allocate it" in values["notes"][0]


def test_after_failed_kernel():
    outputs = run(
        "x = torch.zeros(64 << 20, dtype=torch.uint8, device='cuda')",
        "torch.zeros(10, device='cuda')[torch.tensor([100], device='cuda')]\ntorch.cuda.synchronize()",
        "holders = ipygpumem.holders(); emit(names=[holder.name for holder in holders.holders])",
        "%gpumem who",
        "%gpumem free",
    )
    assert outputs[1].error is not None
    assert "x" in outputs[2].names
    assert all(output.error is None for output in outputs[2:])


def test_storage_at_address_of_freed_storage_is_new():
    outputs = run(
        "tensors = torch.ones(32 << 20, dtype=torch.uint8, device='cuda')\n"
        "old = torch.ones(64 << 20, dtype=torch.uint8, device='cuda'); place = old.data_ptr()\n%gpumem who",
        "del old\nfresh = torch.ones(64 << 20, dtype=torch.uint8, device='cuda')",
        "%gpumem who --new -v holders",
        "emit(same=fresh.data_ptr() == place, names=[holder.name for holder in holders.holders])",
    )
    assert outputs[3].same
    assert outputs[3].names == ["fresh"]


def test_thread_that_allocates_during_search(run_python):
    values = run_python(
        """
        import threading, torch, ipygpumem
        ipygpumem.preload_pytorch()
        keep = [[i] for i in range(400_000)]
        mine = torch.ones(64 << 20, dtype=torch.uint8, device="cuda")
        stop, tensors = threading.Event(), []
        def work():
            while not stop.wait(0.001):
                tensors.append(torch.ones(2 << 20, dtype=torch.uint8, device="cuda"))
                del tensors[:-200]
        thread = threading.Thread(target=work)
        thread.start()
        sums, notes, labels = [], [], []
        for _ in range(5):
            holders = ipygpumem.holders()
            total = holders.total("cuda:0")
            sums.append(total.held + total.unreached == total.allocated)
            notes += holders.notes
            labels += [(part.label, part.amount) for part in total.rest]
        stop.set()
        thread.join()
        emit(sums=sums, notes=notes, labels=labels)
        """
    )
    assert all(values["sums"])
    assert not [note for note in values["notes"] if "outside PyTorch's allocator" in note]
    assert "allocated by other threads during the search" in {label for label, _ in values["labels"]}
    assert all(amount < 4 * MIB for label, amount in values["labels"] if label.startswith("not reachable"))


def test_line_that_allocated_memory_without_a_python_object():
    recorded, table = run(
        """
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
        pointer = torch.cuda.caching_allocator_alloc(64 << 20)
        torch.cuda.memory._record_memory_history(enabled=None)
        (total,) = ipygpumem.holders().totals
        get = getattr(torch.cuda.memory, "_allocation_traceback", None)
        emit(lines=[part.lines for part in total.rest], frames=None if get is None else get(pointer))
        """,
        "%gpumem who",
    )
    lines = [line for part in recorded.lines for line in part]
    assert [nbytes for _, nbytes in lines] == [64 * MIB]
    assert "In [2]:2" in lines[0][0]
    assert recorded.frames is None or any(frame["line"] == 2 for frame in recorded.frames)
    assert "allocated by In [2]:2" in table.shown
