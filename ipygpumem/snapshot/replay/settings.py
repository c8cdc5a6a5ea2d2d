"""Settings of PyTorch's CUDA caching allocator (``PYTORCH_ALLOC_CONF``) and the sizes that depend on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import OptionError, check_argument
from ipygpumem.core.units import MIB, size
from ipygpumem.snapshot.model.segment_history import SMALL_SEGMENT

QUANTUM = 512
"""Smallest size of a block in bytes. Sizes are rounded up to multiples of this size."""
SMALL = MIB
"""Largest rounded size in bytes of a request that the small pool serves."""
_OWN_SEGMENT = 10 * MIB
"""Smallest rounded size in bytes of a request for which a separate segment is allocated."""
_SEGMENT_QUANTUM = 2 * MIB
_LARGE_SEGMENT = 20 * MIB
_INTERVALS = 16
"""Number of entries of ``roundup_power2_divisions``: one per power of two, from 1 MiB to 32 GiB and more."""
_MAX_LENGTH = 1000
_MAX_NUMBER = 1 << 40  # larger numbers of MiB or of divisions exceed 64 bits, and have the same effect as this number
_WITHOUT_EFFECT = {
    "graph_capture_record_stream_reuse": "boolean",
    "pinned_free_catch_all": "boolean",
    "pinned_max_cached_size_mb": "number",
    "pinned_max_round_threshold_mb": "number",
    "pinned_num_register_threads": "number",
    "pinned_reserve_segment_size_mb": "number",
    "pinned_use_background_threads": "boolean",
    "pinned_use_cuda_host_register": "boolean",
    "pinned_use_hip_host_register": "boolean",
    "release_lock_on_cudamalloc": "boolean",
    "release_lock_on_hipmalloc": "boolean",
}
"""Settings that do not change which memory is used for a request, with the types of their values."""
_MAX_THREADS = 128  # maximum value of pinned_num_register_threads
_SETTING = re.compile(r"\s*(\w+)\s*:\s*(\[[^\]]*\]|[^,\[\]]+?)\s*(?:,|$)")


_VARIABLE_VERSION = (2, 9)
"""First version of PyTorch that reads ``PYTORCH_ALLOC_CONF``."""


def settings_variable(version: tuple[int, ...] | None) -> str:
    return "PYTORCH_ALLOC_CONF" if (version or _VARIABLE_VERSION) >= _VARIABLE_VERSION else "PYTORCH_CUDA_ALLOC_CONF"


def version_note(settings: str, version: tuple[int, ...] | None) -> str:
    if version is not None:
        return ""
    if settings.startswith("large_segment"):
        return " (PyTorch 2.11 or later)"
    return " (up to PyTorch 2.8: PYTORCH_CUDA_ALLOC_CONF)"


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """Settings that determine which memory the allocator uses for a request. Sizes are in bytes.

    Attributes:
        expandable: Value of ``expandable_segments``.
        max_split_size: Size from which blocks are not split; None for no limit.
        divisions: Divisions of each power of two in ``roundup_power2_divisions``; 0 or 1 if sizes are only rounded up
            to multiples of 512 bytes.
        collection_threshold: Value of ``garbage_collection_threshold``; 0 if it is not set.
        large_segment: Size of segments for requests of 1 to 10 MiB.
        non_split_rounding: Value of ``max_non_split_rounding_mb``; None for the size of a large segment.
        fraction: Value of ``per_process_memory_fraction``; None if it is not set.
        throws: Value of ``throw_on_cudamalloc_oom``. If it is True, a request fails if new memory cannot be allocated
            for it, without cached segments being freed first.
    """

    expandable: bool = False
    max_split_size: int | None = None
    divisions: tuple[int, ...] = (0,) * _INTERVALS
    collection_threshold: float = 0.0
    large_segment: int = _LARGE_SEGMENT
    non_split_rounding: int | None = None
    fraction: float | None = None
    throws: bool = False

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Read settings in the format of the environment variable ``PYTORCH_ALLOC_CONF``.

        Raises:
            OptionError: The text contains an unknown setting, a value that PyTorch does not accept, or a setting that
                replays do not support, such as ``backend:cudaMallocAsync``.
        """
        check_argument("settings", text, str, "a string such as 'expandable_segments:True'")
        if len(text) > _MAX_LENGTH:
            raise OptionError(f"allocator settings: {len(text):,} characters exceed the limit of {_MAX_LENGTH:,}")
        settings, position = cls(), 0
        while text[position:].strip():
            match = _SETTING.match(text, position)
            if match is None:
                raise OptionError(f"allocator settings: expected name:value at {text[position:]!r}")
            settings = settings._set(*match.groups())
            position = match.end()
        minimum = settings.large_segment
        limited = {
            "max_split_size_mb": settings.max_split_size,
            "max_non_split_rounding_mb": settings.non_split_rounding,
        }
        for name, value in limited.items():
            if value is not None and value < minimum:
                raise OptionError(
                    f"{name}:{value // MIB} is less than the size of a large segment, {size(minimum)}: "
                    f"PyTorch rejects values below {minimum // MIB}"
                )
        return settings

    @classmethod
    def from_snapshot(cls, recorded: Mapping[str, Any]) -> AllocatorSettings:
        """Return the settings in the ``allocator_settings`` of a snapshot.

        If `parse` rejects the recorded ``PYTORCH_ALLOC_CONF``, for example because of a setting of a later PyTorch
        version, the whole variable is ignored.
        """
        text = recorded.get("PYTORCH_ALLOC_CONF") or recorded.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        try:
            settings = cls.parse(str(text))
        except OptionError:  # such as a setting of a later PyTorch version
            settings = cls()
        max_split_size = recorded.get("max_split_size")
        if type(max_split_size) is int:
            settings = replace(settings, max_split_size=max_split_size if max_split_size > 0 else None)
        divisions = recorded.get("roundup_power2_divisions")
        if isinstance(divisions, Mapping) and len(divisions) == _INTERVALS:
            by_size = sorted((int(key), int(value)) for key, value in divisions.items())
            settings = replace(settings, divisions=tuple(value for _, value in by_size))
        threshold = recorded.get("garbage_collection_threshold")
        return replace(
            settings,
            expandable=recorded.get("expandable_segments") is True,
            collection_threshold=threshold if isinstance(threshold, float) and 0 < threshold < 1 else 0.0,
        )

    def text(self) -> str:
        """Return the settings in the format of ``PYTORCH_ALLOC_CONF``, without default values."""
        default = AllocatorSettings()
        divisions = [str(count) for count in self.divisions]
        parts = [f"{1 << entry}:{count}" for entry, count in enumerate(divisions)]
        values = {
            "expandable_segments": (self.expandable, str(self.expandable)),
            "max_split_size_mb": (self.max_split_size, str((self.max_split_size or 0) // MIB)),
            "roundup_power2_divisions": (
                self.divisions,
                divisions[0] if len(set(divisions)) == 1 else f"[{','.join(parts)}]",
            ),
            "garbage_collection_threshold": (self.collection_threshold, str(self.collection_threshold)),
            "large_segment_size_mb": (self.large_segment, str(self.large_segment // MIB)),
            "max_non_split_rounding_mb": (self.non_split_rounding, str((self.non_split_rounding or 0) // MIB)),
            "per_process_memory_fraction": (self.fraction, str(self.fraction)),
            "throw_on_cudamalloc_oom": (self.throws, str(self.throws)),
        }
        defaults = (
            *(default.expandable, default.max_split_size, default.divisions, default.collection_threshold),
            *(default.large_segment, default.non_split_rounding, default.fraction, default.throws),
        )
        pairs = zip(values.items(), defaults, strict=True)
        return ",".join(f"{name}:{text}" for (name, (value, text)), usual in pairs if value != usual)

    def _set(self, name: str, value: str) -> AllocatorSettings:
        if name in ("expandable_segments", "throw_on_cudamalloc_oom"):
            on = _boolean(name, value)
            return replace(self, expandable=on) if name == "expandable_segments" else replace(self, throws=on)
        if name in ("max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb"):
            attribute = name.removesuffix("_mb").removeprefix("max_non_").replace("large_segment_size", "large_segment")
            attribute = {"split_rounding": "non_split_rounding"}.get(attribute, attribute)
            mib = _number(name, value, int)
            minimum = 11 if name == "large_segment_size_mb" else 1
            if mib < minimum:
                raise OptionError(f"{name}:{value} is too small: expected {minimum} or more")
            return replace(self, **{attribute: mib * MIB})
        if name == "roundup_power2_divisions":
            return replace(self, divisions=_divisions(value))
        if name in ("garbage_collection_threshold", "per_process_memory_fraction"):
            number = _number(name, value, float)
            if not 0 < number < 1 and not (number == 1 and name == "per_process_memory_fraction"):
                upper = "less than 1" if name == "garbage_collection_threshold" else "at most 1"
                raise OptionError(f"{name}:{value} is invalid: expected a number greater than 0 and {upper}")
            key = "collection_threshold" if name == "garbage_collection_threshold" else "fraction"
            return replace(self, **{key: number})
        if name == "backend" and value != "native":
            raise OptionError(f"backend:{value} cannot be replayed: replays simulate only the native allocator")
        if name in _WITHOUT_EFFECT:
            _check_ignored_setting(name, value)
        elif name != "backend":
            raise OptionError(f"unknown allocator setting: {name}")
        return self

    def round(self, requested: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sizes to which the allocator rounds the requested sizes, in bytes."""
        rounded = np.maximum(-(-requested // QUANTUM), 1) * QUANTUM
        if max(self.divisions) <= 1:
            return rounded
        positive = np.maximum(requested, 1)
        exponent = np.frexp(positive.astype(np.float64))[1].astype(np.int64) - 1
        exponent -= (np.int64(1) << exponent) > positive  # the conversion to float may round up
        divisions = np.asarray(self.divisions, np.int64)[np.clip(exponent - 20, 0, _INTERVALS - 1)]
        by_division = (divisions > 1) & (requested > QUANTUM * divisions)
        step = (np.int64(1) << exponent) // np.maximum(divisions, 1)
        return np.where(by_division, -(-requested // np.maximum(step, 1)) * step, rounded)

    def without_ineffective(self, requested: NDArray[np.int64], largest_segment: int) -> AllocatorSettings:
        """Return the settings without those that have no effect on requests of the given sizes in bytes.

        ``largest_segment`` is the size in bytes of the largest segment before the first request.
        """
        settings = self
        plain = replace(settings, divisions=AllocatorSettings().divisions)
        rounded = self.round(requested)
        if max(self.divisions) > 1 and (plain.round(requested) == rounded).all():
            settings = plain
        if self.expandable:
            return settings
        if self.max_split_size is not None:
            largest = self.segment_size(int(rounded.max(initial=1)))
            if max(largest, self.large_segment, largest_segment) < self.max_split_size:
                settings = replace(settings, max_split_size=None, non_split_rounding=None)
        if settings.max_split_size is None and not ((rounded > SMALL) & (rounded < _OWN_SEGMENT)).any():
            settings = replace(settings, large_segment=_LARGE_SEGMENT)
        return settings

    def segment_size(self, rounded: int) -> int:
        """Return the size in bytes of a new segment for a request of a rounded size in bytes."""
        if rounded <= SMALL:
            return SMALL_SEGMENT
        if rounded < _OWN_SEGMENT:
            return self.large_segment
        return -(-rounded // _SEGMENT_QUANTUM) * _SEGMENT_QUANTUM


def _number(name: str, text: str, kind: type[Any]) -> Any:
    try:
        number = kind(text if text.isascii() and "_" not in text else "")  # PyTorch rejects other digits and ``1_000``
    except ValueError:
        expected = "an integer" if kind is int else "a number"
        raise OptionError(f"{name}:{text} is invalid: expected {expected}") from None
    if number >= _MAX_NUMBER:
        raise OptionError(f"{name}:{text} is too large: expected less than 2**40")
    return number


def _boolean(name: str, text: str) -> bool:
    if text not in ("True", "False"):
        raise OptionError(f"{name}:{text} is invalid: expected True or False")
    return text == "True"


def _check_ignored_setting(name: str, text: str) -> None:
    if _WITHOUT_EFFECT[name] == "boolean":
        _boolean(name, text)
    elif name == "pinned_num_register_threads":
        if _power_of_two(name, text) > _MAX_THREADS:
            raise OptionError(f"{name}:{text} is too large: expected {_MAX_THREADS} or less")
    else:
        minimum = 1 if name == "pinned_reserve_segment_size_mb" else 0
        if _number(name, text, int) < minimum:
            raise OptionError(f"{name}:{text} is too small: expected {minimum} or more")


def _divisions(text: str) -> tuple[int, ...]:
    name = "roundup_power2_divisions"
    if not text.startswith("["):
        return (_power_of_two(name, text),) * _INTERVALS
    divisions = [0] * _INTERVALS
    last = 0
    is_first = True
    for item in text[1:-1].split(","):
        key, separator, value = (part.strip() for part in item.partition(":"))
        if not separator:
            raise OptionError(f"{name}: {item!r} is invalid: expected SIZE:DIVISIONS")
        count = 0 if value == "0" else _power_of_two(name, value)
        if key == ">":
            divisions[last + 1 :] = [count] * (_INTERVALS - last - 1)
            continue
        entry = min(_power_of_two(name, key).bit_length() - 1, _INTERVALS - 1)
        if is_first:
            divisions[:entry] = [count] * entry
        divisions[entry] = count
        last, is_first = entry, False
    return tuple(divisions)


def _power_of_two(name: str, text: str) -> int:
    number = int(_number(name, text, int))
    if number < 1 or number & (number - 1):
        raise OptionError(f"{name}: {text} is not a power of two")
    return number
