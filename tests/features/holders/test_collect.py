"""The walk and the allocator's books as one table: it adds up, device by device."""

from __future__ import annotations

import json
import re
import sys

import pytest
import torch
import torch._dynamo  # binds names of torch._C that a fake device may not replace meanwhile

import ipygpumem
from fakes.traffic import Traffic
from ipygpumem.core.errors import OptionError
from ipygpumem.features.holders import collect as session_holders
from ipygpumem.features.holders.baseline import storage_baseline
from ipygpumem.features.holders.collect import holders
from ipygpumem.features.holders.roots import Root, module_roots
from ipygpumem.sources.storages import TorchTypes

MIB = 1 << 20


@pytest.fixture
def traffic_of(fake_gpu, monkeypatch):
    traffic = Traffic(fake_gpu)
    monkeypatch.setattr(TorchTypes, "storage_locations", lambda _, *storage: traffic.storage_locations(*storage))
    with traffic:
        yield traffic


def ones(size, index=0):
    return torch.ones(size, dtype=torch.uint8, device=f"cuda:{index}")


def look(space, **options):
    return holders([Root("", space, "variable", "names")], **options)


def rest(found, device="cuda:0"):
    return {part.label: part.amount for part in found.total(device).rest}


def test_sizes_are_the_allocators_and_the_sum_is_its_counter(fake_gpu):
    space = {"x": ones(1000), "y": ones(3 * MIB + 1)}
    found = look(space)
    assert [(one.name, one.amount) for one in found.holders] == [("y", 3 * MIB + 512), ("x", 1024)]
    total = found.total("cuda:0")
    assert total.held + total.unreached == total.allocated == torch.cuda.memory_allocated()
    assert total.rest == ()


def test_what_no_object_was_found_for_has_its_own_lines(fake_gpu):
    ipygpumem.preload_pytorch()
    fake_gpu.alloc(5 * MIB)
    fake_gpu.alloc(7 * MIB, pool=(1, 0))
    x = ones(3 * MIB)
    found = look({"x": x})
    assert rest(found) == {
        "cuBLAS workspace, since the preload": 32 * MIB,
        "private pools, as of CUDA graphs": 7 * MIB,
        "not reachable from Python: autograd graph, C++, in flight": 5 * MIB,
    }
    total = found.total("cuda:0")
    assert total.held + total.unreached == total.allocated


def test_several_devices_have_their_own_sums(two_gpus):
    space = {"both": [ones(3 * MIB, 0), ones(5 * MIB, 1)]}
    found = look(space)
    assert [(one.name, one.device, one.amount) for one in found.holders] == [
        ("both", "cuda:1", 5 * MIB),
        ("both", "cuda:0", 3 * MIB),
    ]
    assert [(one.device, one.held, one.allocated) for one in found.totals] == [
        ("cuda:0", 3 * MIB, 3 * MIB),
        ("cuda:1", 5 * MIB, 5 * MIB),
    ]
    assert found.amount("both") == 8 * MIB
    assert found.amount("both", "cuda:1") == 5 * MIB
    assert [one.device for one in look(space, device=["cuda:1"]).holders] == ["cuda:1"]


def test_memory_that_is_not_pytorchs_is_told_and_not_counted(fake_gpu):
    """As a tensor has it that another process shares, or that was made over another library's memory."""
    mine, shared = ones(3 * MIB), ones(4 * MIB)
    storage = shared.untyped_storage()
    _, block = fake_gpu.storages[storage._cdata]
    fake_gpu.storages[storage._cdata] = (0, type(block)(0x7E00_0000_0000, 4 * MIB, None, 4 * MIB))
    try:
        found = look({"mine": mine, "shared": shared})
        assert [one.name for one in found.holders] == ["mine"]
        assert "4.0 MiB of tensors are not in PyTorch's allocator" in found.notes[0]
        total = found.total("cuda:0")
        assert total.held + total.unreached == total.allocated
    finally:
        fake_gpu.storages[storage._cdata] = (0, block)


def test_a_mark_tells_what_is_new(fake_gpu):
    space = {"old": ones(3 * MIB)}
    since = storage_baseline()
    space["new"] = ones(4 * MIB)
    assert [one.name for one in look(space, since=since).holders] == ["new"]
    assert look(space, since=since).total("cuda:0").held == 7 * MIB


def test_a_failed_kernel_leaves_names_and_says_what_is_not_known(fake_gpu):
    space = {"x": ones(3 * MIB)}
    fake_gpu.break_device()
    found = look(space)
    assert [one.name for one in found.holders] == ["x"]


