"""Engines of an ipyparallel cluster: each ``%%px`` cell gets one merged report.

``ipygpumem.parallel.enable(client)`` does the same as ``%gpumem engines CLIENT``. Needs ipyparallel: ``pip install
ipygpumem[parallel]``. The engines need only the package itself.
"""

from ipygpumem.features.ranks.engines.collect import Engines, active, disable, enable

__all__ = ["Engines", "active", "disable", "enable"]
