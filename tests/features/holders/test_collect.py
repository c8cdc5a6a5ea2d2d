"""The sizes of all holders on a device add up to the memory usage that PyTorch reports."""

from __future__ import annotations

import json
import re
import sys

import pytest
import torch
import torch._dynamo  # binds names of torch._C, which must happen before a fake GPU replaces them

import ipygpumem
from fakes.builds import needs_saved_tensors
from ipygpumem.core.errors import OptionError
from ipygpumem.features.holders import collect
from ipygpumem.features.holders.collect import holders
from ipygpumem.features.holders.reference_graph import SearchRoot
from ipygpumem.features.holders.table import holders_tables
from ipygpumem.sources import allocator

MIB = 1 << 20


def ones(nbytes, index=0):
    return torch.ones(nbytes, dtype=torch.uint8, device=f"cuda:{index}")


def find(variables, **options):
    return holders([SearchRoot("", variables, "variable", "names")], **options)


def names(variables, **options):
    return [holder.name for holder in find(variables, **options).holders]


def remainders(result):
    return {part.label: part.amount for part in result.total("cuda:0").rest}


def assert_adds_up(result, device="cuda:0"):
    total = result.total(device)
    assert total.held + total.unreached == total.allocated == torch.cuda.memory_allocated(device)


def test_sizes_match_the_allocator(fake_gpu):
    variables = {"x": ones(1000), "y": ones(3 * MIB + 1)}
    result = find(variables)
    assert [(holder.name, holder.amount) for holder in result.holders] == [("y", 3 * MIB + 512), ("x", 1024)]
    assert result.total("cuda:0").rest == ()
    assert_adds_up(result)


def test_memory_without_a_python_object_is_listed_by_cause(fake_gpu):
    ipygpumem.preload_pytorch()
    fake_gpu.alloc(5 * MIB)
    fake_gpu.alloc(7 * MIB, pool=(1, 0))
    variables = {"x": ones(3 * MIB)}
    result = find(variables)
    assert remainders(result) == {
        "cuBLAS workspace from the preload": 32 * MIB,
        "private pools, such as those of CUDA graphs": 7 * MIB,
        "not reachable from Python: autograd graphs, C++ objects": 5 * MIB,
    }
    assert_adds_up(result)


@pytest.mark.parametrize("listed", [True, False])
def test_lines_that_allocated_memory_without_a_python_object(fake_gpu, monkeypatch, listed):
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
    variables = {"x": ones(3 * MIB)}
    for size in (30, 20):
        fake_gpu.alloc(size * MIB)
    fake_gpu.alloc(5 * MIB)
    fake_gpu.alloc(7 * MIB, pool=(1, 0))
    torch.cuda.memory._record_memory_history(enabled=None)
    fake_gpu.alloc(1 * MIB)
    if not listed:
        if not hasattr(torch._C, "_cuda_allocationTraceback"):
            pytest.skip("PyTorch 2.12 added _allocation_traceback")
        segments = allocator.segments()
        for block in (block for segment in segments for block in segment["blocks"]):
            del block["frames"]
        monkeypatch.setattr(allocator, "segments", lambda: segments)
    first = sys._getframe().f_code.co_firstlineno
    result = find(variables, label=lambda _, line, __: f"line {line - first}")
    assert [part.lines for part in result.totals[0].rest] == [
        (("line 7", 7 * MIB),),
        (("line 5", 50 * MIB), ("line 6", 5 * MIB)),
    ]
    assert_adds_up(result)
    (table,) = holders_tables(result)
    labels = [(row.label, row.cells[0]) for row in table.rows if row.level == 2]
    assert labels[:2] == [("allocated by line 7", "7.0 MiB"), ("allocated by line 5", "50.0 MiB")]


