"""Engines of an ipyparallel cluster: ``enable(client)`` reports on each ``%%px`` cell."""

from ipygpumem.features.ranks.engines import Engines, active, disable, enable

__all__ = ["Engines", "active", "disable", "enable"]
