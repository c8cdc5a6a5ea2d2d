"""Engines of an ipyparallel cluster: ``enable(client)`` reports on each ``%%px`` cell.

It does the same as ``%gpumem engines CLIENT`` and needs ipyparallel (``pip install ipygpumem[parallel]``). The engines
only need ipygpumem itself.
"""

from ipygpumem.features.ranks.engines.collect import Engines
from ipygpumem.features.ranks.engines.enable import active, disable, enable

__all__ = ["Engines", "active", "disable", "enable"]
