"""Explains why an allocation failed although memory was free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.core.to_dict import PlainData
from ipygpumem.core.units import size
from ipygpumem.snapshot.export.text import many
from ipygpumem.snapshot.model.trace import Action
from ipygpumem.snapshot.queries.fragmentation import Fragmentation, fragmentation, round_request, segment_size

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.segment_history import AllocatorState
    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["Oom", "explain_oom"]


@dataclass(frozen=True, slots=True)
class Oom(PlainData):
    """Why an allocation failed.

    Attributes:
        asked: Requested bytes, rounded by the allocator.
        device_free: Free bytes on the device at that time; None if not recorded.
    """

    device: int
    event: int
    time_us: int | None
    asked: int
    device_free: int | None
    memory: Fragmentation
    reason: tuple[str, ...]


def explain_oom(snapshot: Snapshot, state: AllocatorState) -> Oom:
    """Explain why the allocation of an oom event failed; other events raise `OptionError`."""
    trace = snapshot.timeline(state.device).trace
    event = state.event
    if event < 0 or trace.action[event] != Action.OOM:
        raise OptionError(f"event {event} of device {state.device} is not an out-of-memory event")
    requested = int(trace.size[event])
    memory = fragmentation(snapshot, state, requested, int(trace.stream[event]))
    device_free = trace.device_free.get(event)
    expandable = snapshot.settings.get("expandable_segments") is True
    reason = _reason(memory, requested, device_free, expandable=expandable)
    return Oom(state.device, event, trace.time_of(event), requested, device_free, memory, reason)


def _reason(memory: Fragmentation, requested: int, device_free: int | None, *, expandable: bool) -> tuple[str, ...]:
    segment = segment_size(round_request(requested))
    sentences = [f"{size(requested)} were requested."]
    if memory.largest < requested:
        pieces = f"{many(memory.pieces, 'piece')}, the largest {size(memory.largest)}"
        sentences.append(f"PyTorch had {size(memory.free)} free in {pieces}: none was large enough.")
    elif memory.fit is not None and memory.fit.block is None:
        blocks = "larger" if memory.fit.small else "smaller"
        where = f"but for another stream or in the pool for {blocks} blocks"
        sentences.append(f"PyTorch had a free piece of {size(memory.largest)}, {where}.")
    else:
        where = "possibly in the private pool of a CUDA graph"
        sentences.append(f"PyTorch had a free piece of up to {size(memory.largest)}, {where}.")
    if device_free is not None and device_free < segment:
        sentences.append(f"A new segment needs {size(segment)}, but the device had only {size(device_free)} left.")
    elif device_free is not None:
        limit = "a limit (torch.cuda.set_per_process_memory_fraction) may have prevented it"
        sentences.append(f"A new segment needs {size(segment)}, and the device had {size(device_free)} left: {limit}.")
    if memory.partly:
        advice = "." if expandable else "; expandable_segments:True avoids most of this."
        sentences.append(f"{size(memory.partly)} are in partly used segments, where only PyTorch can use them{advice}")
    return tuple(sentences)
