from __future__ import annotations

import csv
import dataclasses
import gc
import io
import json
import os
import pickle
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from fakes.reports import report
from fakes.sessions import cell, session
from ipygpumem import OptionError
from ipygpumem.features.history.compact_list import CompactList
from ipygpumem.features.history.reports import Reports
from ipygpumem.features.lines.model import DeviceLines


def test_lookup_by_cell():
    reports = Reports()
    first, second, second_rerun = report(cell=1, cell_id="a"), report(cell=2, cell_id="b"), report(cell=2, cell_id="a")
    for item in (first, second, second_rerun):
        reports.append(item)
    assert list(reports) == [first, second, second_rerun]
    assert (len(reports), reports[-1], reports[:2]) == (3, second_rerun, [first, second])
    assert reports.cell(1) is first
    assert reports.cell(2) is second_rerun, "the newest report of the cell"
    assert reports.cell("a") is second_rerun
    assert reports.cell("b") is second
    for key in (7, "z"):
        with pytest.raises(KeyError):
            reports.cell(key)


def test_none_is_not_a_cell():
    reports = Reports()
    reports.append(report(cell=None))
    with pytest.raises(KeyError):
        reports.cell(None)


def test_repr_shows_count_and_newest():
    reports = Reports()
    for number in range(10):
        reports.append(report(cell=number))
    assert repr(reports).startswith("<10 reports, newest last: [<Report In [7]")


def test_limit_drops_the_oldest(monkeypatch):
    session_reports = Reports(limit=5)
    for item in session(12):
        session_reports.append(item)
    assert [item.cell for item in session_reports] == [8, 9, 10, 11, 12]
    assert (len(session_reports), session_reports.dropped) == (5, 7)
    assert session_reports[0].cell == 8
    assert session_reports.earlier(cell(20, cell_id="id3")) is None, "dropped reports are not compared"
    assert session_reports.earlier(cell(20, cell_id="id9")) is session_reports[1]


def test_memory_of_ten_thousand_reports_is_limited():
    tracemalloc.start()
    try:
        session_reports = Reports(limit=1000)
        start = tracemalloc.get_traced_memory()[0]
        pickled = pickle.dumps(cell(1))
        for _ in range(1000):
            session_reports.append(pickle.loads(pickled))
        gc.collect()
        full = tracemalloc.get_traced_memory()[0] - start
        for _ in range(300):
            session_reports.append(pickle.loads(pickled))
        gc.collect()
        after = tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()
    assert (len(session_reports), session_reports.dropped) == (1000, 300)
    assert full - 132 * 4096 < 900 * 200, "at most 132 reports are not compressed"
    assert after - full < 50 * 4096


def lines(device="cuda:0"):
    return DeviceLines(device, (), 0, None, 0, 0, 0, 0, 0, 0, 0, 0)


def test_only_the_newest_keep_lines_and_modules():
    session_reports = Reports()
    for item in session(150):
        session_reports.append(dataclasses.replace(item, lines=(lines(),)))
    assert [bool(item.lines) for item in session_reports] == [False] * 50 + [True] * 100
    assert [item.cell for item in session_reports] == list(range(1, 151))
    with_lines = Reports((dataclasses.replace(item, lines=(lines(),)) for item in session(150)), limit=None)
    assert all(item.lines for item in with_lines), "reports from a file keep their lines"


def numbered(count):
    return [dataclasses.replace(item, cell_id=f"id{number % 7}") for number, item in enumerate(session(count))]


def test_older_reports_are_equal_to_those_appended():
    items = numbered(500)
    session_reports = Reports(limit=1000)
    for count, item in enumerate(items, 1):
        session_reports.append(item)
        assert len(session_reports) == count
        assert session_reports[0] == items[0]
        assert session_reports[-1] is item
    assert session_reports[0] is not items[0], "older reports are compressed"
    assert all(report is item for report, item in zip(session_reports[-100:], items[-100:], strict=True))
    assert list(session_reports) == items
    assert list(reversed(session_reports)) == items[::-1]
    assert [session_reports[index] for index in range(-500, 500)] == items * 2
    for part in (slice(None), slice(10, 40), slice(-450, None, 7), slice(400, 20, -3), slice(600, 700)):
        assert session_reports[part] == items[part]
    for index in (500, -501):
        with pytest.raises(IndexError):
            session_reports[index]
    assert session_reports.cell(3) == items[2]
    assert session_reports.index(items[40]) == 40
    assert session_reports.to_json() == Reports(items, limit=None).to_json()


@dataclasses.dataclass(frozen=True)
class KeywordOnly:
    size: int
    name: str = dataclasses.field(kw_only=True, default="")


@dataclasses.dataclass(frozen=True)
class Derived:
    size: int
    double: int = dataclasses.field(init=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "double", self.double + 2 * self.size)


@dataclasses.dataclass(frozen=True)
class Single:
    values: tuple[int, ...]


@pytest.mark.parametrize("make", [lambda size: KeywordOnly(size, name="a"), Derived, lambda size: Single((size,))])
def test_data_classes_of_all_kinds_can_be_compressed(make):
    items = [make(number) for number in range(100)]
    compact = CompactList(10, compresses=True)
    for item in items:
        compact.append(item)
    assert list(compact) == items
    assert compact[0] is not items[0]


def test_compressed_reports_are_dropped_and_compared():
    items = numbered(700)
    session_reports = Reports(limit=300)
    for number, item in enumerate(items):
        session_reports.append(item)
        assert len(session_reports) == min(number + 1, 300)
    assert list(session_reports) == items[400:]
    assert session_reports.dropped == 400
    once = Reports(limit=300)
    once.append(dataclasses.replace(cell(1), cell_id="once"))
    assert once.earlier(cell(2, cell_id="once")) is not None
    for item in items[:299]:
        once.append(item)
    assert once.earlier(cell(2, cell_id="once")) is not None
    once.append(items[299])
    assert once.earlier(cell(2, cell_id="once")) is None, "dropped reports are not compared"


