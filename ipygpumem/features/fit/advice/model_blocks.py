"""Modules of a model to which activation checkpointing can be applied, and the code that applies it."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any

from ipygpumem.core.introspection import attempt, instance_dict, is_instance
from ipygpumem.features.fit.containers import named_values

_CONTAINERS = ("ModuleList", "ModuleDict", "Sequential")
_LISTS = ("ModuleList", "Sequential")
_CHECKPOINT_CODE = "block.forward = partial(checkpoint, block.forward, use_reentrant=False)"


@dataclass(frozen=True, slots=True)
class ModelBlockName:
    """The name by which the program can access a block of a model.

    Attributes:
        model: Name of the variable or attribute that refers to the model.
        path: Qualified name of the module in the model.
        siblings: Number of modules in the list that contains the module; 0 if no list contains it.
        enables: Whether the model has the method ``gradient_checkpointing_enable`` of Transformers.
        type: Class name of the module.
    """

    model: str
    path: str
    siblings: int
    enables: bool
    type: str

    @property
    def parent(self) -> str:
        """Python expression for the module that contains this module, such as a `ModuleList`."""
        return _expression(self.model, self.path.rpartition(".")[0])


@dataclass(frozen=True, slots=True, eq=False)
class ModelBlock:
    """A module whose activations can be recomputed, and its name."""

    name: ModelBlockName
    module: Any


def find_blocks(torch: Any, instances: Iterable[Any], namespaces: Iterable[dict[str, Any]]) -> list[ModelBlock]:
    """Return the blocks of all models in ``instances``: modules that have submodules.

    The outermost modules that have a sibling of the same class in a container such as `ModuleList` are blocks. Other
    modules are blocks if they contain no block. Whole models, `ModuleList` and `ModuleDict` are never blocks.
    """
    modules = [value for value in instances if is_instance(value, torch.nn.Module)]
    children = {id(child) for module in modules for child in module._modules.values()}
    name_by_id: dict[int, str] = {}
    for value in instances:
        for attribute, item in named_values(instance_dict(value) or {}):
            name_by_id.setdefault(id(item), f"self.{attribute}")
    for variables in namespaces:
        name_by_id |= {id(item): key for key, item in named_values(variables) if not key.startswith("_")}
    result: dict[int, ModelBlock] = {}
    for root in modules:
        if id(root) not in children:
            model = name_by_id.get(id(root), "model")
            enables = attempt(functools.partial(getattr, root, "gradient_checkpointing_enable")) is not None
            for path, module in _blocks(root, ""):
                place, _, last_part = path.rpartition(".")
                # get_submodule does not exist for scripted modules
                parent = functools.reduce(
                    lambda module, part: module._modules[part], filter(None, place.split(".")), root
                )
                siblings = len(parent._modules) if type(parent).__name__ in _LISTS and last_part.isdigit() else 0
                name = ModelBlockName(model, path, siblings, enables, type(module).__name__)
                result.setdefault(id(module), ModelBlock(name, module))
    return list(result.values())


def _blocks(module: Any, path: str) -> list[tuple[str, Any]]:
    children = [(name, child) for name, child in module._modules.items() if child is not None and child._modules]
    kinds = Counter(type(child) for _, child in children)
    in_list = type(module).__name__ in _CONTAINERS
    result = []
    for name, child in children:
        child_path = f"{path}.{name}" if path else name
        inner = [] if in_list and kinds[type(child)] > 1 else _blocks(child, child_path)
        called = type(child).__name__ not in {"ModuleList", "ModuleDict"}
        result += inner or ([(child_path, child)] if called else [])
    return result


@contextlib.contextmanager
def checkpointing(blocks: Sequence[ModelBlock]) -> Iterator[None]:
    checkpoint = import_module("torch.utils.checkpoint").checkpoint
    saved_forwards = [(vars(block.module), vars(block.module).get("forward")) for block in blocks]
    try:
        for block in blocks:
            vars(block.module)["forward"] = functools.partial(checkpoint, block.module.forward, use_reentrant=False)
        yield
    finally:
        for attributes, forward in reversed(saved_forwards):
            attributes["forward"] = forward
            if forward is None:
                del attributes["forward"]


def checkpoint_code(blocks: Sequence[ModelBlockName], count: int) -> str:
    """Return Python code that applies activation checkpointing to ``blocks``. The model has ``count`` blocks."""
    if len(blocks) == count and len({block.model for block in blocks}) == 1 and blocks[0].enables:
        return f'{blocks[0].model}.gradient_checkpointing_enable({{"use_reentrant": False}})'
    loops = [f"for block in {text}:\n    {_CHECKPOINT_CODE}" for text in block_expressions(blocks)]
    return "\n".join(["from functools import partial", "from torch.utils.checkpoint import checkpoint", *loops])


def block_expressions(blocks: Sequence[ModelBlockName]) -> list[str]:
    """Return Python expressions for blocks: module lists, parts of such lists, and a list of all other modules."""
    single: list[str] = []
    result = []
    for parent, group in groupby(blocks, lambda block: block.parent if block.siblings else ""):
        members = list(group)
        if not parent:
            single += [_expression(block.model, block.path) for block in members]
            continue
        numbers = [int(block.path.rpartition(".")[2]) for block in members]
        if len(numbers) == members[0].siblings:
            result.append(parent)
        elif numbers == list(range(numbers[0], numbers[-1] + 1)):
            result.append(f"{parent}[{numbers[0]}:{numbers[-1] + 1}]")
        else:
            result.append(f"[{parent}[i] for i in ({', '.join(map(str, numbers))})]")
    return result + ([f"[{', '.join(single)}]"] if single else [])


def _expression(model: str, path: str) -> str:
    """Return a Python expression for a module, such as ``model.encoder.layers``."""
    names = path.split(".") if path else []
    return ".".join([model, *names]) if all(map(str.isidentifier, names)) else f'{model}.get_submodule("{path}")'
