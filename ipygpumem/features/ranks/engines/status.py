"""Which engines are monitored, which are not and why, and which have died, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.version import __version__
from ipygpumem.features.ranks.remarks import join_names

if TYPE_CHECKING:
    from ipygpumem.features.ranks.engines.collect import Engines

__all__ = ["status_text"]


def status_text(engines: Engines) -> str:
    """One line per fact; for a closed client, only that it is closed."""
    if engines.closed:
        return engines.gone
    origins = engines.origins
    hosts = {origin.host for origin in origins.values()}
    devices = {(origin.host, device.uuid) for origin in origins.values() for device in origin.devices if device.uuid}
    gpus = f", {_plural(len(devices), 'GPU')}" if devices else ""
    lines = [f"{_plural(len(engines.joined), 'engine')} monitored on {_plural(len(hosts), 'host')}{gpus}"]
    lines += [f"engine {number} is not monitored: {note}" for number, note in sorted(engines.notes.items())]
    if engines.lost:
        lines.append(f"stopped or died: engine {join_names([str(number) for number in engines.lost])}")
    versions = {number: info.version for number, info in origins.items() if info.version != __version__}
    if versions:
        differing = ", ".join(f"engine {number} has {version}" for number, version in versions.items())
        lines.append(f"this notebook has ipygpumem {__version__}, but {differing}")
    return "\n".join(lines)


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