def test_sums_per_device(two_gpus):
    variables = {"both": [ones(3 * MIB, 0), ones(5 * MIB, 1)]}
    result = find(variables)
    assert [(holder.name, holder.device, holder.amount) for holder in result.holders] == [
        ("both", "cuda:1", 5 * MIB),
        ("both", "cuda:0", 3 * MIB),
    ]
    assert [(total.device, total.held, total.allocated) for total in result.totals] == [
        ("cuda:0", 3 * MIB, 3 * MIB),
        ("cuda:1", 5 * MIB, 5 * MIB),
    ]
    assert result.amount("both") == 8 * MIB
    assert result.amount("both", "cuda:1") == 5 * MIB
    assert [holder.device for holder in find(variables, device=["cuda:1"]).holders] == ["cuda:1"]


def test_memory_outside_pytorch_allocator_is_reported_separately(fake_gpu):
    pytorch_tensor, external_tensor = ones(3 * MIB), ones(4 * MIB)
    storage = external_tensor.untyped_storage()
    _, block = fake_gpu.storages[storage._cdata]
    fake_gpu.storages[storage._cdata] = (0, type(block)(0x7E00_0000_0000, 4 * MIB, None, 4 * MIB))
    try:
        result = find({"own": pytorch_tensor, "shared": external_tensor})
        assert [holder.name for holder in result.holders] == ["own"]
        assert "4.0 MiB of tensor memory is not counted because PyTorch did not allocate it" in result.notes[0]
        assert_adds_up(result)
    finally:
        fake_gpu.storages[storage._cdata] = (0, block)


def test_names_after_failed_kernel(fake_gpu):
    variables = {"x": ones(3 * MIB)}
    fake_gpu.break_device()
    assert names(variables) == ["x"]


def test_allocator_without_block_list(fake_gpu, monkeypatch):
    variables = {"x": ones(1000)}

    def refuse(**_):
        raise RuntimeError("cudaMallocAsync does not yet support snapshot")

    monkeypatch.setattr(torch.cuda, "memory_snapshot", refuse)
    result = find(variables)
    assert [holder.amount for holder in result.holders] == [1024]
    assert result.total("cuda:0").allocated == 1024


def test_host_memory_is_included_on_request(fake_gpu):
    variables = {"x": ones(MIB), "host": torch.ones(12345)}
    assert names(variables) == ["x"]
    assert "host" in names(variables, host=True)
    assert find(variables, host=True).total("cpu").allocated is None
    assert "host" in names(variables, device="cpu")
    assert {holder.device for holder in find(variables, device=["cpu", 0]).holders} == {"cpu", "cuda:0"}
    assert {total.device for total in find(variables, device="cpu").totals} == {"cpu"}


@pytest.mark.parametrize("device", ["cuda:1", "1", 1, [1], ("cuda:1",), torch.device("cuda:1")])
def test_device_specifications(two_gpus, device):
    variables = {"a": ones(3 * MIB), "b": ones(5 * MIB, 1), "host": torch.ones(MIB)}
    assert names(variables, device=device) == ["b"]
    assert names(variables, device="0, 1") == ["b", "a"]


def test_public_function_starts_at_main_and_modules(fake_gpu, monkeypatch):
    module = type(sys)("own_module")
    module.__file__ = "/home/me/own_module.py"
    module.table = ones(3 * MIB)
    monkeypatch.setitem(sys.modules, "own_module", module)
    main = type(sys)("__main__")
    main.variable_of_main = ones(5 * MIB)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert [(holder.name, holder.place) for holder in ipygpumem.holders().largest(2)] == [
        ("variable_of_main", "variable"),
        ("own_module.table", "module"),
    ]
    assert ipygpumem.holders is holders


def test_holders_as_dict_and_text(fake_gpu):
    variables = {"x": ones(3 * MIB)}
    result = find(variables)
    assert json.loads(json.dumps(result.to_dict()))["holders"][0]["name"] == "x"
    assert result.to_text() == "    3.0 MiB  x  (cuda:0)"
    assert repr(result) == "<Holders: x 3.0 MiB (1 tensor)>"
    assert find({}).freeable("cuda:0", "traceback") == 0


