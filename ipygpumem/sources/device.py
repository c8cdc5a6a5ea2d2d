"""A CUDA device and its NVML entry.

The two are matched by UUID. This process's entry in NVML's list is found by an allocation that the entry must follow.
"""

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
    from ipygpumem.sources.allocator import AllocatorStatistics
    from ipygpumem.sources.nvml import Nvml

_TEST_SIZES = (34 * MIB, 38 * MIB)
"""Test allocations: multiples of CUDA's granularity of 2 MiB, but sizes that no library is likely to allocate."""
_TOLERANCE = 2 * MIB
_REQUIRED_FREE = 256 * MIB


class DriverReading(NamedTuple):
    """A device at one instant according to the driver: everything but PyTorch's allocator.

    ``problem`` is what could not be read, ``listed`` the other processes with their bytes, and ``highest`` the most
    memory that this process has ever used, if the driver's accounting mode is on.
    """

    context: bool
    memory: DeviceMemory | None = None
    process: int | None = None
    others: int | None = None
    problem: str = ""
    busy: bool | None = None
    listed: tuple[tuple[int, int | None], ...] = ()
    highest: int | None = None


@dataclass(slots=True)
class Device:
    """A device of this process, with PyTorch's index and the product name.

    Attributes:
        nvml: None, with the ``reason``, if NVML does not have this device; otherwise ``handle`` is its handle.
        own_pid: The pid under which NVML lists this process, once verified.
        mode: What can be attributed (see `DeviceReading`), with the ``reason``.
        graphics: Whether graphics processes use the device; ``accounting`` is the driver's accounting mode.
        segments: PyTorch's count of changed segments at the last reading.
        listed: The other processes at the last reading, and ``others`` the sum of their bytes.
    """

    index: int
    label: str
    uuid: str | None
    total: int | None
    nvml: Nvml | None = None
    handle: Any = None
    own_pid: int | None = None
    mode: Mode = "torch-only"
    reason: str = ""
    graphics: bool = False
    accounting: bool = False
    verified: bool = False
    segments: int | None = None
    listed: tuple[tuple[int, int | None], ...] = ()
    others: int = 0

    @property
    def name(self) -> str:
        """PyTorch's name: ``cuda:0``."""
        return f"cuda:{self.index}"

    @classmethod
    def find(cls, torch: Any, index: int, nvml: Nvml | None, reason: str) -> Device:
        """Return a device with its NVML handle. Creates no context. ``reason`` says why ``nvml`` is None."""
        properties = torch.cuda.get_device_properties(index)
        uuid = str(properties.uuid) if hasattr(properties, "uuid") else None
        device = cls(index, str(properties.name), uuid, int(properties.total_memory), reason=reason)
        if nvml is None:
            return device
        try:
            handle, is_mig_parent = nvml.handle(uuid or "", _pci_bus_id(properties))
        except NvmlError as error:
            device.reason = str(error)
            return device
        if is_mig_parent:
            device.reason = "NVML can read only the whole GPU of this MIG instance, which others may share"
            return device
        device.graphics, device.accounting = _has_graphics(nvml, handle), nvml.has_accounting(handle)
        device.nvml, device.handle = nvml, handle
        device.mode, device.reason = "device", "no CUDA context of this process yet"
        return device

    def verify(self, torch: Any, reserved: int | None) -> None:
        """Find this process's entry in NVML's list: the one that follows test allocations outside PyTorch of 34 MiB.

        Called once per device, with a context and while no graph is being captured. ``reserved`` is the memory that
        PyTorch has reserved, in bytes.
        """
        self.verified = True
        if self.nvml is None:
            return
        try:
            self._verify(torch, self.nvml, reserved)
        except Exception as error:  # NVML fails, or a kernel has failed: other values can still be read
            self._set_mode("device", f"no attribution by process: {first_line(error)}")

    def _set_mode(self, mode: Mode, reason: str, own_pid: int | None = None) -> None:
        self.mode, self.reason, self.own_pid = mode, reason, own_pid

    def _verify(self, torch: Any, nvml: Nvml, reserved: int | None) -> None:
        entries = nvml.processes(self.handle)
        # machines with unified memory have a process list, but no value for the whole device
        memory = device_memory(nvml, self.handle) or pytorch.device_memory(torch, self.index)
        if memory is not None and memory.total - memory.used < _REQUIRED_FREE:
            self._match_pid(entries, reserved, "too little free memory for a test allocation")
            return
        candidates = set(entries)
        device_changed = False
        with torch.cuda.device(self.index):
            for nbytes in _TEST_SIZES:
                result = self._test_allocation(nvml, nbytes)
                if result is None:
                    self._match_pid(entries, reserved, "the test allocation outside PyTorch failed")
                    return
                pids, changed = result
                candidates &= pids
                device_changed |= changed
                if len(candidates) == 1 and changed:
                    break
        if len(candidates) == 1:
            self._set_mode("process", "NVML entry verified by a test allocation", candidates.pop())
        elif not device_changed and not candidates:
            self.nvml = None
            self._set_mode("torch-only", "NVML's device with this UUID did not change with a test allocation")
        else:
            self._set_mode("device", _missing_entry(entries, ambiguous=bool(candidates)))

    def _test_allocation(self, nvml: Nvml, nbytes: int) -> tuple[set[int], bool] | None:
        """Allocate and free memory; return the pids whose entries followed, and whether the whole device did."""
        before, memory_before = nvml.processes(self.handle), _used(nvml, self.handle)
        with cuda.raw_allocation(nbytes) as allocated:
            if not allocated:
                return None
            during, memory_during = nvml.processes(self.handle), _used(nvml, self.handle)
        after, memory_after = nvml.processes(self.handle), _used(nvml, self.handle)
        pids = {
            pid for pid, size in during.items() if _followed(before.get(pid) or 0, size, after.get(pid) or 0, nbytes)
        }
        if memory_before is None or memory_during is None or memory_after is None:
            return pids, bool(pids)  # without a value for the whole device the entry is sufficient
        return pids, _followed(memory_before, memory_during, memory_after, nbytes)

    def _match_pid(self, entries: dict[int, int | None], reserved: int | None, reason: str) -> None:
        """Without a test allocation: accept the entry with our pid if it is large enough for PyTorch's memory."""
        for pid in namespace_pids():
            size = entries.get(pid)
            if size is not None and size >= max(reserved or 0, 1):
                self._set_mode("process", f"NVML entry found by process id ({reason})", pid)
                return
        self._set_mode("device", f"{_missing_entry(entries, ambiguous=False)} ({reason})")

    def entries(self) -> dict[int, int | None]:
        """Return the bytes of every process on the device by pid, including this process; may raise NvmlError."""
        if self.nvml is None:
            raise NvmlError(self.reason or "NVML does not know this device")
        return self.nvml.processes(self.handle, graphics=self.graphics)

    def read_driver(self, torch: Any, *, capturing: bool, busy: bool) -> DriverReading:
        """Read what the driver reports; ``busy`` includes whether work is queued on the device."""
        context = pytorch.has_context(torch, self.index)
        memory, process, highest, problem = None, None, None, ""
        entries: dict[int, int | None] = {}
        if self.nvml is not None:
            try:
                memory = self.nvml.memory(self.handle)
            except NvmlError as error:  # the list may still work: machines with unified memory
                problem = str(error)
            if self.own_pid is not None:
                try:
                    entries = self.nvml.processes(self.handle, graphics=self.graphics)
                except NvmlError as error:
                    problem = str(error)
                process = entries.pop(self.own_pid, None) or None  # missing and 0 both mean unknown
                if process is not None and self.accounting:
                    highest = self.nvml.highest(self.handle, self.own_pid)
        if context and not capturing and memory is None and process is None:
            memory = pytorch.device_memory(torch, self.index)
        is_busy = pytorch.busy(torch, self.index) if busy and context and not capturing else None
        if process is None:
            return DriverReading(context, memory, problem=problem, busy=is_busy)
        listed = tuple(entries.items())
        if listed != self.listed:  # keep the old object otherwise: thousands of reports share it
            self.listed, self.others = listed, sum(size for size in entries.values() if size is not None)
        return DriverReading(context, memory, process, self.others, problem, is_busy, self.listed, highest)

    def reading(self, driver: DriverReading, state: AllocatorStatistics | None, torch_reason: str) -> DeviceReading:
        """Combine the driver's values with the allocator's counters, None if it keeps none."""
        memory, process, others, listed = driver.memory, driver.process, driver.others, driver.listed
        mode, reason = self.mode, driver.problem or self.reason
        if mode == "process" and process is None:
            mode, reason = "device", driver.problem or "this process's entry is missing from NVML's list"
        elif process is not None and state is not None and process < state.now.reserved:
            # such an entry is inconsistent or of another process
            mode, reason = "device", "NVML's entry is smaller than what PyTorch has reserved"
            process, others, listed = None, None, ()
        if mode == "device" and memory is None:
            mode = "torch-only"
        elif mode == "torch-only" and memory is not None:
            mode = "device"
        if not driver.context and process is None:
            process = 0  # without a context there is no memory
        return DeviceReading(
            name=self.name,
            context=driver.context,
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
            why=reason,
            source=None if memory is None else memory.source,
            busy=driver.busy,
            torch_why=torch_reason,
            listed=listed,
            highest=driver.highest if mode == "process" else None,
        )


