"""Who holds the memory: the walk and the allocator's own books, joined into one table."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ipygpumem.core.device_names import device_words
from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.units import MIB, in_bytes, size
from ipygpumem.features.holders.model import KINDS, PLACES, Holder, Holders, Rest, Storage, Total
from ipygpumem.features.holders.naming import Root
from ipygpumem.features.holders.roots import made_by, module_roots, naming
from ipygpumem.features.holders.search import Reach, Walk, walk
from ipygpumem.features.holders.storage_baseline import Mark
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.allocator import AllocatedBlocks, Block, allocated_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ipygpumem.measurement.runtime import Runtime

__all__ = ["holders"]

_MAIN = "cpu"
_QUANTUM = 512
"""Bytes to which PyTorch's allocator rounds, where its blocks cannot be asked for."""
_TOLD = 3
"""Names that one sentence has."""
_PRINTS = MIB // 20
"""Bytes below which a size would print as 0.0."""


def holders(
    roots: Sequence[Root] | None = None,
    *,
    device: str | int | Iterable[str | int] | None = None,
    host: bool | None = None,
    since: Mark | None = None,
    limit: float = 10.0,
    label: Callable[[str, int, str], str] | None = None,
) -> Holders:
    """Who holds the memory now: every storage once, under its first name, the largest holder first.

    Nothing is collected, copied, or waited for, and no code of yours runs.

    Args:
        roots: Where names begin; None for what there is: the notebook's variables, outputs and tracebacks where the
            extension is loaded, else the module ``__main__``; then imported modules and running threads.
        device: The devices to tell of, as ``"cuda:0"``, ``0``, or several; ``"cpu"`` is main memory; None for all.
        host: Whether tensors in main memory count. None: only where PyTorch has no GPU.
        since: A `mark`: only storages that were not there then.
        limit: Seconds after which the walk stops, and says so.
        label: What is written for a recorded (file name, line, function); None for the session's way.

    Returns:
        The holders, in bytes as PyTorch's allocator rounds them. Per device they and the rest, which no Python object
        was found for, add up to its ``allocated``.

    Raises:
        OptionError: An argument that means nothing here, before anything is looked at.
    """
    _check(roots, since, limit)
    session = current()
    chosen = None if device is None else _devices(device, session)
    torch = pytorch.module()
    if torch is None:
        return Holders((), notes=("torch is not imported: nobody holds a tensor",))
    there = pytorch.started() is not None
    host = not there and pytorch.problem(load=True) is not None if host is None else host

    def wanted(name: str) -> bool:
        return name in chosen if chosen is not None else (name.startswith("cuda") or (host and name == "cpu"))

    given = roots if roots is not None else naming().roots()
    before = allocated_blocks() if there else None
    found = walk([*given, *module_roots(given)], torch, wanted, limit=limit)
    after = allocated_blocks() if there else None
    books = _Books(found, before, after, since, label or naming().label)
    totals = tuple(_total(name, books) for name in books.devices(torch if there else None, wanted))
    return Holders(
        books.holders(),
        totals,
        tuple(books.notes),
        complete=found.complete,
        objects=found.objects,
        seconds=found.seconds,
    )


def _check(roots: Any, since: Any, limit: Any) -> None:
    # a dict of names is the likeliest mistake, and its keys are no roots
    if roots is not None and not (isinstance(roots, (list, tuple)) and all(isinstance(one, Root) for one in roots)):
        raise OptionError(f"roots takes a list of Root, or None for what there is, not {type(roots).__name__}")
    if since is not None and not isinstance(since, Mark):
        raise OptionError(f"since takes what mark() gave, not {type(since).__name__}")
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0:
        raise OptionError(f"limit is in seconds, from 0 on: not {limit!r}")


def _devices(device: Any, session: Runtime) -> tuple[str, ...]:
    words = device_words(device, "device")
    cards = session.monitor.parse_devices(word for word in words if word.strip() != _MAIN)
    return (*cards, _MAIN) if any(word.strip() == _MAIN for word in words) else cards


