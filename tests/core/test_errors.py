"""The exceptions and their documentation."""

from __future__ import annotations

import pytest

from ipygpumem.core import errors


def documented_tree():
    """(name, parent) of each exception in the docstring's tree."""
    parents = {}
    for line in errors.__doc__.split("::", 1)[1].splitlines():
        name = next((word for word in line.split() if word.endswith(("Error", "Exceeded"))), None)
        if name is None or line[:4].strip():
            continue
        depth = line.index(name) // 4
        parents[depth] = name
        yield name, parents.get(depth - 1)


def test_docstring_shows_all_exceptions():
    tree = dict(documented_tree())
    classes = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert tree.keys() == classes
    for name, parent in tree.items():
        assert getattr(errors, name).__bases__[0] is (getattr(errors, parent) if parent else Exception)


def test_option_errors_are_value_errors():
    with pytest.raises(ValueError, match="x"):
        raise errors.DeviceError("x")


def test_first_line_of_an_error():
    assert errors.first_line(RuntimeError("\nCUDA error\nCompile with ...")) == "CUDA error"
    assert errors.first_line(RuntimeError()) == "RuntimeError"