def device_memory(nvml: Nvml, handle: Any) -> DeviceMemory | None:
    """Return what NVML reports for a whole device; None if it reports nothing."""
    try:
        return nvml.memory(handle)
    except NvmlError:
        return None


def _used(nvml: Nvml, handle: Any) -> int | None:
    memory = device_memory(nvml, handle)
    return None if memory is None else memory.used


def _followed(before: int, during: int | None, after: int, nbytes: int) -> bool:
    """Return whether a value rose by a test allocation and fell again."""
    return during is not None and all(abs(during - level - nbytes) <= _TOLERANCE for level in (before, after))


def _pci_bus_id(properties: Any) -> str | None:
    if not hasattr(properties, "pci_bus_id"):
        return None
    return f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}.0"


def _has_graphics(nvml: Nvml, handle: Any) -> bool:
    try:
        return nvml.processes(handle, graphics=True).keys() != nvml.processes(handle).keys()
    except NvmlError:
        return False


def _missing_entry(entries: dict[int, int | None], *, ambiguous: bool) -> str:
    """Return why this process's entry is unknown."""
    if ambiguous:
        return "several entries of NVML's list changed with a test allocation"
    if not entries:
        return "NVML lists no process: this container hides them"
    if all(size is None for size in entries.values()):
        return "NVML reports no memory by process on this system (WSL2, Windows)"
    if any(entries.get(pid) == 0 for pid in namespace_pids()):
        return "NVML reports 0 bytes for this process: the driver hides its memory from this container"
    return "this process is not in NVML's list"
