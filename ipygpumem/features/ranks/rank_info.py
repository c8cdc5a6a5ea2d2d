"""Who this process is among several: its rank, its machine, its cards."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from typing import TYPE_CHECKING

from ipygpumem.features.ranks.launch import launch_ids
from ipygpumem.features.ranks.model import DeviceFacts, RankInfo
from ipygpumem.measurement.session import current

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["origin", "rank_and_world", "set_fallback_rank"]

_VARIABLES = (
    ("RANK", "WORLD_SIZE"),  # torchrun, accelerate
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


_given: list[int] = []


def set_fallback_rank(number: int | None) -> None:
    """What this process is called where nobody else gave it a rank, such as an engine's number; None takes it back."""
    _given[:] = [] if number is None else [number]


def rank_and_world(environment: Mapping[str, str] = os.environ) -> tuple[int | None, int | None]:
    """This process's rank and the number of ranks: of torch.distributed, else what a launcher left in the environment.

    None for what nobody tells. Nothing is imported, and no other rank is asked.
    """
    distributed = sys.modules.get("torch.distributed")
    # a group that is being torn down is no reason to lose a report
    with contextlib.suppress(Exception):
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    for rank, world in _VARIABLES:
        number = _number(environment.get(rank))
        if number is not None:
            return number, _number(environment.get(world))
    return (_given[0] if _given else None), None


def _number(text: str | None) -> int | None:
    return (
        int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < len("16777216") else None
    )


def origin(*, rank: int | None = None, clock: float | None = None, began: float = 0.0) -> RankInfo:
    """This process. No device is touched: cards are told once CUDA has started here.

    Args:
        rank: Its rank, where the caller knows better.
        clock: See `RankInfo`.
        began: See `RankInfo`.
    """
    from ipygpumem import __version__

    number, world = rank_and_world()
    monitor = current().monitor
    monitor.find_devices()
    cards = tuple(DeviceFacts(card.name, card.uuid, card.label, card.total) for card in monitor.devices.values())
    return RankInfo(
        rank=number if rank is None else rank,
        world=world,
        host=platform.node(),
        pid=os.getpid(),
        version=__version__,
        cards=cards,
        clock=clock,
        began=began,
        launch=launch_ids(),
    )
