"""Tests of the binary layout of CUPTI records and of CUPTI errors."""

from __future__ import annotations

import ctypes

import pytest

from fakes.cupti import CTYPES, NCCL, RECORD, FakeCupti
from ipygpumem.core.errors import CuptiError
from ipygpumem.sources import host
from ipygpumem.sources.cupti import library as cupti
from ipygpumem.sources.cupti.buffers import ActivityBuffers

pytest.importorskip("llvmlite")


def filled(library):
    """Return the address and size of a buffer with the library's records."""
    buffers = ActivityBuffers.shared()
    library.cuptiActivityFlushAll(ctypes.c_uint32(1))
    ((address, valid),) = buffers.completed()
    buffers.recycle(address)
    return address, valid


@pytest.fixture
def library():
    return FakeCupti()


def start_library(library):
    session = cupti.CuptiLibrary(library)
    session.start(ActivityBuffers.shared())
    return session


def test_record_layout():
    assert cupti.RECORD.itemsize == RECORD.size == 128
    assert cupti.RECORD.fields["source"][1] == 120
    assert cupti.RECORD.fields["async"][1] == 72


@pytest.mark.parametrize("stride", [128, 136, 160])
def test_all_fields_of_records_of_any_size(stride):
    library = FakeCupti(stride=stride)
    session = start_library(library)
    library.alloc(0x7F0000000000, 5 << 30, NCCL, device=3, pooled=True)
    library.alloc(0x7F1000000000, 7, CTYPES)
    library.free(0x7F0000000000, device=3, pooled=True)
    records = session.records(*filled(library))
    assert records["address"].tolist() == [0x7F0000000000, 0x7F1000000000, 0x7F0000000000]
    assert records["bytes"].tolist() == [5 << 30, 7, 5 << 30]
    assert records["operation"].tolist() == [1, 1, 2]
    assert records["memory"].tolist() == [3, 3, 3]
    assert records["device"].tolist() == [3, 0, 3]
    assert records["async"].tolist() == [1, 0, 1]
    assert (records["time"][1:] > records["time"][:-1]).all()
    assert [session.text(int(pointer)) for pointer in records["source"]] == [NCCL, CTYPES, ""]


def test_single_record(library):
    session = start_library(library)
    library.alloc(0x7F0000000000, 64)
    assert session.records(*filled(library))["bytes"].tolist() == [64]


def test_buffer_without_records(library):
    session = start_library(library)
    library.alloc(0x7F0000000000, 64)
    address, _ = filled(library)
    assert len(session.records(address, 0)) == 0


def test_records_of_other_kinds_are_skipped(library):
    session = start_library(library)
    library.alloc(0x7F0000000000, 64)
    library.write(RECORD.pack(3, *[0] * 21))
    assert session.records(*filled(library))["bytes"].tolist() == [64]


def test_records_outlive_their_buffer(library):
    session = start_library(library)
    library.alloc(0x7F0000000000, 64)
    address, valid = filled(library)
    records = session.records(address, valid)
    ctypes.memset(address, 0xFF, valid)
    assert records["bytes"].tolist() == [64]


@pytest.mark.parametrize("count", [1, 3])
def test_records_of_unknown_version_raise(count):
    library = FakeCupti(stride=112)  # CUpti_ActivityMemory3, before the source
    session = cupti.CuptiLibrary(library)
    session.start(ActivityBuffers.shared())
    for i in range(count):
        library.write(bytes(112))
        library.clock += i
    with pytest.raises(
        CuptiError, match=r"^records of this version of CUPTI have 112 bytes, but at least 128 are required$"
    ):
        session.records(*filled(library))


def test_cupti_before_cuda_12_8_is_too_old(library, monkeypatch):
    monkeypatch.delattr(FakeCupti, "cuptiActivityEnableAllocationSource")
    with pytest.raises(CuptiError, match="too old: it has no cuptiActivityEnableAllocationSource"):
        cupti.CuptiLibrary(library)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (39, "another profiler or debugger is using CUPTI"),
        (35, "NVreg_RestrictProfilingToAdminUsers"),
        (15, "not initialized"),
        (27, "does not support this device"),
        (33, "virtual GPU"),
        (40, "no permission to profile this virtual GPU"),
        (41, "confidential computing"),
        (43, "MIG"),
        (45, "WSL"),
        (999, "^cuptiActivityEnable: CUPTI_ERROR_999$"),
    ],
)
def test_cupti_errors_are_one_line(library, code, words):
    library.refuses["cuptiActivityEnable"] = code
    with pytest.raises(CuptiError, match=words) as exc_info:
        start_library(library)
    assert "\n" not in str(exc_info.value)


def test_library_not_loaded(no_cupti):
    with pytest.raises(CuptiError, match="the CUPTI library is not loaded"):
        cupti.CuptiLibrary()


def put_maps(monkeypatch, tmp_path, line):
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 00000000 00:00 1 {line}\n")
    monkeypatch.setattr(host, "_MAPS", str(maps))


@pytest.mark.parametrize("line", ["/gone/libcupti.so.13 (deleted)", "/nowhere/lib with space/libcupti.so.12"])
def test_loaded_library_cannot_be_opened(monkeypatch, tmp_path, line):
    put_maps(monkeypatch, tmp_path, line)
    with pytest.raises(CuptiError, match=r"^the CUPTI library cannot be opened: ") as exc_info:
        cupti.CuptiLibrary()
    assert "\n" not in str(exc_info.value)


def test_different_library_of_that_name(monkeypatch, tmp_path):
    process_library = ctypes.CDLL(None)
    put_maps(monkeypatch, tmp_path, "/opt/libcupti.so.13")
    monkeypatch.setattr(cupti.ctypes, "CDLL", lambda path, mode: process_library)
    with pytest.raises(CuptiError, match="too old: it has no cuptiActivityEnableAllocationSource"):
        cupti.CuptiLibrary()


def test_systems_other_than_linux(monkeypatch):
    monkeypatch.setattr(cupti.sys, "platform", "win32")
    with pytest.raises(CuptiError, match=r"^recording with CUPTI is supported only on Linux$"):
        cupti.CuptiLibrary()


def test_missing_text_is_empty(library):
    assert cupti.CuptiLibrary(library).text(0) == ""


def test_address_reused_for_another_text(library):
    session, text = cupti.CuptiLibrary(library), ctypes.create_string_buffer(NCCL.encode(), 256)
    assert session.text(ctypes.addressof(text)) == NCCL
    text.value = CTYPES.encode()
    assert session.text(ctypes.addressof(text)) == CTYPES
