"""Engines of an ipyparallel cluster under watch: ``%%px`` cells come back with one merged report.

``ipygpumem.parallel.enable(client)`` is ``%gpumem engines CLIENT``. It needs ipyparallel: ``pip install
ipygpumem[parallel]``. On the engines the package itself has to be installed, nothing else.
"""

from ipygpumem.parallel.engines import Engines, active, disable, enable

__all__ = ["Engines", "active", "disable", "enable"]
