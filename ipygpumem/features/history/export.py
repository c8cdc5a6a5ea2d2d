"""Export rows of reports to pandas, CSV and Parquet."""

from __future__ import annotations

import csv
import dataclasses
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.features.history.model import ReportRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["COLUMNS", "data_frame", "write_csv", "write_parquet"]

_TYPES = {field.name: str(field.type).removesuffix(" | None") for field in dataclasses.fields(ReportRow)}
COLUMNS = tuple(_TYPES)
"""The fields of `ReportRow`: bytes and seconds; empty if unknown."""
_PANDAS_TYPES = {"int": "Int64", "float": "float64", "bool": "boolean", "str": "object", "Trust": "object"}


def _columns(rows: Iterable[ReportRow]) -> dict[str, list[Any]]:
    rows = list(rows)
    return {name: [getattr(row, name) for row in rows] for name in COLUMNS}


def data_frame(rows: Iterable[ReportRow]) -> Any:
    """A pandas DataFrame; ``time`` is a UTC timestamp. Without pandas, raise `OptionError`."""
    pandas = _import("pandas", "data frames")
    columns = {
        name: pandas.Series(values, dtype=_PANDAS_TYPES[_TYPES[name]]) for name, values in _columns(rows).items()
    }
    columns["time"] = pandas.to_datetime(columns["time"], unit="s", utc=True)
    return pandas.DataFrame(columns)


def write_csv(rows: Iterable[ReportRow], file: IO[str]) -> None:
    """Write a header and one line per row; unknown values are empty."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([getattr(row, name) for name in COLUMNS] for row in rows)


def write_parquet(rows: Sequence[ReportRow], file: Any) -> None:
    """Write one table; unknown values are null. Without pyarrow, raise `OptionError`."""
    arrow, parquet = _import("pyarrow", "Parquet files"), _import("pyarrow.parquet", "Parquet files")
    arrow_types = {"int": arrow.int64(), "float": arrow.float64(), "bool": arrow.bool_()}
    schema = arrow.schema([(name, arrow_types.get(_TYPES[name], arrow.string())) for name in COLUMNS])
    parquet.write_table(arrow.table(_columns(rows), schema=schema), file)


def _import(module: str, purpose: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise OptionError(f"{purpose} need {module}: pip install {module}") from None
