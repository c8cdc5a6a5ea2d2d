"""CUPTI's records as rows of numbers, each with its owner's: what `ipygpumem.features.outside.accounts` takes in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.features.outside.accounts import ADDRESS, ALLOCATES, BYTES, COLUMNS, OWNER, TIME, Accounts, Owner
from ipygpumem.sources.cupti.library import ALLOCATION, KINDS, Cupti

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["rows"]


def rows(cupti: Cupti, accounts: Accounts, address: int, valid: int) -> NDArray[Any]:
    """The records of a full buffer."""
    records = cupti.records(address, valid)
    records = records[np.isin(records["memory"], tuple(KINDS))]
    table = np.empty((len(records), COLUMNS), dtype=np.int64)
    table[:, TIME] = records["time"]
    table[:, ALLOCATES] = records["operation"] == ALLOCATION
    table[:, ADDRESS] = records["address"].view(np.int64)
    table[:, BYTES] = records["bytes"]
    # a buffer has few sources: one look at each, as one number
    marks = records["source"] << 16
    marks |= (records["device"].astype(np.uint64) & 0xFF) << 8
    marks |= (records["memory"].astype(np.uint64) << 1) | (records["async"] != 0)
    first, place = np.unique(marks, return_index=True, return_inverse=True)[1:]
    numbers = [accounts.number(_owner(cupti, records[i])) for i in first.tolist()]
    table[:, OWNER] = np.array(numbers, dtype=np.int64)[place] if numbers else 0
    return table


def _owner(cupti: Cupti, record: Any) -> Owner:
    path = cupti.text(int(record["source"]))
    return Owner.of(int(record["device"]), KINDS[int(record["memory"])], path, pooled=bool(record["async"]))
