"""Why an allocation failed although memory was free."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import size
from ipygpumem.snapshot.model.trace import Action
from ipygpumem.snapshot.queries.fragmentation import Fragmentation, fragmentation, round_request, segment_size

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.segment_history import State
    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["Oom", "explain_oom"]


@dataclass(frozen=True, slots=True)
class Oom:
    """Why an allocation failed.

    Attributes:
        device: The device's index.
        event: The oom event.
        time_us: Microseconds since 1970, or None.
        asked: Bytes asked for, rounded by the allocator.
        device_free: Bytes free on the device then; None if the file does not say.
        memory: The free memory inside the segments.
        reason: Why it failed, one sentence each.
    """

    device: int
    event: int
    time_us: int | None
    asked: int
    device_free: int | None
    memory: Fragmentation
    reason: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def explain_oom(snapshot: Snapshot, state: State) -> Oom:
    """Why the allocation of an oom event failed.

    Raises:
        OptionError: The event is no oom event.
    """
    trace = snapshot.timeline(state.device).trace
    event = state.event
    if event < 0 or trace.action[event] != Action.OOM:
        raise OptionError(f"event {event} of device {state.device} is no oom event")
    asked = int(trace.size[event])
    memory = fragmentation(snapshot, state, asked, int(trace.stream[event]))
    device_free = trace.device_free.get(event)
    return Oom(
        device=state.device,
        event=event,
        time_us=trace.time_of(event),
        asked=asked,
        device_free=device_free,
        memory=memory,
        reason=_reason(memory, asked, device_free, expandable=snapshot.settings.get("expandable_segments") is True),
    )


def _reason(memory: Fragmentation, asked: int, device_free: int | None, *, expandable: bool) -> tuple[str, ...]:
    """The sentences of an oom report."""
    segment = segment_size(round_request(asked))
    parts = [f"{size(asked)} were asked for."]
    if memory.largest < asked:
        parts.append(
            f"PyTorch held {size(memory.free)} free in {memory.pieces:,} {'piece' if memory.pieces == 1 else 'pieces'},"
            f" the largest {size(memory.largest)}: none was large enough."
        )
    elif memory.fit is not None and memory.fit.block is None:
        parts.append(
            f"PyTorch held a free piece of {size(memory.largest)}, but of another stream or of the pool for"
            f" {'larger' if memory.fit.small else 'smaller'} blocks."
        )
    else:
        parts.append(f"PyTorch held a free piece of up to {size(memory.largest)}, perhaps of another private pool.")
    if device_free is not None and device_free < segment:
        parts.append(f"A new segment takes {size(segment)}, and the device had {size(device_free)} left.")
    elif device_free is not None:
        parts.append(
            f"A new segment takes {size(segment)}; the device had {size(device_free)} left: a limit"
            " (torch.cuda.set_per_process_memory_fraction) may have been in the way."
        )
    if memory.partly:
        advice = "." if expandable else "; expandable_segments:True avoids most of that."
        parts.append(f"{size(memory.partly)} lie in segments partly in use, where only PyTorch can use them{advice}")
    return tuple(parts)
