"""Snapshots agree exactly with PyTorch's counters at the peak and at the end."""

import pytest

PRELUDE = """
import gc, os, tempfile, torch
from torch import nn
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import ACTIONS

MIB = 1 << 20

def train(device="cuda", steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        x = torch.randn(64 * (step + 1), 512, device=device)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer

def record(work, devices=1):
    old = [torch.empty(3 * MIB + 5, dtype=torch.uint8, device=f"cuda:{index}") for index in range(devices)]
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.memory._record_memory_history(enabled="all", stacks="python", max_entries=1_000_000)
    for index in range(devices):
        torch.cuda.reset_peak_memory_stats(index)
    tensors = work()
    for index in range(devices):
        torch.cuda.synchronize(index)
    stats = [torch.cuda.memory_stats(index) for index in range(devices)]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        torch.cuda.memory._record_memory_history(enabled=None)
        snapshot = Snapshot.load(path)
    for index in range(devices):
        compare(snapshot, index, stats[index])
    del tensors, old
    return snapshot

def compare(snapshot, index, stats):
    timeline = snapshot.timeline(index)
    blocks = snapshot.blocks
    mine = blocks.active & (blocks.device == index)
    live = timeline.allocations.live(len(timeline.trace) - 1)
    gaps = timeline.gaps
    emit(**{f"device{index}": {
        "pairs": {
            "requested peak": [snapshot.peak(index).requested, stats["requested_bytes.all.peak"]],
            "requested end": [int(timeline.requested.bytes[-1]), stats["requested_bytes.all.current"]],
            "active end": [timeline.end_active, stats["active_bytes.all.current"]],
            "reserved peak": [timeline.reserved.peak()[1], stats["reserved_bytes.all.peak"]],
            "reserved end": [timeline.end_reserved, stats["reserved_bytes.all.current"]],
            "reserved of the state": [snapshot.state_at(len(timeline.trace) - 1, index).reserved,
                                      stats["reserved_bytes.all.current"]],
            "sum by line": [sum(group.bytes for group in snapshot.by_line(index)), stats["requested_bytes.all.peak"]],
            "addresses": [sorted(timeline.allocations.address[live].tolist()), blocks.address[mine].tolist()],
            "requests": [sorted(timeline.allocations.size[live].tolist()), sorted(blocks.requested[mine].tolist())],
            "gaps": [[gaps.frees_without_allocation, gaps.missing_frees, gaps.only_in_segments, gaps.only_in_events],
                     [0, 0, 0, 0]],
        },
        "events": len(timeline.trace),
        "pools": sorted({group.label for group in snapshot.live(device=index).by("pool")}),
        "segments": sum(len(snapshot.state_at(event, index).segments) for event in range(-1, len(timeline.trace), 97)),
        "ooms": [[oom.asked, oom.device_free, list(oom.reason)] for oom in snapshot.ooms(index)],
        "expandable": bool(snapshot.segments.expandable.any()),
        "actions": {ACTIONS[number]: int((timeline.trace.action == number).sum()) for number in range(len(ACTIONS))},
        # blocks whose free was not completed before the next event
        "waited": int((timeline.allocations.end - timeline.allocations.free_requested > 1).sum()),
        "private": sum(snapshot.pools[number] != (0, 0) for number in snapshot.segments.pool.tolist() if number >= 0),
    }})
"""


def check_agreement(values, device=0):
    device_values = values[f"device{device}"]
    assert device_values["events"] > 0
    for name, (value, expected) in device_values["pairs"].items():
        assert value == expected, name
    return device_values


def test_training_with_the_default_allocator(run_python):
    device_values = check_agreement(run_python(PRELUDE + "record(train)\n"))
    assert not device_values["expandable"] and not device_values["waited"] and not device_values["private"]


