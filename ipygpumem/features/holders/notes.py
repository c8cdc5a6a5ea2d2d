"""Create holders from their storages, with notes on autograd graphs and small views that keep memory alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.units import MIB, VISIBLE, many, size
from ipygpumem.features.holders.model import KINDS, Holder

if TYPE_CHECKING:
    from ipygpumem.features.holders.model import Storage
    from ipygpumem.features.holders.search import NamedStorage

_MAX_NAMES = 3


def holder(name: str, place: Any, device: str, members: list[NamedStorage]) -> Holder:
    """Create a holder from its storages, with a note if there is an obvious reason why the memory is in use."""
    parts = tuple(sorted((named.info for named in members), key=lambda storage: (-storage.amount, storage.name)))
    sizes = dict.fromkeys(KINDS, 0)
    for part in parts:
        sizes[part.kind] += part.amount
    kinds = tuple(sorted(((kind, nbytes) for kind, nbytes in sizes.items() if nbytes), key=lambda item: -item[1]))
    return Holder(name, place, device, sum(sizes.values()), len(parts), kinds, parts, _note(name, members, parts))


def _note(name: str, members: list[NamedStorage], parts: tuple[Storage, ...]) -> str:
    total = sum(part.amount for part in parts)
    shared = [named for named in members if named.info.graph and len(named.graph_holders) > 1]
    own = [named.info for named in members if named.info.graph and len(named.graph_holders) <= 1]
    shared_size, own_size = sum(named.info.amount for named in shared), sum(part.amount for part in own)
    if shared_size > own_size and shared_size >= VISIBLE and 2 * (own_size + shared_size) >= total:
        names = [name, *sorted({holder for named in shared for holder in named.graph_holders} - {name})]
        owners = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) <= _MAX_NAMES else f"{name} and others"
        return f"the autograd graphs of {owners} keep the same {size(shared_size)} of activations alive"
    if own_size >= VISIBLE and 2 * own_size >= total:
        owner_names = {part.name for part in own}
        tensors = [part for part in parts if part.name in owner_names and not part.graph]
        is_scalar = bool(tensors) and all(part.tensor.endswith("[]") for part in tensors)
        kept = size(own_size)
        graphs = f"the autograd graph of {name} keeps {kept} of activations alive"
        if len(owner_names) > 1:
            graphs = f"the autograd graphs of {len(owner_names):,} tensors in {name} keep {kept} of activations alive"
        replacement = ".item()" if is_scalar else ".detach()"
        return f"{graphs}; to avoid this, store the result of {replacement} instead"
    largest = parts[0]
    if largest.view is not None and 2 * largest.view <= largest.amount >= MIB:
        viewed = size(largest.view) if largest.view >= VISIBLE else many(largest.view, "byte")
        usage = f"{largest.name}, a view of {viewed}, keeps {size(largest.amount)} alive"
        return f"{usage}; to avoid this, replace the view with its .clone()"
    return ""
