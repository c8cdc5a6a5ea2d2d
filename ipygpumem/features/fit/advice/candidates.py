"""Changed steps whose memory usage has not been predicted yet."""

from __future__ import annotations

from dataclasses import dataclass

from ipygpumem.features.fit.advice.model import Kind
from ipygpumem.snapshot.scaling.scaled_recording import ScaledStep


@dataclass(frozen=True, slots=True)
class Candidate:
    """A changed step to predict. For gradient accumulation, ``parts`` is the number of parts of the batch."""

    name: str
    kind: Kind | None
    step: ScaledStep
    added_time: float | None
    code: str
    note: str = ""
    parts: int = 1
    settings: str | None = None
