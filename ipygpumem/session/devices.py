"""Devices as people write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ipygpumem.errors import OptionError

__all__ = ["device_words"]


def device_words(devices: Any, option: str) -> list[str]:
    """Devices as words: ``"0,1"``, ``1``, ``torch.device("cuda:1")``, or several of them.

    Raises:
        OptionError: None at all; ``option`` is what it is called.
    """
    several = isinstance(devices, Iterable) and not isinstance(devices, str)
    words = [part for device in (devices if several else [devices]) for part in str(device).split(",")]
    if not words:
        raise OptionError(f"{option} names no device: None is for all")
    return words
