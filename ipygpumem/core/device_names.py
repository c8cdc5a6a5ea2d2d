"""Parse the device names in options and arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ipygpumem.core.errors import DeviceError, OptionError

HOST = "host"  # device name for the host memory of this process
_DEVICE = re.compile(r"(?:cuda)?:?(\d{0,4})", re.ASCII)


def split_devices(devices: Any, option: str) -> list[str]:
    """``devices`` is a name or an index, a string such as ``"0,1"``, or an iterable of these."""
    is_iterable = isinstance(devices, Iterable) and not isinstance(devices, (str, bytes))
    texts = [text for device in (devices if is_iterable else [devices]) for text in str(device).split(",")]
    if not texts:
        raise OptionError(f"{option} is empty: use None to select all devices")
    return texts


def device_names(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(HOST if text.strip() == HOST else cuda_device(text) for text in texts))


def cuda_device(text: str) -> str:
    match = _DEVICE.fullmatch(text.strip())
    if match is None or not match[0]:
        raise DeviceError(f"{text.strip()!r} is not a device: use, for example, cuda:0 or 0")
    return f"cuda:{int(match[1] or 0)}"