def test_without_torch_there_are_no_tensors(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert holders().notes == ("there are no tensors because torch is not imported",)


def test_unprintable_dict_keys(fake_gpu):
    result = find({"d": {10**5000: ones(1000), (1, 10**5000): ones(2000)}})
    assert [holder.amount for holder in result.holders] == [3072]
    assert {"d[<int>]", "d[<tuple>]"} == {part.name for holder in result.holders for part in holder.parts}


def test_concurrent_allocations_during_search(fake_gpu, monkeypatch):
    variables = {"x": ones(3 * MIB), "freed": ones(5 * MIB)}
    allocated = []

    def search(*arguments, **options):
        result = search_holders(*arguments, **options)
        del variables["freed"]
        allocated.append(ones(7 * MIB))
        return result

    search_holders = collect.search_holders
    monkeypatch.setattr(collect, "search_holders", search)
    fake_gpu.alloc(12 * MIB)
    result = find(variables)
    assert result.notes == ()
    assert [holder.name for holder in result.holders] == ["x"]
    assert remainders(result) == {
        "not reachable from Python: autograd graphs, C++ objects": 12 * MIB,
        "allocated by other threads during the search": 7 * MIB,
    }
    assert_adds_up(result)


def test_note_on_small_view_of_large_storage(fake_gpu):
    (holder,) = find({"small": ones(64 * MIB)[:10]}).holders
    note = "small, a view of 10 bytes, keeps 64.0 MiB alive; to avoid this, replace the view with its .clone()"
    assert holder.note == note


def test_sparse_tensor_is_not_a_view_of_its_indices():
    result = find({"sparse": torch.ones(64, 64).to_sparse()}, host=True)
    assert result.holders
    assert not [note for note in result.notes if "clone" in note]


@needs_saved_tensors
def test_notes_on_autograd_graphs():
    def notes():
        result = find(variables, host=True)
        return {holder.name: holder.note for holder in result.holders if holder.name in variables and holder.note}

    x = torch.ones(MIB, requires_grad=True)
    external_tensor = x.exp().sin()
    variables = {"x": x, "a": external_tensor.sum(), "b": external_tensor.mean()}
    del external_tensor
    assert notes() == {"a": "the autograd graphs of a and b keep the same 4.0 MiB of activations alive"}
    variables["c"] = variables["b"] * 2
    assert notes() == {"a": "the autograd graphs of a, b and c keep the same 4.0 MiB of activations alive"}
    variables["d"] = variables["b"] * 3
    assert notes() == {"a": "the autograd graphs of a and others keep the same 4.0 MiB of activations alive"}
    del variables["b"], variables["c"], variables["d"]
    advice = "to avoid this, store the result of .item() instead"
    assert notes() == {"a": f"the autograd graph of a keeps 4.0 MiB of activations alive; {advice}"}
    variables["losses"] = [variables.pop("a"), x.exp().sum()]
    assert notes() == {
        "losses": f"the autograd graphs of 2 tensors in losses keep 8.0 MiB of activations alive; {advice}"
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:9"}, "there is no device cuda:9: this process sees 1 device"),
        ({"device": ["foo"]}, "'foo' is not a device: use, for example, cuda:0 or 0"),
        ({"device": []}, "device is empty: use None to select all devices"),
        ({"device": 1.5}, "'1.5' is not a device: use, for example, cuda:0 or 0"),
        ({"limit": "x"}, "limit must be a nonnegative number of seconds, but got 'x'"),
        ({"limit": float("nan")}, "limit must be a nonnegative number of seconds, but got nan"),
        ({"since": 5}, "since must be a StorageBaseline or None, but got int"),
        ({"roots": {"x": 1}}, "roots must be a list of SearchRoot objects or None, but got dict"),
        ({"roots": ["x"]}, "roots must be a list of SearchRoot objects or None, but got list"),
    ],
)
def test_invalid_arguments(fake_gpu, options, message):
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        holders(**options)