def test_an_allocator_that_does_not_tell_its_blocks(make_gpu, monkeypatch):
    make_gpu()
    space = {"x": ones(1000)}

    def refuse(**_):
        raise RuntimeError("cudaMallocAsync does not yet support snapshot")

    monkeypatch.setattr(torch.cuda, "memory_snapshot", refuse)
    found = look(space)
    assert [one.amount for one in found.holders] == [1024]
    assert found.total("cuda:0").allocated == 1024


def test_main_memory_counts_where_it_is_asked_for(fake_gpu):
    space = {"x": ones(MIB), "host": torch.ones(12345)}
    assert [one.name for one in look(space).holders] == ["x"]
    assert "host" in [one.name for one in look(space, host=True).holders]
    assert look(space, host=True).total("cpu").allocated is None


def test_the_public_function_names_main_and_modules(fake_gpu, monkeypatch):
    module = type(sys)("a_module_of_mine")
    module.__file__ = "/home/somebody/a_module_of_mine.py"
    module.table = ones(3 * MIB)
    monkeypatch.setitem(sys.modules, "a_module_of_mine", module)
    main = type(sys)("__main__")
    main.big_one = ones(5 * MIB)
    monkeypatch.setitem(sys.modules, "__main__", main)
    found = ipygpumem.holders()
    assert [(one.name, one.place) for one in found.largest(2)] == [
        ("big_one", "variable"),
        ("a_module_of_mine.table", "module"),
    ]
    assert ipygpumem.holders is holders


def test_as_data_and_as_text(fake_gpu):
    space = {"x": ones(3 * MIB)}
    found = look(space)
    assert json.loads(json.dumps(found.to_dict()))["holders"][0]["name"] == "x"
    assert found.to_text() == "    3.0 MiB  x  (cuda:0)"
    assert repr(found) == "<Holders: x 3.0 MiB (1 tensor)>"
    assert look({}).freeable("cuda:0", "traceback") == 0


