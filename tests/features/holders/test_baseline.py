"""Storages that are new since a baseline."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo  # binds names of torch._C, which a fake GPU must not replace meanwhile

from fakes.traffic import Traffic
from ipygpumem.features.holders.baseline import storage_baseline
from ipygpumem.features.holders.collect import find_holders, holders
from ipygpumem.features.holders.roots import Root
from ipygpumem.measurement.runtime import current
from ipygpumem.sources.storages import TorchTypes

MIB = 1 << 20


@pytest.fixture
def cpu_tensors_on_fake_gpu(fake_gpu, monkeypatch):
    """Each tensor in main memory takes a block of the fake GPU."""
    traffic = Traffic(fake_gpu)
    monkeypatch.setattr(TorchTypes, "storage_locations", lambda _, *storage: traffic.storage_locations(*storage))
    with traffic:
        yield


def ones(nbytes):
    return torch.ones(nbytes, dtype=torch.uint8, device="cuda")


def names(variables, **options):
    return [holder.name for holder in holders([Root("", variables, "variable", "names")], **options).holders]


def test_only_new_storages_are_listed(fake_gpu):
    variables = {"old": ones(3 * MIB)}
    baseline = storage_baseline()
    variables["new"] = ones(4 * MIB)
    assert names(variables, since=baseline) == ["new"]
    assert holders([Root("", variables, "variable", "names")], since=baseline).total("cuda:0").held == 7 * MIB


@pytest.mark.parametrize("source", ["baseline", "search"])
def test_a_storage_at_the_address_of_a_freed_one_is_new(fake_gpu, source):
    """PyTorch reuses addresses at once."""
    variables = {"kept": ones(3 * MIB), "replaced": ones(4 * MIB)}
    baseline = storage_baseline() if source == "baseline" else find_holders(current(), [])[1]
    address = variables["replaced"].untyped_storage().data_ptr()
    del variables["replaced"]
    variables["fresh"] = ones(4 * MIB)
    assert variables["fresh"].untyped_storage().data_ptr() == address, "the fake allocator works like PyTorch's"
    assert names(variables, since=baseline) == ["fresh"]
    variables["view"] = variables["kept"][5:]
    assert names(variables, since=baseline) == ["fresh"], "a view is a new tensor, but no new storage"


def test_a_search_sees_the_same_storages_as_a_baseline(fake_gpu):
    variables = {"x": ones(3 * MIB), "storages": [ones(5 * MIB).untyped_storage()]}
    _, from_search = find_holders(current(), [Root("", variables, "variable", "names")])
    assert from_search == storage_baseline()
    assert len(from_search.storages) == 2


def test_a_search_of_one_device_knows_the_blocks_of_the_others(two_gpus):
    variables = {"x": ones(3 * MIB), "y": torch.ones(MIB, dtype=torch.uint8, device="cuda:1")}
    _, baseline = find_holders(current(), [], device=0)
    variables["z"] = torch.ones(MIB, dtype=torch.uint8, device="cuda:1")
    assert names(variables, since=baseline) == ["z"]


def test_a_baseline_of_blocks_only(fake_gpu, monkeypatch):
    variables = {"old": ones(3 * MIB)}
    baseline = storage_baseline(blocks_only=True)
    assert baseline.references == ()
    variables["new"] = ones(4 * MIB)
    assert names(variables, since=baseline) == ["new"]


def test_a_baseline_keeps_no_tensor_alive(fake_gpu):
    variables = {"x": ones(3 * MIB)}
    baseline = storage_baseline()
    before = torch.cuda.memory_allocated()
    variables.clear()
    assert torch.cuda.memory_allocated() == before - 3 * MIB
    assert len(baseline.references) == 1


def test_a_baseline_of_main_memory():
    variables = {"old": torch.ones(54321)}
    baseline = storage_baseline(host=True)
    address = variables.pop("old").data_ptr()
    others = []
    while len(others) < 50 and (not others or others[-1].data_ptr() != address):
        others.append(torch.ones(54321))
    variables["new"] = others[-1]
    assert "new" in names(variables, host=True, since=baseline)


def test_a_storage_that_only_a_graph_kept_at_the_baseline_is_old(cpu_tensors_on_fake_gpu):
    x = torch.ones(70_000, requires_grad=True)
    loss = (x.exp() * 2).sum()
    baseline = storage_baseline()
    saved = loss.grad_fn.next_functions[0][0].next_functions[0][0]._saved_result  # creates its Python object
    variables = {"x": x, "loss": loss, "saved": saved, "new": torch.ones(1000)}
    assert names(variables, since=baseline) == ["new"]
