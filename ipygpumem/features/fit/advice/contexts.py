"""Changes that run the step in a context manager. They are predicted from additional runs in this context manager."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.sources.host import read_host

if TYPE_CHECKING:
    from ipygpumem.features.fit.advice.model import ChangeKind
    from ipygpumem.features.fit.advice.observations import StepObservations
    from ipygpumem.features.fit.search import SizeSearch

_HOST_SHARE = 0.25
"""Largest share of the available host memory that a run may use for tensors that autograd saves."""


@dataclass(frozen=True, slots=True)
class ContextManagerChange:
    """A change that runs the step in the context manager that ``manager(runner)`` returns.

    The other attributes are those of `PredictedChange`.
    """

    name: str
    kind: ChangeKind
    code: str
    note: str
    manager: Callable[[Any], Any]


@contextlib.contextmanager
def forward_autocast(runner: Any) -> Iterator[None]:
    """Enable autocast to bfloat16, except in calls of ``torch.autograd.backward`` from the current thread."""
    torch = runner.torch
    package, own_thread = torch.autograd, threading.get_ident()
    backward = package.backward

    def without_autocast(*args: Any, **options: Any) -> Any:
        if threading.get_ident() != own_thread:
            return backward(*args, **options)
        torch.clear_autocast_cache()
        with torch.autocast("cuda", enabled=False):
            return backward(*args, **options)

    try:
        package.backward = without_autocast
        with torch.autocast("cuda", dtype=torch.bfloat16):
            yield
    finally:
        package.backward = backward


AUTOCAST = ContextManagerChange(
    "bf16 autocast",
    "precision",
    'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = ...  # the forward pass',
    "rounds activations, which can change training",
    forward_autocast,
)
OFFLOADING = ContextManagerChange(
    "save_on_cpu",
    "offloading",
    "with torch.autograd.graph.save_on_cpu(pin_memory=True):\n    loss = ...  # the forward pass",
    "copies activations to host memory and back, which is slow",
    lambda runner: runner.torch.autograd.graph.save_on_cpu(pin_memory=True),
)


def applicable(
    search: SizeSearch, tensors: Iterable[Any], observations: StepObservations, peak: int
) -> list[ContextManagerChange]:
    """Return the context managers that could reduce the memory usage of a step.

    The list is empty in distributed programs, and if there is no prediction.

    Args:
        search: The search that ran the step.
        tensors: Tensors of the step.
        observations: Observations of the step.
        peak: Peak allocated memory of the runs, in bytes.
    """
    if search.scaled is None or search.ranks.world > 1:  # the ranks could request the changes separately
        return []
    torch, host = search.runner.torch, read_host(available=True).available
    kinds, requests = set(), search.scaled.step_requests
    if any(isinstance(tensor, torch.nn.Parameter) and tensor.dtype == torch.float32 for tensor in tensors):
        kinds.add("precision")
    is_small = search.runner.keeps_contents or host is None or peak < _HOST_SHARE * host
    if requests.backward < len(requests.operations) and is_small:
        kinds.add("offloading")
    uses_autocast = any(call.autocast for call in observations.calls)
    return [item for item in search.runner.contexts if item.kind in kinds and not (uses_autocast and item is AUTOCAST)]
