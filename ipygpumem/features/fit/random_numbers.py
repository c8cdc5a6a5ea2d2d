"""Save and restore the state of random number generators."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterable
from typing import Any


def random_state(torch: Any, generators: Iterable[Any]) -> list[Callable[[], Any]]:
    """Save the state of all random number generators and return the functions that restore it."""
    restore: list[Callable[[], Any]] = [functools.partial(random.setstate, random.getstate())]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        restore.append(functools.partial(numpy.set_state, numpy.get_state()))
    restore.append(functools.partial(torch.set_rng_state, torch.get_rng_state()))
    device_generators = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    for generator in (*device_generators, *generators):
        if hasattr(generator, "get_state") and hasattr(generator, "set_state"):
            restore.append(functools.partial(generator.set_state, generator.get_state()))
        elif hasattr(generator, "getstate"):
            restore.append(functools.partial(generator.setstate, generator.getstate()))
        else:
            restore.append(functools.partial(setattr, generator.bit_generator, "state", generator.bit_generator.state))
    return restore
