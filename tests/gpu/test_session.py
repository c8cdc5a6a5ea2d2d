"""Several devices in one session: contexts created by copies, session history, logs and values in notebooks."""

import json

import pytest

import ipygpumem
from ipygpumem.core.tables import text_tables
from ipygpumem.core.units import MIB
from ipygpumem.features.history.model import LIMIT, MIME, changed_rows, output_metadata, report_rows, rows_from_summary
from ipygpumem.features.history.table import TablePage, history_tables
from ipygpumem.features.report.short_report import ShortReport

TWO_GPUS = """
import torch
if torch.cuda.device_count() < 2:
    emit(skip="the test needs two GPUs")
    raise SystemExit
import ipygpumem
from ipygpumem.features.report.short_report import ShortReport
ipygpumem.preload_pytorch()
x = torch.ones(64 << 20, dtype=torch.uint8, device="cuda:0")
"""
EMIT_VALUES = """
device = m.report.devices.get("cuda:1")
emit(text=ShortReport(m.report).text(), devices=sorted(m.report.devices), started=device is not None and device.started,
     outside=None if device is None else device.outside, held=None if device is None else device.held,
     first_held=m.report.devices["cuda:0"].held)
"""


def run_on_two_gpus(run_python, code):
    values = run_python(TWO_GPUS + code)
    if "skip" in values:
        pytest.skip(values["skip"])
    return values


def test_unused_device_gets_no_context(run_python):
    values = run_on_two_gpus(
        run_python,
        "with ipygpumem.measure() as m:\n    y = x + 1\n"
        "emit(devices=sorted(m.report.devices), contexts=[torch._C._cuda_hasPrimaryContext(i) for i in (0, 1)])",
    )
    assert values["devices"] == ["cuda:0"]
    assert values["contexts"] == [True, False]


def test_copy_creates_context_and_note(run_python):
    values = run_on_two_gpus(
        run_python, "with ipygpumem.measure(synchronize=True) as m:\n    y = x.to('cuda:1')\n" + EMIT_VALUES
    )
    assert values["started"] is True
    assert values["held"] == 64 * MIB
    assert values["first_held"] == 0
    assert values["outside"] > 200 * MIB
    assert "cuda:1: its first tensor created a CUDA context, which exists until the process ends" in values["text"]


def test_context_without_tensor_is_noted(run_python):
    values = run_on_two_gpus(
        run_python, "with ipygpumem.measure() as m:\n    torch.cuda.synchronize(1)\n" + EMIT_VALUES
    )
    assert values["started"] is True
    assert values["held"] == 0
    assert "cuda:1: a copy between devices, NCCL, or another CUDA call created a CUDA context" in values["text"]


def test_each_device_has_a_row_and_peaks_are_not_added(torch_on_two_gpus):
    tensors = []
    with ipygpumem.measure() as m:
        for index, mib in ((0, 100), (1, 300)):
            tensors.append(torch_on_two_gpus.empty(mib * MIB, dtype=torch_on_two_gpus.uint8, device=f"cuda:{index}"))
    rows = {row.device: row for row in changed_rows([m.report])}
    assert {name: (row.held, row.peak) for name, row in rows.items()} == {
        "cuda:0": (100 * MIB, 100 * MIB),
        "cuda:1": (300 * MIB, 300 * MIB),
    }
    text = text_tables(history_tables(list(rows.values()), TablePage()))
    assert "+400.0 MiB" not in text
    assert "+300.0 MiB" in text
    assert len(ShortReport(m.report).text().splitlines()) >= 2


def test_real_report_round_trips_through_metadata(torch, tmp_path):
    ipygpumem.reports.log = tmp_path / "s.jsonl"
    try:
        with ipygpumem.measure() as m:
            torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
    finally:
        ipygpumem.reports.log = None
    (restored,) = ipygpumem.load_reports(tmp_path / "s.jsonl")
    assert restored == m.report
    data = json.dumps(output_metadata(m.report)[MIME])
    assert len(data.encode()) <= LIMIT
    for row, original in zip(rows_from_summary(json.loads(data)), report_rows(m.report), strict=True):
        assert (row.held, row.peak, row.outside, row.capacity) == (
            original.held,
            original.peak,
            original.outside,
            original.capacity,
        )
