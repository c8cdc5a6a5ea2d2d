"""Drop-in replacement for the module ``ipyexperiments.utils.mem``."""

from ipygpumem.compat.ipyexperiments import *  # noqa: F403
from ipygpumem.compat.ipyexperiments import __all__  # noqa: F401
