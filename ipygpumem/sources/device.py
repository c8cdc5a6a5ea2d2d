"""One CUDA device paired with its NVML entry: by UUID, and our own process in it by a growth that only we can cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ipygpumem.core.errors import NvmlError, first_line
from ipygpumem.core.reading import DeviceMemory, DeviceReading
from ipygpumem.core.units import MIB
from ipygpumem.sources import cuda, pytorch
from ipygpumem.sources.host import namespace_pids

if TYPE_CHECKING:
    from ipygpumem.core.reading import Mode
    from ipygpumem.sources.nvml import Nvml
    from ipygpumem.sources.pytorch import AllocatorState

__all__ = ["Device", "DriverReading"]

_STEPS = (34 * MIB, 38 * MIB)
"""Sizes of the growth probe: odd enough that no library takes just that, multiples of CUDA's 2 MiB granularity."""
_TOLERANCE = 2 * MIB
_ROOM = 256 * MIB


class DriverReading(NamedTuple):
    """What one card said at one moment: has this process a context, whose bytes are there, what went wrong."""

    context: bool
    memory: DeviceMemory | None
    process: int | None
    others: int | None
    trouble: str
    busy: bool | None
    listed: tuple[tuple[int, int | None], ...] = ()
    highest: int | None = None


@dataclass(slots=True)
class Device:
    """One device of this process, named as PyTorch names it.

    ``own`` is the process id under which NVML lists us, once verified; ``mode`` and ``why`` say what can be claimed.
    ``segments`` is PyTorch's count of moved segments at the last reading, ``listed`` the other processes then, and
    ``others`` their sum.
    """

    index: int
    label: str
    uuid: str | None
    total: int | None
    nvml: Nvml | None
    handle: Any = None
    own: int | None = None
    mode: Mode = "torch-only"
    why: str = ""
    graphics: bool = False
    accounts: bool = False
    verified: bool = False
    segments: int | None = None
    listed: tuple[tuple[int, int | None], ...] = ()
    others: int = 0

    @property
    def name(self) -> str:
        """As PyTorch writes it: ``cuda:0``."""
        return f"cuda:{self.index}"

    @classmethod
    def find(cls, torch: Any, index: int, nvml: Nvml | None, reason: str) -> Device:
        """The device with this torch index, paired with NVML's by UUID. Creates no context.

        ``reason`` is why there is no NVML, where there is none.
        """
        properties = torch.cuda.get_device_properties(index)
        uuid = str(properties.uuid) if hasattr(properties, "uuid") else None
        card = cls(index, str(properties.name), uuid, int(properties.total_memory), nvml, why=reason)
        if nvml is None:
            return card
        try:
            handle, parent = nvml.handle(uuid or "", _pci(properties))
        except NvmlError as error:
            card.why = str(error)
            return card
        if parent:
            card.why = "only the parent card of this MIG instance can be read, and its figures are not ours"
            return card
        card.graphics, card.accounts = _graphics(nvml, handle), nvml.accounts(handle)
        card.handle, card.mode, card.why = handle, "device", "no CUDA context of this process yet"
        return card

    def verify(self, torch: Any, reserved: int | None) -> None:
        """Find our own entry in NVML's list: take memory past PyTorch, give it back, and see whose entry follows.

        Needs a context on the device and no graph being captured; costs one or two raw allocations of 34 MiB. Once per
        device. ``reserved`` is what PyTorch holds there, in bytes.
        """
        self.verified = True
        if self.nvml is None or self.handle is None:
            return
        try:
            self._verify(torch, self.nvml, reserved)
        except Exception as error:  # NVML refuses, or a kernel has failed: the readings go on with what is left
            self.mode, self.own, self.why = "device", None, f"no attribution by process: {first_line(error)}"

    def _verify(self, torch: Any, nvml: Nvml, reserved: int | None) -> None:
        entries = nvml.processes(self.handle)
        # machines of unified memory tell the list but not the card
        memory = _memory(nvml, self.handle) or pytorch.device_memory(torch, self.index)
        if memory is not None and memory.total - memory.used < _ROOM:
            self._by_pid(entries, reserved, "the card is too full for a growth probe")
            return
        candidates = set(entries)
        moved = False
        with torch.cuda.device(self.index):
            for step in _STEPS:
                grown = self._grown(nvml, step)
                if grown is None:
                    self._by_pid(entries, reserved, "no memory outside PyTorch could be taken for a growth probe")
                    return
                pids, card_moved = grown
                candidates &= pids
                moved |= card_moved
                if len(candidates) == 1 and card_moved:
                    break
        if len(candidates) == 1:
            self.own, self.mode, self.why = candidates.pop(), "process", "own entry verified by a growth probe"
        elif not moved and not candidates:
            self.mode, self.handle, self.own = "torch-only", None, None
            self.why = "NVML's card of that UUID did not move with our own allocation"
        else:
            self.mode, self.own, self.why = "device", None, _hidden(entries, ambiguous=bool(candidates))

    def _grown(self, nvml: Nvml, step: int) -> tuple[set[int], bool] | None:
        """The entries that followed one allocation up and down, and whether the card as a whole did."""
        before, card_before = nvml.processes(self.handle), _memory(nvml, self.handle)
        with cuda.raw_allocation(step) as taken:
            if not taken:
                return None
            during, card_during = nvml.processes(self.handle), _memory(nvml, self.handle)
        after, card_after = nvml.processes(self.handle), _memory(nvml, self.handle)
        followed = {
            pid
            for pid, amount in during.items()
            if amount is not None
            and _near(amount - (before.get(pid) or 0), step)
            and _near(amount - (after.get(pid) or 0), step)
        }
        if card_before is None or card_during is None or card_after is None:
            return followed, bool(followed)  # no figure of the card: the entry itself proves it
        moved = _near(card_during.used - card_before.used, step) and _near(card_during.used - card_after.used, step)
        return followed, moved

    def _by_pid(self, entries: dict[int, int | None], reserved: int | None, why: str) -> None:
        """Without a growth probe: our own process id counts, if its entry can hold what PyTorch reserved."""
        for pid in namespace_pids():
            amount = entries.get(pid)
            if amount is not None and amount >= max(reserved or 0, 1):
                self.own, self.mode, self.why = pid, "process", f"own entry by process id ({why})"
                return
        self.own, self.mode, self.why = None, "device", f"{_hidden(entries, ambiguous=False)} ({why})"

    def entries(self) -> dict[int, int | None]:
        """Bytes by process id of everybody on the card, this process among them.

        Raises:
            NvmlError: NVML does not tell.
        """
        if self.nvml is None or self.handle is None:
            raise NvmlError(self.why or "NVML does not know this device")
        return self.nvml.processes(self.handle, graphics=self.graphics)

    def read_driver(self, torch: Any, *, capturing: bool, busy: bool) -> DriverReading:
        """What the card says now, apart from PyTorch's allocator; ``busy`` asks whether it is at work, too."""
        context = pytorch.has_context(torch, self.index)
        callable_now = context and not capturing
        memory, process, others, trouble = self._card(torch, callable_now=callable_now)
        at_work = pytorch.busy(torch, self.index) if callable_now and busy else None
        highest = None
        if self.accounts and process is not None and self.nvml is not None and self.own is not None:
            highest = self.nvml.highest(self.handle, self.own)
        listed = () if others is None else self.listed
        return DriverReading(context, memory, process, others, trouble, at_work, listed, highest)

    def reading(self, driver_reading: DriverReading, state: AllocatorState | None, torch_why: str) -> DeviceReading:
        """Combine the driver's figures with the allocator's counters; ``state`` is None if there are none."""
        context, memory, process, others, trouble, busy, listed, highest = driver_reading
        mode, why = self.mode, trouble or self.why
        if mode == "process" and process is None:
            mode, why = "device", trouble or "our own entry is missing from NVML's list"
        elif process is not None and state is not None and process < state.now.reserved:
            # a rule of the ledger: such an entry is torn or not ours, and what it gives is never shown
            mode, why, process, others = "device", "NVML's entry is smaller than what PyTorch holds", None, None
            listed = ()
        if mode == "device" and memory is None:
            mode = "torch-only"
        elif mode == "torch-only" and memory is not None:
            mode = "device"
        if not context and process is None:
            process = 0  # no context, no memory: certain without NVML
        return DeviceReading(
            name=self.name,
            context=context,
            allocated=None if state is None else state.now.allocated,
            reserved=None if state is None else state.now.reserved,
            active=None if state is None else state.now.active,
            requested=None if state is None else state.now.requested,
            inactive_split=None if state is None else state.inactive_split,
            retries=None if state is None else state.retries,
            ooms=None if state is None else state.ooms,
            used=None if memory is None else memory.used,
            driver_reserved=None if memory is None else memory.reserved,
            process=process,
            others=others,
            total=self.total if memory is None else memory.total,
            mode=mode,
            why=why,
            source=None if memory is None else memory.source,
            busy=busy,
            torch_why=torch_why,
            listed=listed,
            highest=highest if mode == "process" else None,
        )

    def _card(self, torch: Any, *, callable_now: bool) -> tuple[DeviceMemory | None, int | None, int | None, str]:
        """The card's memory, our entry, the sum of the others' and what went wrong."""
        trouble = ""
        if self.nvml is not None and self.handle is not None:
            memory, process, others, trouble = self._from_nvml(self.nvml)
            if memory is not None or process is not None:
                return memory, process, others, trouble
        if callable_now:
            return pytorch.device_memory(torch, self.index), None, None, trouble
        return None, None, None, trouble

    def _from_nvml(self, nvml: Nvml) -> tuple[DeviceMemory | None, int | None, int | None, str]:
        memory = process = others = None
        trouble = ""
        # apart, for each can fail alone: unified-memory machines tell the list but not the card's figure
        try:
            memory = nvml.memory(self.handle)
        except NvmlError as error:
            trouble = str(error)
        if self.own is None:
            return memory, None, None, trouble
        try:
            entries = nvml.processes(self.handle, graphics=self.graphics)
        except NvmlError as error:
            return memory, None, None, str(error)
        process = entries.pop(self.own, None) or None  # absent and 0 both mean: not known
        if process is not None:
            listed = tuple(entries.items())
            if listed != self.listed:  # else thousands of reports share one, and its sum
                self.listed, self.others = listed, sum(amount for amount in entries.values() if amount is not None)
            others = self.others
        return memory, process, others, trouble


def _memory(nvml: Nvml, handle: Any) -> DeviceMemory | None:
    try:
        return nvml.memory(handle)
    except NvmlError:
        return None


def _near(amount: int, step: int) -> bool:
    return abs(amount - step) <= _TOLERANCE


def _pci(properties: Any) -> str | None:
    if not hasattr(properties, "pci_bus_id"):
        return None
    return f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}.0"


def _graphics(nvml: Nvml, handle: Any) -> bool:
    """Whether anybody draws on the card: only then is that list asked for again."""
    try:
        return nvml.processes(handle, graphics=True).keys() != nvml.processes(handle).keys()
    except NvmlError:
        return False


def _hidden(entries: dict[int, int | None], *, ambiguous: bool) -> str:
    if ambiguous:
        return "several entries of NVML's list moved with our own allocation"
    if not entries:
        return "NVML lists no process: this one is hidden by its container"
    if all(amount is None for amount in entries.values()):
        return "NVML tells no memory by process here (WSL2, Windows)"
    if any(entries.get(pid) == 0 for pid in namespace_pids()):
        return "NVML tells 0 for this process: the driver hides it from its container"
    return "this process is not in NVML's list"
