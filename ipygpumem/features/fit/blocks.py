"""Modules of a model that activation checkpointing can be applied to, and the code that applies it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any

from ipygpumem.core.introspection import instance_dict, is_instance

_CONTAINERS = ("ModuleList", "ModuleDict", "Sequential")
_CHECKPOINT_CODE = "block.forward = partial(checkpoint, block.forward, use_reentrant=False)"


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A module whose activations can be recomputed.

    Attributes:
        model: Name of the variable or attribute that refers to the model.
        root: The model.
        path: Qualified name of the module in the model.
        module: The module.
    """

    model: str
    root: Any
    path: str
    module: Any


def find_blocks(torch: Any, instances: Iterable[Any], namespaces: Iterable[dict[str, Any]]) -> list[Block]:
    """Return the repeated modules of all models among ``instances``.

    These are the outermost modules with submodules that are repeated in a list of modules. A part of a model without
    such a list is one block, but a whole model is none.
    """
    modules = [value for value in instances if is_instance(value, torch.nn.Module)]
    children = {id(child) for module in modules for child in module._modules.values()}
    named: dict[int, str] = {}
    for value in instances:
        for name, item in (instance_dict(value) or {}).items():
            named.setdefault(id(item), f"self.{name}")
    for variables in namespaces:
        named |= {id(item): name for name, item in variables.items() if not name.startswith("_")}
    result: dict[int, Block] = {}
    for root in modules:
        if id(root) not in children:
            for path, module in _blocks(root, ""):
                result.setdefault(id(module), Block(named.get(id(root), "model"), root, path, module))
    return list(result.values())


def _blocks(module: Any, path: str) -> list[tuple[str, Any]]:
    children = [(name, child) for name, child in module._modules.items() if child is not None and child._modules]
    kinds = Counter(type(child) for _, child in children)
    in_list = type(module).__name__ in _CONTAINERS
    result = []
    for name, child in children:
        child_path = f"{path}.{name}" if path else name
        inner = [] if in_list and kinds[type(child)] > 1 else _blocks(child, child_path)
        called = type(child).__name__ not in _CONTAINERS[:2]
        result += inner or ([(child_path, child)] if called else [])
    return result


class Checkpointing:
    """Context manager that applies activation checkpointing to blocks."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._modules = [block.module for block in blocks]
        self._undo: list[tuple[dict[str, Any], Any]] = []

    def __enter__(self) -> None:
        checkpoint = import_module("torch.utils.checkpoint").checkpoint
        for module in self._modules:
            self._undo.append((vars(module), vars(module).get("forward")))
            vars(module)["forward"] = functools.partial(checkpoint, module.forward, use_reentrant=False)

    def __exit__(self, *_: object) -> None:
        for attributes, forward in reversed(self._undo):
            if forward is None:
                del attributes["forward"]
            else:
                attributes["forward"] = forward


def checkpoint_code(blocks: Sequence[Block], count: int) -> str:
    """Return Python code that applies activation checkpointing to blocks, of which there are ``count`` in total."""
    first = blocks[0]
    roots = {id(block.root) for block in blocks}
    if len(blocks) == count and len(roots) == 1 and hasattr(first.root, "gradient_checkpointing_enable"):
        return f'{first.model}.gradient_checkpointing_enable({{"use_reentrant": False}})'
    loops = [f"for block in {text}:\n    {_CHECKPOINT_CODE}" for text in _selections(blocks)]
    imports = "from functools import partial\nfrom torch.utils.checkpoint import checkpoint\n\n"
    return imports + "\n".join(loops)


def _selections(blocks: Sequence[Block]) -> list[str]:
    """Return expressions for the blocks: slices of lists of modules, and otherwise tuples of modules."""
    single: list[str] = []
    result = []
    for (model, parent), group in groupby(blocks, lambda block: (block.model, block.path.rpartition(".")[0])):
        members = list(group)
        numbers = [int(name) if (name := block.path.rpartition(".")[2]).isdigit() else -1 for block in members]
        expression = f"{model}.{parent}" if parent else model
        siblings = members[0].root.get_submodule(parent)
        is_range = numbers[0] >= 0 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        if is_range and type(siblings).__name__ in _CONTAINERS and len(numbers) > 1:
            whole = len(numbers) == len(siblings)
            result.append(_indexed(expression) if whole else f"{_indexed(expression)}[{numbers[0]}:{numbers[-1] + 1}]")
        else:
            single += [_indexed(f"{model}.{block.path}") for block in members]
    return result + ([f"({', '.join(single)},)"] if single else [])


def _indexed(expression: str) -> str:
    """Return an expression in which numbers are indices: ``model.blocks[0].mlp`` for ``model.blocks.0.mlp``."""
    first, *parts = expression.split(".")
    return first + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)
