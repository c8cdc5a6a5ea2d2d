"""Devices as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ipygpumem.core.errors import OptionError

__all__ = ["HOST", "device_names", "device_words"]

HOST = "host"
"""Name used in place of a device for the host memory of this process."""
_DEVICE = re.compile(r"(?:cuda)?:?(\d{0,4})", re.ASCII)


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


def device_names(words: Iterable[str]) -> tuple[str, ...]:
    """Device words (``0``, ``cuda:0``, ``cuda``, ``host``) as names, whether or not this machine has them.

    Raises:
        OptionError: A word that names no device.
    """
    found = []
    for word in words:
        text = word.strip()
        known = _DEVICE.fullmatch(text)
        if text != HOST and (known is None or not text):
            raise OptionError(f"{text!r} is not a device: write cuda:0, or 0")
        found.append(text if known is None else f"cuda:{int(known[1] or 0)}")
    return tuple(dict.fromkeys(found))
