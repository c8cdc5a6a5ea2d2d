"""CUPTI's records, byte for byte, and what it refuses."""

from __future__ import annotations

import ctypes

import pytest

from fakes.cupti import CTYPES, NCCL, RECORD, FakeCupti
from ipygpumem.errors import CuptiError
from ipygpumem.probes import cupti
from ipygpumem.probes.buffers import Buffers

pytest.importorskip("llvmlite")


def filled(library):
    """A buffer with what the library has recorded."""
    pool = Buffers.pool()
    library.cuptiActivityFlushAll(ctypes.c_uint32(1))
    ((address, valid),) = pool.full()
    pool.give_back(address)
    return address, valid


@pytest.fixture
def library():
    return FakeCupti()


def started(library):
    one = cupti.Cupti(library)
    one.start(Buffers.pool())
    return one


def test_the_layout_is_cuptis():
    assert cupti.RECORD.itemsize == RECORD.size == 128
    assert cupti.RECORD.fields["source"][1] == 120
    assert cupti.RECORD.fields["async"][1] == 72


@pytest.mark.parametrize("stride", [128, 136, 160])
def test_every_field_comes_out_of_records_of_any_length(stride):
    library = FakeCupti(stride=stride)
    one = started(library)
    library.alloc(0x7F0000000000, 5 << 30, NCCL, device=3, pooled=True)
    library.alloc(0x7F1000000000, 7, CTYPES)
    library.free(0x7F0000000000, device=3, pooled=True)
    records = one.records(*filled(library))
    assert records["address"].tolist() == [0x7F0000000000, 0x7F1000000000, 0x7F0000000000]
    assert records["bytes"].tolist() == [5 << 30, 7, 5 << 30]
    assert records["operation"].tolist() == [1, 1, 2]
    assert records["memory"].tolist() == [3, 3, 3]
    assert records["device"].tolist() == [3, 0, 3]
    assert records["async"].tolist() == [1, 0, 1]
    assert (records["time"][1:] > records["time"][:-1]).all()
    assert [one.text(int(pointer)) for pointer in records["source"]] == [NCCL, CTYPES, ""]


def test_a_single_record(library):
    one = started(library)
    library.alloc(0x7F0000000000, 64)
    assert one.records(*filled(library))["bytes"].tolist() == [64]


def test_a_buffer_without_records_and_one_that_is_too_short(library):
    one = started(library)
    library.alloc(0x7F0000000000, 64)
    address, _ = filled(library)
    assert len(one.records(address, 0)) == 0
    assert len(one.records(address, 100)) == 0


def test_records_of_another_kind_are_passed_over(library):
    one = started(library)
    library.alloc(0x7F0000000000, 64)
    library.write(RECORD.pack(3, *[0] * 21))
    assert one.records(*filled(library))["bytes"].tolist() == [64]


def test_records_outlive_their_buffer(library):
    one = started(library)
    library.alloc(0x7F0000000000, 64)
    address, valid = filled(library)
    records = one.records(address, valid)
    ctypes.memset(address, 0xFF, valid)
    assert records["bytes"].tolist() == [64]


def test_a_cupti_without_the_source_is_too_old(library, monkeypatch):
    monkeypatch.delattr(FakeCupti, "cuptiActivityEnableAllocationSource")
    with pytest.raises(CuptiError, match="too old: it has no cuptiActivityEnableAllocationSource"):
        cupti.Cupti(library)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (39, "another profiler holds CUPTI"),
        (35, "NVreg_RestrictProfilingToAdminUsers"),
        (43, "MIG"),
        (999, "^cuptiActivityEnable: CUPTI_ERROR_999$"),
    ],
)
def test_what_cupti_refuses_is_one_line(library, code, words):
    library.refuses["cuptiActivityEnable"] = code
    with pytest.raises(CuptiError, match=words) as caught:
        started(library)
    assert "\n" not in str(caught.value)


def test_no_library_is_loaded_here():
    with pytest.raises(CuptiError, match="no CUPTI is loaded"):
        cupti.Cupti()