class _Books:
    """The walk's storages as blocks of the allocator, which has gone on meanwhile: before it and after it."""

    def __init__(
        self,
        found: Walk,
        before: AllocatedBlocks | None,
        after: AllocatedBlocks | None,
        since: Mark | None,
        label: Callable[[str, int, str], str],
    ) -> None:
        self.notes = list(found.notes)
        self._before, self.after = before, after
        self._since = since
        self._label = label
        self.reached: set[tuple[str, int]] = set()
        self.storages: list[tuple[Reach, Storage]] = []
        foreign = 0
        for (device, address), group in self._grouped(found.reached).items():
            storage = self._storage(device, address, group)
            if storage is not None:
                self.storages.append((group[0], storage))
            elif not any(one is not None and one.contains(device, address) for one in (before, after)):
                foreign += max(one.memory.size for one in group)
        if foreign:
            self.notes.append(
                f"{size(foreign)} of tensors lie outside PyTorch's allocator, and are not counted: shared by another"
                " process, or another library's"
            )
        if not found.complete:
            self.notes.append(
                f"the walk stopped after {found.seconds:.1f} s: some names are missing, and what they hold is told as"
                " reached by none"
            )

    def _grouped(self, reached: list[Reach]) -> dict[tuple[str, int], list[Reach]]:
        """Storages by the block they lie in: two may share one."""
        groups: dict[tuple[str, int], list[Reach]] = defaultdict(list)
        rank = {place: i for i, place in enumerate(PLACES)}
        for reach in sorted(reached, key=lambda one: (one.graph, rank[one.place])):
            block = self._block(reach)
            address = reach.memory.address if block is None else block.address
            groups[reach.memory.device, address].append(reach)
        return groups

    def _block(self, reach: Reach) -> Block | None:
        return None if self.after is None else self.after.block(reach.memory.device, reach.memory.address)

    def _storage(self, device: str, address: int, group: list[Reach]) -> Storage | None:
        first = group[0]
        block = self._block(first)
        if device.startswith("cuda") and block is None and self.after is not None:
            return None
        amount = max(one.memory.size for one in group)
        if block is not None:
            amount = block.size
        elif device.startswith("cuda"):
            amount = -(-amount // _QUANTUM) * _QUANTUM
        self.reached.add((device, address))
        others = [name for one in group[1:] for name in (one.name, *one.also)]
        kind = min((one.kind for one in group), key=KINDS.index)
        return Storage(
            device,
            amount,
            kind,
            first.name,
            tuple(dict.fromkeys(name for name in (*first.also, *others) if name != first.name)),
            tuple(place for place in PLACES if any(place in one.places for one in group)),
            first.graph,
            first.tensor,
            "" if block is None else self._made(block),
            first.view,
            self._since is None or not self._since.has(device, address, [one.memory.storage for one in group]),
        )

    def _made(self, block: Block) -> str:
        return made_by(block.frames, self._label)

    def devices(self, torch: Any, wanted: Callable[[str], bool]) -> list[str]:
        """The devices to tell of: those with something on them."""
        names = {storage.device for _, storage in self.storages}
        names |= {block.device for block in self.blocks if wanted(block.device)}
        if torch is not None:
            indexes = range(torch.cuda.device_count())
            names |= {f"cuda:{i}" for i in indexes if wanted(f"cuda:{i}") and pytorch.has_context(torch, i)}
        return sorted(names)

    def holders(self) -> tuple[Holder, ...]:
        """The rows, the largest first."""
        rows: dict[tuple[str, str, str], list[tuple[Reach, Storage]]] = defaultdict(list)
        for reach, storage in self.storages:
            if storage.new:
                rows[reach.row, reach.place, storage.device].append((reach, storage))
        found = [self._holder(*key, parts) for key, parts in rows.items()]
        return tuple(sorted(found, key=lambda one: (-one.amount, one.name, one.device)))

    @staticmethod
    def _holder(name: str, place: Any, device: str, found: list[tuple[Reach, Storage]]) -> Holder:
        parts = tuple(sorted((storage for _, storage in found), key=lambda one: (-one.amount, one.name)))
        amounts = {kind: sum(part.amount for part in parts if part.kind == kind) for kind in KINDS}
        kinds = tuple(sorted(((k, v) for k, v in amounts.items() if v), key=lambda item: -item[1]))
        return Holder(name, place, device, sum(amounts.values()), len(parts), kinds, parts, _note(name, found))

    @property
    def blocks(self) -> list[Block]:
        """Every allocated block; none where the allocator does not tell."""
        return [] if self.after is None else self.after.blocks

    def unreached(self, device: str) -> tuple[list[Block], int]:
        """Blocks in use that no Python object was found for; and the bytes of those that came during the walk."""
        before = set() if self._before is None else set(self._before.positions)
        left, meanwhile = [], 0
        for block in self.blocks:
            place = (block.device, block.address)
            if block.device != device or place in self.reached:
                continue
            if self._before is None or place in before:
                left.append(block)
            else:
                meanwhile += block.size
        return left, meanwhile


def _note(name: str, found: list[tuple[Reach, Storage]]) -> str:
    """What a reader should know of a holder."""
    parts = sorted((storage for _, storage in found), key=lambda one: (-one.amount, one.name))
    shared = [(reach, part) for reach, part in found if part.graph and len(reach.keepers) > 1]
    graph = [part for reach, part in found if part.graph and len(reach.keepers) < 2]  # noqa: PLR2004 (this one's alone)
    kept, common = (sum(part.amount for part in some) for some in (graph, [part for _, part in shared]))
    if common > kept and common >= _PRINTS and 2 * (kept + common) >= sum(part.amount for part in parts):
        names = [name, *sorted({row for reach, _ in shared for row in reach.keepers} - {name})]
        both = "both" if len(names) == 2 else "all"  # noqa: PLR2004 (as it is said)
        told = f"{', '.join(names[:-1])} and {names[-1]} {both}" if len(names) <= _TOLD else f"{name} and others"
        return f"{told} keep {size(common)} of activations through the autograd graph"
    if kept >= _PRINTS and 2 * kept >= sum(part.amount for part in parts):
        owners = {part.name for part in graph}
        tensors = [part for part in parts if part.name in owners and not part.graph]
        scalar = bool(tensors) and all(part.tensor.endswith("[]") for part in tensors)
        way = ".item()" if scalar else ".detach()"
        who = name if len(owners) == 1 else f"{len(owners):,} tensors in {name}"
        verb = "keeps" if len(owners) == 1 else "keep"
        return f"{who} {verb} {size(kept)} of activations through the autograd graph; {way} would not"
    view = next((part for part in parts[:1] if part.view is not None and 2 * part.view <= part.amount >= MIB), None)
    if view is not None and view.view is not None:
        return f"{view.name} is a view of {_bytes(view.view)}, and keeps all {size(view.amount)}: .clone() would not"
    return ""


def _bytes(count: int) -> str:
    return size(count) if count >= _PRINTS else in_bytes(count)


def _total(device: str, books: _Books) -> Total:
    held = sum(storage.amount for _, storage in books.storages if storage.device == device)
    if not device.startswith("cuda"):
        return Total(device, held)
    try:
        allocated = allocator.state(int(device.rpartition(":")[2])).now.allocated
    except Exception as error:  # a pluggable allocator, a failed kernel
        books.notes.append(f"{device}: what is allocated is not known ({first_line(error)})")
        return Total(device, held)
    left, meanwhile = books.unreached(device)
    if books.after is not None:
        meanwhile += allocated - books.after.allocated(device)
    rest = []
    workspace = _workspace(device, left)
    if workspace:
        rest.append(Rest("cuBLAS workspace, since the preload", workspace))
    private = sum(block.size for block in left if tuple(block.pool) != (0, 0))
    if private:
        rest.append(Rest("private pools, as of CUDA graphs", private))
    if meanwhile:
        rest.append(Rest("allocated while it looked, by other threads", meanwhile))
    unknown = allocated - held - workspace - private - meanwhile
    if unknown:
        rest.append(Rest("not reachable from Python: autograd graph, C++, in flight", unknown))
    return Total(device, held, tuple(rest), allocated)


def _workspace(device: str, left: list[Block]) -> int:
    baseline = current().baseline
    if baseline is None or baseline.device != device or not baseline.workspace:
        return 0
    return min(baseline.workspace, sum(block.size for block in left if tuple(block.pool) == (0, 0)))
