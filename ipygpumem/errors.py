"""Public exceptions of this package."""

from ipygpumem.core.errors import *  # noqa: F403
from ipygpumem.core.errors import __all__  # noqa: F401
