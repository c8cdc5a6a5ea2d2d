"""The functions that ``-f NAME`` names."""

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
    """Where the functions and methods of these names stand; those that the code itself defines are listed with it.

    Raises:
        OptionError: A name that is no function, or one whose source nobody has.
    """
    texts = SourceTexts(notebook_sources())
    own = _defined(text)
    regions = []
    for name in dict.fromkeys(names):
        if name in own:
            continue
        thing = resolve_name(name, ChainMap(dict(namespace), vars(builtins)).__getitem__)
        code = code_object(thing)
        if code is None:
            if issubclass(type(thing), type):
                raise OptionError(f"{name!r} is a class: name a method, as in {name}.forward")
            raise OptionError(f"{name!r} is no function or method written in Python")
        regions.append(function_region(code, texts))
    return regions


def _defined(text: str) -> set[str]:
    """Names of the functions and methods that some code will define: ``train``, ``Net.forward``."""
    tree = SourceTexts({"": text}).tree("")
    if tree is None:
        return set()
    found = set()
    for node in tree.body:
        for inner in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(inner.name if inner is node else f"{node.name}.{inner.name}")  # type: ignore[attr-defined]
    return found
