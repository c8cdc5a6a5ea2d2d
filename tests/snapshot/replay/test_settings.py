import importlib.metadata
import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import KIB, MIB
from ipygpumem.snapshot.replay.settings import AllocatorSettings, settings_variable


def rounded(size, text=""):
    return int(AllocatorSettings.parse(text).round(np.array([size]))[0])


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 512), (1, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512), (5 * MIB, 5 * MIB)]
)
def test_sizes_are_multiples_of_512(size, expected):
    assert rounded(size) == expected


@pytest.mark.parametrize(
    ("size", "text", "expected"),
    [
        (900 * KIB, "roundup_power2_divisions:2", MIB),  # becomes a small request of exactly 1 MiB
        (1200 * MIB, "roundup_power2_divisions:4", 1280 * MIB),
        (1024 * MIB, "roundup_power2_divisions:4", 1024 * MIB),
        (1000, "roundup_power2_divisions:4", 1024),  # not larger than 4 * 512
        (2100, "roundup_power2_divisions:4", 2560),
        (1200 * MIB, "roundup_power2_divisions:1", 1200 * MIB),
        (300 * MIB, "roundup_power2_divisions:[256:1,512:2,>:4]", 300 * MIB),
        (600 * MIB, "roundup_power2_divisions:[256:1,512:2,>:4]", 768 * MIB),
        (1100 * MIB, "roundup_power2_divisions:[256:1,512:2,>:4]", 1280 * MIB),
        (100 * MIB + 1, "roundup_power2_divisions:[256:2,>:4]", 128 * MIB),  # entries below the first key
        (MIB + 1, "roundup_power2_divisions:[>:4]", MIB + 512),  # the first entry is not above a key
        (4 * MIB + 1, "roundup_power2_divisions:[>:4]", 5 * MIB),
        ((1 << 45) + 1, "roundup_power2_divisions:[64:2,>:4]", (1 << 45) + (1 << 43)),  # above the last entry
    ],
)
def test_divisions(size, text, expected):
    assert rounded(size, text) == expected


@pytest.mark.parametrize(
    ("size", "text", "expected"),
    [
        (512, "", 2 * MIB),
        (MIB, "", 2 * MIB),
        (MIB + 512, "", 20 * MIB),
        (10 * MIB - 512, "", 20 * MIB),
        (10 * MIB, "", 10 * MIB),
        (11 * MIB, "", 12 * MIB),
        (5 * MIB, "large_segment_size_mb:64", 64 * MIB),
        (10 * MIB, "large_segment_size_mb:64", 10 * MIB),
    ],
)
def test_segment_sizes(size, text, expected):
    assert AllocatorSettings.parse(text).segment_size(size) == expected


@pytest.mark.parametrize(
    "text",
    [
        "expandable_segments:True",
        "max_split_size_mb:128,garbage_collection_threshold:0.8",
        "roundup_power2_divisions:4",
        "large_segment_size_mb:64,max_non_split_rounding_mb:96,per_process_memory_fraction:0.5",
    ],
)
def test_text_can_be_parsed_again(text):
    settings = AllocatorSettings.parse(text)
    assert AllocatorSettings.parse(settings.text()) == settings
    assert sorted(settings.text().split(",")) == sorted(text.split(","))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_split_size:128", "unknown allocator setting: max_split_size"),
        ("max_split_size_mb:8", "PyTorch rejects values below 20"),
        ("max_split_size_mb:x", "expected an integer"),
        ("expandable_segments:yes", "expected True or False"),
        ("garbage_collection_threshold:1.5", "expected a number greater than 0 and less than 1"),
        ("roundup_power2_divisions:3", "3 is not a power of two"),
        ("large_segment_size_mb:10", "too small"),
        ("max_non_split_rounding_mb:19", "PyTorch rejects values below 20"),
        ("max_non_split_rounding_mb:32,large_segment_size_mb:64", "PyTorch rejects values below 64"),
        ("max_split_size_mb:1_00", "expected an integer"),
        ("max_split_size_mb:\u0663\u0660", "expected an integer"),
        ("roundup_power2_divisions:0", "0 is not a power of two"),
        ("roundup_power2_divisions:[0:4]", "0 is not a power of two"),
        ("pinned_use_background_threads:1", "expected True or False"),
        ("pinned_num_register_threads:3", "3 is not a power of two"),
        ("pinned_num_register_threads:256", "expected 128 or less"),
        ("pinned_reserve_segment_size_mb:0", "too small: expected 1 or more"),
        ("pinned_max_register_threads:8", "unknown allocator setting"),  # is not one of PyTorch's settings
        ("backend:cudaMallocAsync", "cannot be replayed"),
        ("expandable_segments", "expected name:value"),
        ("roundup_power2_divisions:[256]", "expected SIZE:DIVISIONS"),
        (f"roundup_power2_divisions:{1 << 64}", "too large"),
        (f"roundup_power2_divisions:[{1 << 64}:2]", "too large"),
        (f"large_segment_size_mb:{10**400},max_split_size_mb:20", "too large"),
        ("max_split_size_mb:" + "9" * 5000, "5,018 characters exceed the limit of 1,000"),
    ],
)
def test_invalid_settings(text, message):
    with pytest.raises(OptionError, match=message):
        AllocatorSettings.parse(text)