def test_reports_that_cannot_be_compressed_are_kept():
    items = [dataclasses.replace(item, code=Code(item.code)) for item in session(200)]
    session_reports = Reports()
    for item in items:
        session_reports.append(item)
    assert all(report is item for report, item in zip(session_reports, items, strict=True))


class Code(str):
    __slots__ = ()

    def __reduce_ex__(self, protocol):
        raise TypeError("cannot be pickled")


def test_reports_can_be_read_by_another_thread_while_they_are_appended():
    session_reports, errors, stop = Reports(limit=300), [], threading.Event()

    def read():
        while not stop.is_set():
            cells = [item.cell for item in session_reports]
            newest = [item.cell for item in reversed(session_reports)]
            errors.extend(
                numbers
                for numbers in (cells, newest[::-1])
                if numbers and numbers != list(range(numbers[0], numbers[-1] + 1))
            )

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for item in session(1500):
            session_reports.append(item)
    finally:
        stop.set()
        thread.join()
    assert errors == []


def test_csv():
    session_reports = Reports([cell(1, held=5, peak=7), dataclasses.replace(cell(2), devices={})])
    rows = list(csv.DictReader(io.StringIO(session_reports.to_csv())))
    assert [row["cell"] for row in rows] == ["1", "2"]
    assert (rows[0]["device"], rows[0]["held"], rows[0]["peak"], rows[0]["code"]) == (
        "cuda:0", str(5 << 20), str(7 << 20), "step(1)",
    )  # fmt: skip
    assert (rows[1]["device"], rows[1]["outside"]) == ("host", ""), "unknown values are empty"


def test_csv_contains_no_formulas():
    report = dataclasses.replace(cell(1), code="=cmd|'/c calc'!A1\x1b[2J", cell_id="@x")
    (row,) = csv.DictReader(io.StringIO(Reports([report]).to_csv()))
    assert row["code"] == "'=cmd|'/c calc'!A1 [2J"
    assert row["cell_id"] == "'@x"
    assert row["held"].lstrip("-").isdigit(), "numbers are unchanged"


def test_files_are_written_completely_or_not_at_all(tmp_path):
    session_reports = Reports([cell(1)])
    assert session_reports.to_csv(tmp_path / "a.csv") is None
    assert (tmp_path / "a.csv").read_text() == session_reports.to_csv()
    session_reports.to_json(tmp_path / "a.json")
    assert (
        json.loads((tmp_path / "a.json").read_text())
        == json.loads(session_reports.to_json())
        == [session_reports[0].to_dict()]
    )
    for write in (session_reports.to_csv, session_reports.to_json, session_reports.to_parquet):
        with pytest.raises(OptionError, match="does not exist"):
            write(tmp_path / "no" / "x")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.csv", "a.json"]


def test_pandas():
    pandas = pytest.importorskip("pandas")
    frame = Reports([cell(1, held=5), dataclasses.replace(cell(None), devices={}, success=None)]).to_pandas()
    assert frame["held"].dtype == "Int64"
    assert frame["held"].tolist()[0] == 5 << 20
    assert frame["outside"].isna().tolist() == [False, True]
    assert frame["cell"].isna().tolist() == [False, True]
    assert frame["success"].isna().tolist() == [False, True]
    assert str(frame["time"][0]) == "1970-01-01 00:00:01+00:00"
    assert len(Reports().to_pandas()) == 0
    assert list(Reports().to_pandas().columns) == list(frame.columns)
    assert isinstance(frame, pandas.DataFrame)


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    Reports([cell(1, held=5), dataclasses.replace(cell(None), devices={})]).to_parquet(tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table["held"].to_pylist() == [5 << 20, 0]
    assert table["outside"].to_pylist() == [0, None]
    assert table["cell"].to_pylist() == [1, None]
    assert table.num_columns == len(Reports().to_csv().split(","))
    Reports().to_parquet(tmp_path / "none.parquet")
    assert parquet.read_table(tmp_path / "none.parquet").schema == table.schema


def test_library_that_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "pyarrow.py").write_text("raise ImportError('pyarrow requires NumPy 2.0 or newer')")
    monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    message = "pyarrow is required for Parquet files but cannot be imported: pyarrow requires NumPy 2.0 or newer"
    with pytest.raises(OptionError, match=message):
        Reports([cell(1)]).to_parquet(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("module", "message"), [("pandas", "pandas is required for data frames"), ("pyarrow", "pyarrow is required for")]
)
def test_missing_optional_packages(tmp_path, monkeypatch, module, message):
    monkeypatch.setitem(sys.modules, module, None)
    session_reports = Reports([cell(1)])
    with pytest.raises(OptionError, match=f"{message}.*pip install {module}"):
        session_reports.to_pandas() if module == "pandas" else session_reports.to_parquet(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["to_csv", "to_json", "to_parquet"])
def test_invalid_path(name):
    with pytest.raises(OptionError, match="the path of the table must be a string or a path object, but got 5"):
        getattr(Reports(), name)(5)


def test_invalid_log_path():
    with pytest.raises(OptionError, match="the path of the log must be a string or a path object, but got 5"):
        Reports().log = 5


def test_full_disk(tmp_path, monkeypatch):
    import errno

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OptionError, match=r"a.csv was not written: No space left on device"):
        Reports().to_csv(tmp_path / "a.csv")
    assert list(tmp_path.iterdir()) == []
