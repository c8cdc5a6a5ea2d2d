"""Identity of this process: its rank, host, devices and launch."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import sys
from collections.abc import Mapping

from ipygpumem.core.version import __version__
from ipygpumem.features.ranks.model import DeviceInfo, RankInfo
from ipygpumem.measurement.runtime import current
from ipygpumem.sources.host import process_start

_VARIABLES = (
    ("RANK", "WORLD_SIZE"),  # torchrun, accelerate
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


class FallbackRank:
    """Rank of this process if no launcher has set one, such as the engine ID of an ipyparallel engine."""

    rank: int | None = None


def rank_and_world(environment: Mapping[str, str] = os.environ) -> tuple[int | None, int | None]:
    """Return ``(rank, world_size)`` from torch.distributed or from the launcher's environment variables.

    Unknown values are None. The function neither imports modules nor communicates with other ranks.
    """
    distributed = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):  # the process group may be shutting down
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    for rank, world in _VARIABLES:
        number = _number(environment.get(rank, ""))
        if number is not None:
            return number, _number(environment.get(world, ""))
    return current().state(FallbackRank).rank, None


def _number(text: str) -> int | None:
    valid = text.isascii() and text.isdecimal() and len(text) < len("16777216")
    return int(text) if valid else None


def current_rank_info(*, rank: int | None = None, clock: float | None = None, began: float = 0.0) -> RankInfo:
    """Return the identity of this process, with its devices if CUDA is already initialized."""
    number, world = rank_and_world()
    monitor = current().monitor
    monitor.find_devices()
    return RankInfo(
        rank=number if rank is None else rank,
        world=world,
        host=platform.node(),
        pid=os.getpid(),
        version=__version__,
        devices=tuple(
            DeviceInfo(device.name, device.uuid, device.label, device.total) for device in monitor.devices.values()
        ),
        clock=clock,
        began=began,
        launch=launch_ids(),
    )


def launch_ids(environment: Mapping[str, str] = os.environ) -> tuple[tuple[str, str], ...]:
    """Return IDs as pairs (kind, value) that distinguish this launch of the ranks from other launches."""
    ids = {"process": f"{os.getpid()} {process_start(os.getpid())}"}
    elastic = environment.get("TORCHELASTIC_RUN_ID")
    if elastic and elastic != "none":  # torchrun's default if no run ID is given
        ids["elastic"] = elastic
    job = environment.get("SLURM_JOB_ID")
    if job:
        ids["job"] = f"{job}.{environment.get('SLURM_STEP_ID', '')}".rstrip(".")
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if address and port:
        ids["master"] = f"{address}:{port}"
    # ranks started manually or by srun have different parent processes
    if elastic or multiprocessing.parent_process() is not None:
        ids["parent"] = f"{os.getppid()} {process_start(os.getppid())}"
    return tuple(ids.items())
