"""Queries of PyTorch's state, an out-of-memory observer, and function wrappers. None of them initializes CUDA."""

from __future__ import annotations

import _thread
import contextlib
import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ipygpumem.core.errors import first_line
from ipygpumem.core.introspection import attempt
from ipygpumem.sources.cuda import RelaxedCaptureMode
from ipygpumem.sources.dynamo import skip_in_dynamo, without_dynamo
from ipygpumem.sources.nvml import DeviceMemory

MINIMUM_VERSION = (2, 4)
_OOM_LISTENERS = "_ipygpumem_oom_listeners"
_PACKAGE = str(Path(__file__).parents[1])


def module() -> Any | None:
    """Return torch if it has been imported completely. This function does not import it."""
    torch = sys.modules.get("torch")
    # __version__ is missing while torch is being imported
    return torch if torch is not None and hasattr(torch, "__version__") and hasattr(torch, "cuda") else None


def importable() -> bool:
    # raises ValueError if sys.modules["torch"] is None
    return attempt(lambda: importlib.util.find_spec("torch")) is not None


def problem(*, load: bool) -> str | None:
    """Return the reason why GPU memory cannot be measured, or None if no reason is known.

    If ``load`` is true, import torch and check whether a GPU is available.
    """
    if load:
        try:
            importlib.import_module("torch")
        except Exception as error:
            return f"torch cannot be imported ({type(error).__name__}: {first_line(error)})"
    torch = module()
    if torch is None:
        return None
    if _version(torch) < MINIMUM_VERSION:
        return f"torch {torch.__version__} is too old: {MINIMUM_VERSION[0]}.{MINIMUM_VERSION[1]} or later is required"
    if not hasattr(torch._C, "_cuda_memoryStats"):
        return f"torch {torch.__version__} was built without CUDA"
    if load and not torch.cuda.is_available():
        return "torch finds no NVIDIA GPU"
    return None


def _version(torch: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def discards_exceptions(torch: Any) -> bool:
    """Return whether PyTorch discards a pending exception when it records the stack of a free in a backward pass."""
    return (2, 11) <= _version(torch) < (2, 13)  # pytorch#175196


def initialized_torch() -> Any | None:
    torch = module()
    return torch if torch is not None and torch.cuda.is_initialized() else None


def has_context(torch: Any, index: int) -> bool:
    return bool(torch._C._cuda_hasPrimaryContext(index))


def devices_in_use() -> list[int]:
    torch = initialized_torch()
    return [] if torch is None else [index for index in range(torch.cuda.device_count()) if has_context(torch, index)]


def is_capturing(torch: Any) -> bool:
    """Return whether the current stream is being captured into a CUDA graph, or True if CUDA calls fail.

    A call that synchronizes the device would invalidate the capture.
    """
    try:
        return bool(torch.cuda.is_current_stream_capturing())
    except Exception:  # after a failed kernel, every CUDA call fails
        return True


_queried_streams: dict[int, tuple[Any, Any]] = {}
"""Latest stream that `is_busy` has queried, by device index, with PyTorch's class of streams and the stream's ID."""


def is_busy(torch: Any, index: int) -> bool | None:
    """Return whether the device's current stream has pending work; None if unknown. Does not synchronize."""
    try:
        key = torch.cuda.Stream, torch._C._cuda_getCurrentStream(index)
        latest, stream = _queried_streams.get(index, (None, None))
        if key != latest:  # creating the object takes longer than the query
            stream = torch.cuda.current_stream(index)
            _queried_streams[index] = key, stream
        with RelaxedCaptureMode() as relaxed:
            return not stream.query() if relaxed else None
    except Exception:  # a kernel has failed
        return None


def synchronize() -> None:
    """Synchronize the current stream of each device with a context, except during CUDA graph capture.

    The device as a whole is not synchronized, because this would invalidate a capture on a stream unknown to PyTorch.
    """
    torch = initialized_torch()
    if torch is None or is_capturing(torch):
        return
    with RelaxedCaptureMode() as relaxed:
        for index in devices_in_use() if relaxed else ():
            with contextlib.suppress(Exception):  # a kernel has failed
                torch.cuda.current_stream(index).synchronize()


def device_memory(torch: Any, index: int) -> DeviceMemory | None:
    """Return the memory of a device from ``cudaMemGetInfo``; None if the call fails. Requires a context."""
    with contextlib.suppress(Exception), RelaxedCaptureMode() as relaxed:
        if relaxed:
            free, total = torch.cuda.mem_get_info(index)
            return DeviceMemory(total=int(total), used=int(total - free), reserved=None, source="cudaMemGetInfo")
    return None


def listen_for_ooms(callback: Callable[[int, int, int, int], None] | None) -> bool:
    """Set the callback for out-of-memory errors; None removes the current callback. Return whether this succeeded.

    ``callback(device, requested, limit, free)`` is called with the index of the device, the requested size, PyTorch's
    memory limit (or the total memory if no limit is set) and the free memory of the device. Sizes are in bytes.
    """
    torch = initialized_torch()
    attach = None if torch is None else getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if torch is None or attach is None:
        return False
    listeners = vars(torch).get(_OOM_LISTENERS)
    if listeners is None and callback is None:
        return False
    if listeners is None:
        listeners = []

        def observer(*arguments: int) -> None:
            try:
                for listener in tuple(listeners):
                    listener(*arguments)
            except KeyboardInterrupt:  # raise it outside the allocator
                _thread.interrupt_main()
            except BaseException:  # noqa: S110 (it would replace the out-of-memory error)
                pass

        try:
            attach(observer)
        except RuntimeError:  # cudaMallocAsync, a pluggable allocator
            return False
        setattr(torch, _OOM_LISTENERS, listeners)
    listeners[:] = [] if callback is None else [callback]
    return True


class FunctionWrappers:
    """Wrappers around functions of a module or class. A wrapper that another library wraps cannot be removed.

    ``module`` is the name of the module, followed by a colon and the name of the class, if any.
    """

    def __init__(self, module: str) -> None:
        self._module, _, self._class = module.partition(":")
        self._wrapped: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}

    def _owner(self) -> Any:
        module = sys.modules.get(self._module)
        return getattr(module, self._class) if self._class else module

    def wrap(self, calls: Mapping[str, Callable[..., Any]]) -> None:
        """Wrap each function that exists in the module, so that ``calls[name](original, *arguments)`` is called."""
        module = self._owner()
        for name, call in calls.items():
            current = getattr(module, name, None)
            if current is None:
                continue
            if name not in self._wrapped:
                self._wrapped[name] = current, _wrapper(current, call)
            original, wrapper = self._wrapped[name]
            if current is original:
                setattr(module, name, wrapper)

    def unwrap(self, name: str) -> None:
        module = self._owner()
        original, wrapper = self._wrapped.get(name, (None, None))
        if wrapper is not None and getattr(module, name, None) is wrapper:
            setattr(module, name, original)
            del self._wrapped[name]

    def original(self, name: str) -> Callable[..., Any]:
        wrapped = self._wrapped.get(name)
        function: Callable[..., Any] = getattr(self._owner(), name) if wrapped is None else wrapped[0]
        return function