def test_training_with_expandable_segments(run_python):
    code = (
        PRELUDE
        + "def work():\n    first = train()\n    torch.cuda.empty_cache()\n    return first, train()\nrecord(work)\n"
    )
    device_values = check_agreement(run_python(code, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"))
    assert device_values["expandable"]
    assert device_values["actions"]["segment_map"] > 0 and device_values["actions"]["segment_unmap"] > 0


def test_two_streams_with_record_stream(run_python):
    code = """
def work():
    side = torch.cuda.Stream()
    tensors = []
    for step in range(20):
        with torch.cuda.stream(side):
            x = torch.randn(1 << 20, device="cuda")
            y = x * step
        torch.cuda.current_stream().wait_stream(side)
        y.record_stream(torch.cuda.current_stream())
        tensors.append((y * 2)[:10].clone())
        torch.cuda._sleep(20_000_000)  # the free must wait for it
        del x, y
    return tensors, train()
record(work)
"""
    assert check_agreement(run_python(PRELUDE + code))["waited"] > 0


def test_cuda_graph(run_python):
    code = """
def work():
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(3)]).cuda()
    x = torch.randn(64, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x).sum().backward()
            model.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
        y.sum().backward()
    for _ in range(5):
        graph.replay()
    return graph, y, model
record(work)
"""
    device_values = check_agreement(run_python(PRELUDE + code))
    assert device_values["private"] > 0
    assert any(label.startswith("private pool") for label in device_values["pools"])


def test_out_of_memory(run_python):
    code = """
def work():
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + 200 * MIB) / total))
    tensors = [torch.empty(9 * MIB, dtype=torch.uint8, device="cuda") for _ in range(12)]
    del tensors[::2]
    try:
        torch.empty(150 * MIB, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        tensors.append(torch.empty(5, device="cuda"))
    torch.cuda.set_per_process_memory_fraction(1.0)
    return tensors
record(work)
"""
    device_values = check_agreement(run_python(PRELUDE + code))
    assert device_values["ooms"]
    requested, free, reason = device_values["ooms"][-1]
    assert requested == 150 << 20
    assert free > 0
    assert reason[0] == "150.0 MiB was requested."


def test_two_devices(run_python, torch_on_two_gpus):
    code = """
def work():
    tensors = train("cuda:0"), train("cuda:1", steps=2)
    x = torch.randn(1 << 20, device="cuda:0").to("cuda:1")
    return tensors, x
record(work, devices=2)
"""
    values = run_python(PRELUDE + code)
    check_agreement(values, 0)
    check_agreement(values, 1)


def test_history_with_dropped_events(run_python):
    code = """
torch.cuda.init()
torch.cuda.memory._record_memory_history(enabled="all", stacks="python", max_entries=100)
tensors = train(steps=5)
torch.cuda.synchronize()
stats = torch.cuda.memory_stats()
snapshot = Snapshot.load(torch.cuda.memory._snapshot())
torch.cuda.memory._record_memory_history(enabled=None)
timeline = snapshot.timeline(0)
emit(
    events=len(timeline.trace),
    old=timeline.gaps.before_recording,
    end=[int(timeline.requested.bytes[-1]), stats["requested_bytes.all.current"]],
    reserved=[timeline.end_reserved, stats["reserved_bytes.all.current"]],
    peak_within_counter=snapshot.peak(0).requested <= stats["requested_bytes.all.peak"],
)
"""
    values = run_python(PRELUDE + code)
    assert values["events"] == 100
    assert values["old"] > 0
    assert values["end"][0] == values["end"][1]
    assert values["reserved"][0] == values["reserved"][1]
    assert values["peak_within_counter"]


@pytest.mark.parametrize("context", ["alloc", "state", None])
def test_every_stack_depth(run_python, context):
    code = f"""
torch.cuda.init()
torch.cuda.memory._record_memory_history(enabled="all", context={context!r}, stacks="python", max_entries=100_000)
torch.cuda.reset_peak_memory_stats()
tensors = train()
torch.cuda.synchronize()
stats = torch.cuda.memory_stats()
snapshot = Snapshot.load(torch.cuda.memory._snapshot())
torch.cuda.memory._record_memory_history(enabled=None)
compare(snapshot, 0, stats)
"""
    check_agreement(run_python(PRELUDE + code))


def test_texts_attached_to_allocations_and_pinned_memory(run_python):
    code = """
memory = torch.cuda.memory
supported = hasattr(memory, "_annotate_tensor")
if supported:
    memory._record_memory_history(record_pinned_host_memory=True, context="alloc", stacks="python")
    x = torch.ones(3 * MIB, dtype=torch.uint8, device="cuda")
    memory._annotate_tensor(x[MIB:], "saved for backward")
    pinned = torch.ones(8 * MIB, dtype=torch.uint8, pin_memory=True)
    snapshot = Snapshot.load(memory._snapshot())
    memory._record_memory_history(enabled=None)
    host = snapshot.host_timeline
    groups = snapshot.live(len(snapshot.timeline(0).trace) - 1, 0).by("metadata")
    emit(labels={group.label: group.bytes for group in groups}, errors=[trace.error for trace in snapshot.host],
         requested=host.end_requested, reserved=host.end_reserved, summary=snapshot.summary())
emit(supported=supported)
"""
    values = run_python(PRELUDE + code)
    if not values["supported"]:
        pytest.skip("PyTorch 2.14 added _annotate_tensor and recordings of pinned memory")
    assert values["labels"] == {"saved for backward": 3 << 20}
    assert values["errors"] == [""]
    assert values["requested"] == values["reserved"] == 8 << 20
    assert "pinned host memory: peak 8.0 MiB" in values["summary"]
