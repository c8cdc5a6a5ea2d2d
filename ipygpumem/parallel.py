"""Engines of an ipyparallel cluster: ``enable(client)`` reports on each ``%%px`` cell.

``enable`` is equivalent to ``%gpumem engines CLIENT`` and requires ipyparallel (``pip install ipygpumem[parallel]``).
The engines require only ipygpumem.
"""

from ipygpumem.features.ranks.engines.collect import Engines
from ipygpumem.features.ranks.engines.enable import active, disable, enable

__all__ = ["Engines", "active", "disable", "enable"]
