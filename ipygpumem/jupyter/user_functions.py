"""The functions that ``-f NAME`` selects."""

from __future__ import annotations

import ast
import builtins
from collections import ChainMap
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.features.lines.source import SourceRegion, SourceTexts, code_object, function_region, resolve_name
from ipygpumem.measurement.notebook_sources import notebook_sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["functions"]


def functions(names: Iterable[str], namespace: Mapping[str, Any], text: str) -> list[SourceRegion]:
    """The source regions of the functions and methods with these names, except those that the code itself defines.

    Raises:
        OptionError: A name is not a function, or its source is not available.
    """
    texts = SourceTexts(notebook_sources())
    defined = _defined_names(text)
    regions = []
    for name in dict.fromkeys(names):
        if name in defined:
            continue
        function = resolve_name(name, ChainMap(dict(namespace), vars(builtins)).__getitem__)
        code = code_object(function)
        if code is None:
            if issubclass(type(function), type):
                raise OptionError(f"{name!r} is a class: name a method, such as {name}.forward")
            raise OptionError(f"{name!r} is not a function or method written in Python")
        regions.append(function_region(code, texts))
    return regions


def _defined_names(text: str) -> set[str]:
    """Names of the functions and methods that the code defines: ``train``, ``Net.forward``."""
    tree = SourceTexts({"": text}).tree("")
    if tree is None:
        return set()
    names = set()
    for node in tree.body:
        for inner in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(inner.name if inner is node else f"{node.name}.{inner.name}")  # type: ignore[attr-defined]
    return names
