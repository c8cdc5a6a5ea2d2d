"""Running code under watch: measurements, peaks that nest, allocation history. Hands snapshots over, reads none."""

from ipygpumem.recording.file import check_path
from ipygpumem.recording.history import History, HistoryOptions
from ipygpumem.recording.keys import CellFacts
from ipygpumem.recording.measurement import Measurement, MeasurementOptions
from ipygpumem.recording.peaks import PEAKS
from ipygpumem.recording.recorder import Recorder
from ipygpumem.recording.sampler import SAMPLER

__all__ = [
    "PEAKS",
    "SAMPLER",
    "CellFacts",
    "History",
    "HistoryOptions",
    "Measurement",
    "MeasurementOptions",
    "Recorder",
    "check_path",
]
