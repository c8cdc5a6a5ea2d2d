"""Save and restore the state of random number generators and the settings of PyTorch."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ipygpumem.core.introspection import attempt


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
            source = generator.bit_generator
            restore.append(functools.partial(setattr, source, "state", source.state))
            reset_spawned = attempt(functools.partial(_spawned_state, source))
            restore += [] if reset_spawned is None else [reset_spawned]
    return restore


def _spawned_state(bit_generator: Any) -> Callable[[], Any]:
    """Save the number of spawned generators, which NumPy provides no way to set; return the function to restore it."""
    seeds = bit_generator._seed_seq  # public since NumPy 1.25
    return functools.partial(seeds.__setstate__, seeds.__reduce__()[-1])


def torch_settings(torch: Any) -> list[Callable[[], Any]]:
    """Save settings of PyTorch and return the functions that restore them if they have changed."""

    def deterministic() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def set_deterministic(values: tuple[bool, bool]) -> None:
        torch.use_deterministic_algorithms(values[0], warn_only=values[1])

    cudnn = torch.backends.cudnn
    settings: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (deterministic, set_deterministic),  # the setter imports the compiler, which takes seconds
    ]
    settings += [
        (functools.partial(getattr, cudnn, name), functools.partial(setattr, cudnn, name))
        for name in ("benchmark", "deterministic")
    ]
    return [functools.partial(_restore_setting, get, put, get()) for get, put in settings]


def _restore_setting(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> None:
    if get() != value:
        put(value)
