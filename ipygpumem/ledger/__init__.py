"""What the numbers mean: frozen facts and their arithmetic. Imports nothing above errors and units."""

from ipygpumem.ledger.baseline import Baseline
from ipygpumem.ledger.books import Line, books, imbalance
from ipygpumem.ledger.grade import Grade, grade
from ipygpumem.ledger.holders import Holder, Holders, Storage
from ipygpumem.ledger.reading import Counters, DeviceReading, HostReading, Reading
from ipygpumem.ledger.report import DeviceReport, HostReport, Peak, RecordingFacts, Report
from ipygpumem.ledger.settle import settle

__all__ = [
    "Baseline",
    "Counters",
    "DeviceReading",
    "DeviceReport",
    "Grade",
    "Holder",
    "Holders",
    "HostReading",
    "HostReport",
    "Line",
    "Peak",
    "Reading",
    "RecordingFacts",
    "Report",
    "Storage",
    "books",
    "grade",
    "imbalance",
    "settle",
]
