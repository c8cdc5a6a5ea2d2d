"""Which processes were launched together: by what launchers left in the environment, and by when each measured."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING

from ipygpumem.core.from_dict import printable
from ipygpumem.sources.host import process_start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipygpumem.features.ranks.model import RankInfo, RankResult

__all__ = ["earlier_launches", "launch_ids"]

_APART = 1.0
"""Seconds within which two clocks are one (see `RankFiles`)."""
_PROCESS, _PARENT, _JOB, _ELASTIC = "process", "parent", "job", "elastic"
_PROOFS = {_PROCESS, _PARENT, _JOB, _ELASTIC}
"""What two launches do not share. The master's address they may: its port is a default."""


def launch_ids(environment: Mapping[str, str] = os.environ) -> tuple[tuple[str, str], ...]:
    """What tells this process's launch from others, as (what, value)."""
    found = [(_PROCESS, f"{os.getpid()} {process_start(os.getpid())}")]
    elastic = environment.get("TORCHELASTIC_RUN_ID", "")
    if elastic and elastic != "none":  # torchrun's word where nobody names the run
        found.append((_ELASTIC, elastic))
    job = environment.get("SLURM_JOB_ID", "")
    if job:
        found.append((_JOB, f"{job}.{environment.get('SLURM_STEP_ID', '')}".rstrip(".")))
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if address and port:
        found.append(("master", f"{address}:{port}"))
    # ranks that are started by hand, or by srun, have parents of their own
    if elastic or multiprocessing.parent_process() is not None:
        found.append((_PARENT, f"{os.getppid()} {process_start(os.getppid())}"))
    return tuple(found)


def earlier_launches(members: Mapping[str, RankResult]) -> dict[str, str]:
    """The members that belong to another launch than the one that began last, each with why, in words.

    Args:
        members: By their files' names; those without an origin are nobody's, and left alone.
    """
    known = {name: one.origin for name, one in members.items() if one.origin is not None}
    if not known:
        return {}
    newest = max(known, key=lambda name: _begin(known[name]))
    found = {}
    for name, one in known.items():
        why = "" if name == newest else _another(members[name], one, members[newest], known[newest])
        if why:
            found[name] = why
    return found


def _begin(one: RankInfo) -> float:
    return one.began + (one.clock or 0.0)


def _another(member: RankResult, one: RankInfo, last: RankResult, newest: RankInfo) -> str:
    """Why a member is of an earlier launch than the newest; empty where it is not, as far as can be told."""
    if one.world and newest.world and one.world != newest.world:
        return f"of another run, of {one.world:,} ranks and not {newest.world:,}"
    here = one.host == newest.host
    its, theirs = dict(one.launch), dict(newest.launch)
    shared = [what for what in its.keys() & theirs.keys() if here or what not in {_PROCESS, _PARENT}]
    if any(its[what] != theirs[what] for what in shared if what != _PROCESS):
        return "of an earlier run"
    if any(its[what] == theirs[what] for what in _PROOFS.intersection(shared)):
        return ""
    clocks = here or (one.clock is not None and newest.clock is not None)
    if not clocks or member.report is None or not one.began or not newest.began:
        return ""
    gone = _begin(newest) - (_begin(one) + member.report.seconds)
    if gone <= _APART:
        return ""
    return f"of an earlier run, which ended before rank {printable(last.name)} began"