def test_pytorch_rejects_the_same_settings():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if tuple(map(int, importlib.metadata.version("torch").split(".")[:2])) < (2, 12):
        pytest.skip("this version has no parser that works without a GPU, or other limits")
    valid = ["", " ", "max_split_size_mb:20", "max_non_split_rounding_mb:20", "roundup_power2_divisions:[256:0]"]
    valid += ["large_segment_size_mb:64,max_non_split_rounding_mb:64", "expandable_segments:True,"]
    valid += ["garbage_collection_threshold:.5", "pinned_use_background_threads:True", "pinned_max_cached_size_mb:0"]
    invalid = ["max_split_size_mb:19", "max_non_split_rounding_mb:19", "max_split_size_mb:1_00"]
    invalid += ["max_non_split_rounding_mb:32,large_segment_size_mb:64", "roundup_power2_divisions:0"]
    invalid += ["roundup_power2_divisions:[0:4]", "large_segment_size_mb:10", "expandable_segments:true"]
    invalid += ["garbage_collection_threshold:1", "pinned_use_background_threads:1", "max_split_size_mb:x"]
    code = """
import sys, torch
for text in sys.argv[1:]:
    try:
        torch._C._accelerator_setAllocatorSettings(text)
        print("valid")
    except Exception:
        print("invalid")
"""
    run = subprocess.run([sys.executable, "-c", code, *valid, *invalid], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["valid"] * len(valid) + ["invalid"] * len(invalid)
    for text in valid:
        AllocatorSettings.parse(text)
    for text in invalid:
        with pytest.raises(OptionError):
            AllocatorSettings.parse(text)


@pytest.mark.parametrize(
    ("version", "variable"),
    [((2, 8), "PYTORCH_CUDA_ALLOC_CONF"), ((2, 9), "PYTORCH_ALLOC_CONF"), (None, "PYTORCH_ALLOC_CONF")],
)
def test_environment_variable(version, variable):
    assert settings_variable(version) == variable


def test_settings_without_effect_and_spaces():
    text = " expandable_segments : True , pinned_use_background_threads:True, backend:native"
    assert AllocatorSettings.parse(text) == AllocatorSettings(expandable=True)


def test_recorded_settings():
    recorded = {
        "PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:32",
        "max_split_size": 64 * MIB,
        "garbage_collection_threshold": 0.6,
        "expandable_segments": True,
        "roundup_power2_divisions": {str(1 << entry): 4 for entry in range(16)},
    }
    assert AllocatorSettings.from_snapshot(recorded) == AllocatorSettings(
        True, 64 * MIB, (4,) * 16, 0.6, large_segment=32 * MIB
    )
    assert (
        AllocatorSettings.from_snapshot({"max_split_size": -1, "PYTORCH_CUDA_ALLOC_CONF": "new:1"})
        == AllocatorSettings()
    )
    too_large = {"PYTORCH_ALLOC_CONF": f"large_segment_size_mb:{10**400},max_split_size_mb:20"}
    assert AllocatorSettings.from_snapshot(too_large) == AllocatorSettings()


def test_settings_without_effect_are_removed():
    requested = np.array([512, 3 * MIB, 40 * MIB])
    for text, expected in (
        ("roundup_power2_divisions:[1:1,32768:4]", ""),
        ("roundup_power2_divisions:2", "roundup_power2_divisions:2"),
        ("max_split_size_mb:64,large_segment_size_mb:32", "large_segment_size_mb:32"),
        ("max_split_size_mb:40", "max_split_size_mb:40"),
    ):
        assert AllocatorSettings.parse(text).without_ineffective(requested, 0).text() == expected
    assert not AllocatorSettings.parse("large_segment_size_mb:32").without_ineffective(requested[::2], 0).text()
