"""Save and restore the state of random number generators and the settings of PyTorch and of the process."""

from __future__ import annotations

import functools
import gc
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from ipygpumem.core.introspection import attempt


def save_random_state(torch: Any, generators: Iterable[Any]) -> list[Callable[[], Any]]:
    """Save the states of the global random number generators and of ``generators``.

    Returns:
        Functions that restore the states.
    """
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
    """Save the number of spawned generators, and return a function that restores it. NumPy has no API for this."""
    seeds = bit_generator._seed_seq  # public since NumPy 1.25
    return functools.partial(seeds.__setstate__, seeds.__reduce__()[-1])


def torch_settings(torch: Any) -> list[Callable[[], Any]]:
    """Save settings of PyTorch, and return functions that restore them if they have changed."""

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


_LOGGING = ("addFilter", "addHandler", "basicConfig", "dictConfig", "fileConfig", "removeHandler", "setLevel")
_MATMUL, _ANOMALY = ("allow_tf32", "set_float32_matmul_precision"), ("detect_anomaly", "set_detect_anomaly")
_WARNINGS = ("filterwarnings", "resetwarnings", "simplefilter")


def process_settings(torch: Any, uses: Callable[..., bool]) -> list[Callable[[], Any]]:
    """Save settings of the process that the code of the step can change, and return functions that restore them.

    Settings that only libraries change, for example when they are imported, are not restored, because the libraries
    would not change them again.

    Args:
        torch: The module torch.
        uses: Function that returns whether the code of the step uses a name.
    """
    result: list[Callable[[], Any]] = []
    if uses("environ"):
        result.append(functools.partial(_restore_environment, dict(os.environ)))
    settings: list[tuple[tuple[str, ...], Callable[[], Any], Callable[[Any], Any]]] = [
        (("chdir",), functools.partial(attempt, os.getcwd), os.chdir),
        (_WARNINGS, lambda: list(warnings.filters), _set_warning_filters),
        (_LOGGING, _logger_settings, _set_loggers),
        (("disable",), lambda: logging.root.manager.disable, logging.disable),
        (("disable", "enable"), gc.isenabled, lambda enabled: gc.enable() if enabled else gc.disable()),
        (("set_threshold",), gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
        (("setrecursionlimit",), sys.getrecursionlimit, sys.setrecursionlimit),
        (("excepthook",), lambda: sys.excepthook, functools.partial(setattr, sys, "excepthook")),
        (("umask",), _umask, os.umask),
        (("set_num_threads",), torch.get_num_threads, torch.set_num_threads),
        (_MATMUL, torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (_ANOMALY, lambda: _anomaly_mode(torch), lambda values: torch.autograd.set_detect_anomaly(*values)),
    ]
    for names, get, put in settings:
        if any(map(uses, names)):
            result.append(functools.partial(_restore_setting, get, put, get()))
    return result


def _umask() -> int:
    """Return the umask, which can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _anomaly_mode(torch: Any) -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _restore_environment(values: dict[str, str]) -> None:
    for name in os.environ.keys() - values.keys():
        del os.environ[name]
    for name, value in values.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _set_warning_filters(filters: list[Any]) -> None:
    warnings.resetwarnings()  # Python must also be notified of the change
    warnings.filters[:] = filters  # type: ignore[index]


def _logger_settings() -> list[tuple[Any, ...]]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    return [
        (item, item.level, [*item.handlers], [*item.filters], item.propagate, item.disabled)
        for item in loggers
        if isinstance(item, logging.Logger)
    ]


def _set_loggers(settings: list[tuple[Any, ...]]) -> None:
    for logger, level, handlers, filters, propagate, disabled in settings:
        if logger.level != level:
            logger.setLevel(level)
        logger.handlers[:], logger.filters[:] = handlers, filters
        logger.propagate, logger.disabled = propagate, disabled


def _restore_setting(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> None:
    if get() != value:
        put(value)
