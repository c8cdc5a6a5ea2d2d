"""Engines of an ipyparallel cluster: one merged report for each ``%%px`` cell.

``ipygpumem.parallel.enable(client)`` does the same as ``%gpumem engines CLIENT``. It needs ipyparallel: ``pip install
ipygpumem[parallel]``. The engines only need ipygpumem itself.
"""

from ipygpumem.features.ranks.engines.collect import Engines, active, disable, enable

__all__ = ["Engines", "active", "disable", "enable"]
