"""Tests of the exceptions."""

from __future__ import annotations

import pytest

from ipygpumem.core import errors


def test_option_errors_are_value_errors():
    with pytest.raises(ValueError, match="x"):
        raise errors.DeviceError("x")


def test_first_line_of_an_error():
    assert errors.first_line(RuntimeError("\nCUDA error\nCompile with ...")) == "CUDA error"
    assert errors.first_line(RuntimeError()) == "RuntimeError"