def remove_own_frames(error: BaseException) -> None:
    """Remove this package's frames from the start of a traceback, so that it starts in the user's code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frames = error.__traceback__ = frames.tb_next


def _wrapper(original: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        try:
            return call(original, *arguments, **options)
        except BaseException as error:
            remove_own_frames(error)
            raise

    # torch.compile must treat the wrapper as one opaque call, like the original function
    wrapper._torchdynamo_disable = True  # type: ignore[attr-defined]
    skip_in_dynamo(wrapper)
    return wrapper


class CallObservers:
    """Observers that are notified before or after calls to functions in one module.

    The functions are wrapped while observers are registered. Observers are notified in reverse order of registration.
    Exceptions raised by an observer propagate to the caller, except those of a type in ``ignored``. ``before`` and
    ``after`` are the names of the functions before and after which observers are notified.
    """

    def __init__(
        self, module: str, before: tuple[str, ...], after: tuple[str, ...], ignored: tuple[type[Exception], ...] = ()
    ) -> None:
        self._functions = FunctionWrappers(module)
        self._before, self._after, self._ignored = before, after, ignored
        self._lock = threading.RLock()
        self._observers: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def add(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        with self._lock:
            self._observers.append((before, after))
            skip_in_dynamo(CallObservers._call)
            skip_in_dynamo(type(self)._call)
            self._notify = without_dynamo(self._call_observers)
            names = (*self._before, *self._after)
            self._functions.wrap({name: functools.partial(self._call, name) for name in names})

    def remove(self, before: Callable[[], None]) -> None:
        with self._lock:
            self._observers = [observer for observer in self._observers if observer[0] != before]
            if not self._observers:
                for name in (*self._before, *self._after):
                    self._functions.unwrap(name)

    def close(self) -> None:
        for before, _ in tuple(self._observers):
            self.remove(before)

    def _call(self, name: str, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        observers = self._observers[::-1]
        if name in self._before:
            self._notify(observers, 0)
        try:
            return original(*arguments, **options)
        finally:
            if name in self._after:
                self._notify(observers, 1)

    def _call_observers(self, observers: list[tuple[Callable[[], None], Callable[[], None]]], position: int) -> None:
        for observer in observers:
            with contextlib.suppress(*self._ignored):
                observer[position]()
