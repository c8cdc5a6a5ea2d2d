"""`%gpumem who` and the out-of-memory panel in training sessions with transformers and accelerate."""

import re
import statistics

import pytest

transformers = pytest.importorskip("transformers")

SESSION = """
import gc, time, torch, ipygpumem
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config()).cuda()  # 124 million parameters
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.randint(0, 50_000, (4, 256), device="cuda")
for _ in range(2):
    loss = model(ids, labels=ids).loss
    loss.backward()
    optimizer.step()
"""
SEARCH = """
def seconds(**options):
    ipygpumem.holders(**options)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        ipygpumem.holders(**options)
        times.append(time.perf_counter() - start)
    return times
def rows(holders):
    return [(holder.name, holder.amount, holder.count) for holder in holders.holders]
near, everything = ipygpumem.holders(), ipygpumem.holders(everywhere=True)
times = seconds()
emit(seconds=times, phases=phases(), near=rows(near), everything=rows(everything), complete=near.complete,
    objects=near.objects)
"""
PHASES = """
def phases():
    # returns the seconds that the parts of one search take; some parts contain others
    import collections
    from ipygpumem.features.holders import collect, list_elements, search, targets, tracked_objects
    from ipygpumem.sources import allocator
    seconds = collections.Counter()
    code = '''
def timed(name, function):
    def call(*arguments, **options):
        start = perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            seconds[name] += perf_counter() - start
    return call
'''
    # frames of the package are not searched
    namespace = {"__name__": "ipygpumem.timed", "seconds": seconds, "perf_counter": time.perf_counter}
    exec(code, namespace)
    owners = {
        allocator: ["segments"],
        allocator.AllocatedBlocks: ["__init__", "fraction_outside"],
        collect: ["allocated_blocks", "module_roots", "search_holders", "find_holders"],
        collect._BlockAssignment: ["__init__", "devices", "total", "holders"],
        search._HolderSearch: ["_read_objects", "check", "_find_names", "_named_storages", "run"],
        list_elements.ListElements: ["take_tensors", "separate_shared"],
        targets.SearchTargets: ["add", "set_kinds"],
        tracked_objects.TrackedObjects: ["follow", "release"],
    }
    originals = [(owner, name, getattr(owner, name)) for owner, names in owners.items() for name in names]
    for owner, name, function in originals:
        setattr(owner, name, namespace["timed"](f"{owner.__name__.rpartition('.')[2]}.{name}", function))
    starts = []
    def collected(phase, info):
        if phase == "start":
            starts.append(time.perf_counter())
        elif starts:
            seconds[f"garbage collection {info['generation']}"] += time.perf_counter() - starts.pop()
    gc.callbacks.append(collected)
    start = time.perf_counter()
    ipygpumem.holders()
    seconds["all"] = time.perf_counter() - start
    gc.callbacks.remove(collected)
    for owner, name, function in originals:
        setattr(owner, name, function)
    return {name: round(duration, 4) for name, duration in seconds.most_common()}
"""


@pytest.mark.parametrize(
    ("more", "limit"),
    [("", 0.3), ("tensors = [torch.ones(100, device='cuda') for _ in range(24_000)]", 0.6)],
)
def test_search_is_fast_and_names_the_same_holders(run_python, more, limit):
    values = run_python(f"{SESSION}{more}\n{PHASES}{SEARCH}")
    assert values["complete"]
    assert values["near"] == values["everything"]
    assert values["objects"] < 50_000
    assert statistics.median(values["seconds"]) <= limit, values["phases"]


@pytest.mark.parametrize("count", [500_000, 2_000_000])
def test_names_with_short_limit_among_many_objects(run_python, count):
    values = run_python(
        f"""
        {SESSION.replace(chr(10), chr(10) + " " * 8)}
        data = [(i, [i]) for i in range({count} // 2)]
        hog = torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
        holders = ipygpumem.holders(limit=0.2)
        emit(names=[holder.name for holder in holders.holders], seconds=holders.seconds)
        """
    )
    assert {"hog", "model", "optimizer"} <= set(values["names"])


RETRY = """
import time, torch, transformers
from accelerate.utils import find_executable_batch_size
torch.cuda.set_per_process_memory_fraction((8 << 30) / torch.cuda.get_device_properties(0).total_memory)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).cuda()
hog = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
"""
ACCELERATE = """
@find_executable_batch_size(starting_batch_size=512)
def train(batch_size):
    ids = torch.randint(0, 50_000, (batch_size, 256), device="cuda")
    model(ids, labels=ids).loss.backward()
start = time.perf_counter(); train(); print("SECONDS", time.perf_counter() - start)
"""
TRAINER = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4096
    def __getitem__(self, i): return {"input_ids": torch.full((256,), i), "labels": torch.full((256,), i)}
arguments = transformers.TrainingArguments("/tmp/trainer", auto_find_batch_size=True, max_steps=1, report_to=[],
    per_device_train_batch_size=64, save_strategy="no")
trainer = transformers.Trainer(model, arguments, train_dataset=Data())
start = time.perf_counter(); trainer.train(); print("SECONDS", time.perf_counter() - start)
"""


@pytest.mark.parametrize("cell", [ACCELERATE, TRAINER], ids=["accelerate", "trainer"])
def test_retry_loop_names_holders(cell):
    pytest.importorskip("accelerate")
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")

    # in one kernel: the first run fills the caches of the driver, the second takes place without the extension
    texts = (RETRY, cell, cell, "%load_ext ipygpumem", cell)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in texts])
    nbclient.NotebookClient(notebook, timeout=300).execute()
    cells = [notebook.cells[2], notebook.cells[4]]
    streams = [[output["text"] for output in run.outputs if output.output_type == "stream"] for run in cells]
    without, seconds = (float("".join(texts).rpartition("SECONDS ")[2].split()[0]) for texts in streams)
    outputs = [output for output in cells[1].outputs if output.output_type == "display_data"]
    shown = "\n".join(output["data"]["text/plain"] for output in outputs)
    assert "(caught by the code)" in shown
    holders = shown.partition("memory holders at the")[2]
    assert "hog" in holders and "model" in holders
    failures = re.search(r"(\d+) allocations failed in this cell", shown)
    assert seconds - without <= 0.3 * (int(failures[1]) if failures else 1)
