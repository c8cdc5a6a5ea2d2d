"""Reports as tables for other programs: pandas, CSV, Parquet. A row for each report and device."""

from __future__ import annotations

import csv
import dataclasses
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.features.history.model import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["COLUMNS", "frame", "write_csv", "write_parquet"]

COLUMNS = tuple(field.name for field in dataclasses.fields(Entry))
"""As `Entry` has them: bytes, seconds, and empty what is unknown."""
_TYPES = {field.name: str(field.type).removesuffix(" | None") for field in dataclasses.fields(Entry)}
_PANDAS = {"int": "Int64", "float": "float64", "bool": "boolean", "str": "object", "Trust": "object"}


def _columns(rows: Iterable[Entry]) -> dict[str, list[Any]]:
    rows = list(rows)
    return {name: [getattr(row, name) for row in rows] for name in COLUMNS}


def frame(rows: Iterable[Entry]) -> Any:
    """A pandas DataFrame; ``time`` is a date in UTC.

    Raises:
        OptionError: pandas is not installed.
    """
    pandas = _need("pandas", "data frames")
    columns = _columns(rows)
    table = {name: pandas.Series(values, dtype=_PANDAS[_TYPES[name]]) for name, values in columns.items()}
    table["time"] = pandas.to_datetime(table["time"], unit="s", utc=True)
    return pandas.DataFrame(table)


def write_csv(rows: Iterable[Entry], file: IO[str]) -> None:
    """Write a line of names, and a line for each row; what is unknown is empty."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([getattr(row, name) for name in COLUMNS] for row in rows)


def write_parquet(rows: Sequence[Entry], file: Any) -> None:
    """Write one table; what is unknown is null.

    Raises:
        OptionError: pyarrow is not installed.
    """
    arrow, parquet = _need("pyarrow", "Parquet files"), _need("pyarrow.parquet", "Parquet files")
    kinds = {"int": arrow.int64(), "float": arrow.float64(), "bool": arrow.bool_()}
    schema = arrow.schema([(name, kinds.get(_TYPES[name], arrow.string())) for name in COLUMNS])
    parquet.write_table(arrow.table(_columns(rows), schema=schema), file)


def _need(module: str, purpose: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise OptionError(f"{purpose} need {module}: pip install {module}") from None
