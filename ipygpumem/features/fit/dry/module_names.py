"""Labels of the modules of a model, by which allocations are grouped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

OUTSIDE = "(outside all modules)"


class ModuleNames:
    """Maps modules, and the parameters and buffers that they own, to labels. ``modules`` includes all submodules."""

    def __init__(self, modules: Iterable[Any]) -> None:
        modules = list(modules)
        inner = {id(child) for module in modules for child in module._modules.values()}
        roots = [module for module in modules if id(module) not in inner]
        self._names: dict[int, str] = {}
        self._owners: dict[int, str] = {}
        for root in roots:
            for name, module in _named_modules(root, set()):
                label = _label(root, name)
                prefixed = len(roots) > 1 and name
                self._names.setdefault(id(module), f"{type(root).__name__}.{label}" if prefixed else label)
        for module in modules:
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    self._owners.setdefault(id(tensor), self.label(module))

    def label(self, module: Any) -> str:
        """Return the label of a module, such as ``blocks.*.mlp``, or `OUTSIDE` for None."""
        if module is None:
            return OUTSIDE
        return self._names.get(id(module)) or type(module).__name__

    def owner(self, tensor: Any) -> str:
        """Return the label of the module that owns a parameter or a buffer, or `OUTSIDE` for other tensors."""
        return self._owners.get(id(tensor), OUTSIDE)

    def is_owned(self, tensor: Any) -> bool:
        """Return whether a tensor is a parameter or a buffer."""
        return id(tensor) in self._owners


def _named_modules(module: Any, visited: set[int], name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and modules like ``Module.named_modules``, which cannot be used because it may be overridden."""
    visited.add(id(module))
    yield name, module
    for key, child in module._modules.items():
        if child is not None and id(child) not in visited:
            yield from _named_modules(child, visited, f"{name}.{key}".lstrip("."))


def _label(root: Any, name: str) -> str:
    """Return a label that is the same for all repeated blocks, such as ``blocks.*.mlp`` for ``blocks.0.mlp``."""
    parts, parent = [], root
    for part in filter(None, name.split(".")):
        kinds = {type(child) for child in parent._modules.values()}
        parts.append("*" if part.isdecimal() and len(kinds) == 1 else part)
        parent = parent._modules[part]
    label = ".".join(parts) or type(root).__name__
    return f"{label} ({type(parent).__name__})" if label[-1].isdecimal() or label[-1] == "*" else label
