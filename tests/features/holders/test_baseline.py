"""A search with a baseline lists only new storages."""

from __future__ import annotations

import gc

import pytest
import torch
import torch._dynamo  # binds names of torch._C, which must happen before a fake GPU replaces them

from fakes.allocation_mode import AllocationMode
from ipygpumem.features.holders.collect import find_holders, holders
from ipygpumem.features.holders.command import HolderBaselines
from ipygpumem.features.holders.reference_graph import SearchRoot
from ipygpumem.measurement.runtime import current
from ipygpumem.sources.storages import StorageInspector

MIB = 1 << 20


@pytest.fixture
def cpu_tensors_on_fake_gpu(fake_gpu, monkeypatch):
    """Allocate a block on the fake GPU for each tensor in host memory."""
    traffic = AllocationMode(fake_gpu)
    monkeypatch.setattr(StorageInspector, "storage_locations", lambda _, *storage: traffic.storage_locations(*storage))
    with traffic:
        yield


def ones(nbytes):
    return torch.ones(nbytes, dtype=torch.uint8, device="cuda")


def baseline_of_search(**options):
    return find_holders(current(), [], **options)[1]


def names(variables, **options):
    return [holder.name for holder in holders([SearchRoot("", variables, "variable", "names")], **options).holders]


def test_only_new_storages_are_listed(fake_gpu):
    variables = {"old": ones(3 * MIB)}
    baseline = baseline_of_search()
    variables["new"] = ones(4 * MIB)
    assert names(variables, since=baseline) == ["new"]
    assert holders([SearchRoot("", variables, "variable", "names")], since=baseline).total("cuda:0").held == 7 * MIB


def test_storage_at_address_of_freed_storage_is_new(fake_gpu):
    variables = {"kept": ones(3 * MIB), "replaced": ones(4 * MIB)}
    baseline = baseline_of_search()
    address = variables["replaced"].untyped_storage().data_ptr()
    del variables["replaced"]
    variables["fresh"] = ones(4 * MIB)
    assert variables["fresh"].untyped_storage().data_ptr() == address, (
        "the fake allocator reuses addresses like PyTorch's"
    )
    assert names(variables, since=baseline) == ["fresh"]
    variables["view"] = variables["kept"][5:]
    assert names(variables, since=baseline) == ["fresh"], "a view is a new tensor, but not a new storage"


def test_search_of_one_device_covers_blocks_of_all_devices(two_gpus):
    variables = {"x": ones(3 * MIB), "y": torch.ones(MIB, dtype=torch.uint8, device="cuda:1")}
    baseline = baseline_of_search(device=0)
    variables["z"] = torch.ones(MIB, dtype=torch.uint8, device="cuda:1")
    assert names(variables, since=baseline) == ["z"]


CELL = "x = f()\n%gpumem who --new"


def test_baseline_of_cell_needs_no_search(fake_gpu, monkeypatch):
    variables = {"old": ones(3 * MIB)}
    baselines = HolderBaselines(current())
    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_objects", None)
        baselines.start_cell(CELL)
    variables["new"] = ones(4 * MIB)
    assert names(variables, since=baselines.cell) == ["new"]


def test_reuse_of_memory_freed_by_the_cell_is_not_new(fake_gpu):
    variables = {"replaced": ones(4 * MIB)}
    baselines = HolderBaselines(current())
    baselines.start_cell(CELL)
    del variables["replaced"]
    variables["fresh"] = ones(4 * MIB)
    assert names(variables, since=baselines.cell) == []


@pytest.mark.parametrize("text", ["%gpumem who --new", "# first\n%gpumem who --new", "x = f()\n%gpumem who"])
def test_other_cells_take_no_baseline(fake_gpu, text):
    baselines = HolderBaselines(current())
    baselines.start_cell(CELL)
    baselines.start_cell(text)
    assert baselines.cell is None
    assert baselines.comparison() == (None, "the last %gpumem who")


def test_baseline_keeps_no_tensor_alive(fake_gpu):
    variables = {"x": ones(3 * MIB)}
    baseline = baseline_of_search()
    before = torch.cuda.memory_allocated()
    variables.clear()
    assert torch.cuda.memory_allocated() == before - 3 * MIB
    assert len(baseline.references) == 1


@pytest.mark.skipif(torch.__version__ < (2, 10), reason="weak references to storages are used since PyTorch 2.10")
def test_baseline_of_host_memory():
    variables = {"old": torch.ones(54321)}
    baseline = baseline_of_search(host=True)
    address = variables.pop("old").data_ptr()
    candidates = []
    while len(candidates) < 50 and (not candidates or candidates[-1].data_ptr() != address):
        candidates.append(torch.ones(54321))
    variables["new"] = candidates[-1]
    assert "new" in names(variables, host=True, since=baseline)


def test_storage_referenced_only_by_graph_at_baseline_is_old(cpu_tensors_on_fake_gpu):
    x = torch.ones(70_000, requires_grad=True)
    loss = (x.exp() * 2).sum()
    baseline = baseline_of_search()
    saved_tensor = loss.grad_fn.next_functions[0][0].next_functions[0][0]._saved_result  # creates its Python object
    variables = {"x": x, "loss": loss, "saved": saved_tensor, "new": torch.ones(1000)}
    assert names(variables, since=baseline) == ["new"]
