"""Reports from the engines of an ipyparallel cluster.

``enable(client)`` shows a merged report below each ``%%px`` cell, as ``%gpumem engines CLIENT`` does. The client
requires ipyparallel (``pip install ipygpumem[parallel]``); the engines require only ipygpumem.
"""

from ipygpumem.features.ranks.engines.collect import Engines
from ipygpumem.features.ranks.engines.enable import active, disable, enable

__all__ = ["Engines", "active", "disable", "enable"]