def test_without_torch_there_is_nobody(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert "torch is not imported" in holders().notes[0]


def test_your_own_modules_come_before_the_libraries(monkeypatch):
    module = type(sys)("zz_mine")
    module.__file__ = "/home/somebody/zz_mine.py"
    monkeypatch.setitem(sys.modules, "zz_mine", module)
    labels = [root.label for root in module_roots([])]
    assert labels.index("zz_mine.") < labels.index("json.")
    assert labels.index("zz_mine.") < labels.index("torch.")
    assert not any(label.startswith("ipygpumem.") for label in labels)


def test_a_small_view_of_a_large_storage_has_a_remark(fake_gpu):
    (one,) = look({"small": ones(64 * MIB)[:10]}).holders
    assert one.note == "small is a view of 10 bytes that keeps 64.0 MiB: .clone() would keep only the view"


def test_a_key_that_python_does_not_write_has_a_name(fake_gpu):
    found = look({"d": {10**5000: ones(1000), (1, 10**5000): ones(2000)}})
    assert [one.amount for one in found.holders] == [3072]
    assert {"d[<int>]", "d[<tuple>]"} == {one.name for holder in found.holders for one in holder.parts}


def test_a_sparse_tensor_is_no_view_of_its_indices():
    found = look({"sparse": torch.ones(64, 64).to_sparse()}, host=True)
    assert found.holders
    assert not [note for note in found.notes if "clone" in note]


def test_new_is_what_lies_where_something_old_was_freed(fake_gpu):
    """PyTorch gives addresses out again at once."""
    space = {"kept": ones(3 * MIB), "replaced": ones(4 * MIB)}
    since = storage_baseline()
    address = space["replaced"].untyped_storage().data_ptr()
    del space["replaced"]
    space["fresh"] = ones(4 * MIB)
    assert space["fresh"].untyped_storage().data_ptr() == address, "the fake allocator does as the real one"
    assert [one.name for one in look(space, since=since).holders] == ["fresh"]
    space["another"] = space["kept"][5:]
    assert [one.name for one in look(space, since=since).holders] == ["fresh"], "another tensor, no other storage"


def test_a_mark_keeps_nothing(fake_gpu):
    space = {"x": ones(3 * MIB)}
    since = storage_baseline()
    before = torch.cuda.memory_allocated()
    space.clear()
    assert torch.cuda.memory_allocated() == before - 3 * MIB
    assert len(since.references) >= 1


def test_in_main_memory_a_mark_tells_storages_apart():
    space = {"old": torch.ones(54321)}
    since = storage_baseline(host=True)
    address = space.pop("old").data_ptr()
    others = []
    while len(others) < 50 and (not others or others[-1].data_ptr() != address):
        others.append(torch.ones(54321))
    space["new"] = others[-1]
    found = holders([Root("", space, "variable", "names")], host=True, since=since)
    assert "new" in [one.name for one in found.holders]


def test_what_only_a_graph_kept_at_the_mark_is_old(traffic_of):
    """Saved for backward: no Python object was there, and one is later."""
    x = torch.ones(70_000, requires_grad=True)
    loss = (x.exp() * 2).sum()
    since = storage_baseline()
    saved = loss.grad_fn.next_functions[0][0].next_functions[0][0]._saved_result
    space = {"x": x, "loss": loss, "saved": saved, "new": torch.ones(1000)}
    assert [one.name for one in look(space, since=since).holders] == ["new"]


def test_what_a_thread_does_while_it_looks_is_its_own_line(fake_gpu, monkeypatch):
    """Freed meanwhile: nobody's, and not another process's. Allocated meanwhile: not unreachable."""
    space = {"x": ones(3 * MIB), "going": ones(5 * MIB)}
    real, threads = session_holders.search_holders, []

    def walk(*arguments, **options):
        found = real(*arguments, **options)
        del space["going"]
        threads.append(ones(7 * MIB))
        return found

    monkeypatch.setattr(session_holders, "search_holders", walk)
    fake_gpu.alloc(12 * MIB)
    found = look(space)
    assert found.notes == ()
    total = found.total("cuda:0")
    assert total.held + total.unreached == total.allocated == torch.cuda.memory_allocated()
    assert [one.name for one in found.holders] == ["x"]
    assert rest(found) == {
        "not reachable from Python: autograd graph, C++, in flight": 12 * MIB,
        "allocated meanwhile by other threads": 7 * MIB,
    }


def notes(space):
    found = look(space, host=True)
    return {one.name: one.note for one in found.holders if one.name in space and one.note}


def test_advice_is_for_what_one_holder_keeps_alone():
    x = torch.ones(MIB, requires_grad=True)
    trunk = x.exp().sin()
    space = {"x": x, "a": trunk.sum(), "b": trunk.mean()}
    del trunk
    assert notes(space) == {"a": "a and b share 4.0 MiB of activations kept by their autograd graphs"}
    space["c"] = space["b"] * 2
    assert notes(space) == {"a": "a, b and c share 4.0 MiB of activations kept by their autograd graphs"}
    space["d"] = space["b"] * 3
    assert notes(space) == {"a": "a and others share 4.0 MiB of activations kept by their autograd graphs"}
    del space["b"], space["c"], space["d"]
    assert notes(space) == {"a": "the autograd graph of a keeps 4.0 MiB of activations: keep .item() instead"}
    space["losses"] = [space.pop("a"), space["x"].exp().sum()]
    assert notes(space) == {
        "losses": "the autograd graphs of 2 tensors in losses keep 8.0 MiB of activations: keep .item() instead"
    }


@pytest.mark.parametrize("device", ["cuda:1", "1", 1, [1], ("cuda:1",), torch.device("cuda:1")])
def test_a_device_as_people_write_it(two_gpus, device):
    space = {"a": ones(3 * MIB), "b": ones(5 * MIB, 1), "h": torch.ones(MIB)}
    assert [one.name for one in look(space, device=device).holders] == ["b"]
    assert [one.name for one in look(space, device="0, 1").holders] == ["b", "a"]


def test_main_memory_is_a_device_too(fake_gpu):
    space = {"a": ones(3 * MIB), "h": torch.ones(MIB)}
    assert "h" in {one.name for one in look(space, device="cpu").holders}
    assert {one.device for one in look(space, device=["cpu", 0]).holders} == {"cpu", "cuda:0"}
    assert {one.device for one in look(space, device="cpu").totals} == {"cpu"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:9"}, "there is no device cuda:9: this process sees 1"),
        ({"device": ["foo"]}, "'foo' is not a device: write cuda:0, or 0"),
        ({"device": []}, "device names no device: None is for all"),
        ({"device": 1.5}, "'1.5' is not a device: write cuda:0, or 0"),
        ({"limit": "x"}, "limit must be a number of seconds of at least 0, not 'x'"),
        ({"limit": float("nan")}, "limit must be a number of seconds of at least 0, not nan"),
        ({"since": 5}, "since must be a StorageBaseline, not int"),
        ({"roots": {"x": 1}}, "roots must be a list of Root, or None, not dict"),
        ({"roots": ["x"]}, "roots must be a list of Root, or None, not list"),
    ],
)
def test_arguments_that_mean_nothing(fake_gpu, options, message):
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        holders(**options)
