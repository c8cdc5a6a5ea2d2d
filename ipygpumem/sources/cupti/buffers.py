"""Activity buffers for CUPTI, with native callbacks that acquire neither the GIL nor a lock.

CUPTI invokes the callbacks within the program's CUDA calls. A Python callback would wait for the GIL while PyTorch's
allocator is locked, which deadlocks if the thread that holds the GIL waits for the allocator. The callbacks are
therefore compiled with llvmlite. One pipe contains the addresses of free buffers, and another pipe contains the
addresses of completed buffers. If completed buffers are not read in time, CUPTI drops records instead of blocking.

CUPTI callbacks cannot be unregistered, so the buffers, the pipes and the callbacks exist until the process exits.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
from collections.abc import Callable
from typing import Any

from ipygpumem.core.errors import CuptiError, first_line

_SIZE = 128 << 10
_COUNT = 256
"""Number of buffers; each thread that allocates memory uses one. The messages of all buffers fit into a pipe with a
capacity of one page, to which Linux limits new pipes if the user has many open pipes."""
_MESSAGE = struct.Struct("=QQ")
_ADDRESS = struct.Struct("=Q")

_CODE = """
define void @request(i64 %buffer, i64 %size, i64 %max_records) {{
  %at = inttoptr i64 %buffer to {word}
  %size_at = inttoptr i64 %size to {word}
  %max_records_at = inttoptr i64 %max_records to {word}
  store i64 0, {word} %max_records_at
  %read = inttoptr i64 {read} to {call}
  %count = call i64 %read(i32 {free_out}, {word} %at, i64 8)
  %success = icmp eq i64 %count, 8
  %available = select i1 %success, i64 {size}, i64 0
  store i64 %available, {word} %size_at
  br i1 %success, label %done, label %starved
starved:
  store i64 0, {word} %at
  %lost_at = inttoptr i64 {lost} to {word}
  %before = atomicrmw add {word} %lost_at, i64 1 monotonic
  br label %done
done:
  ret void
}}

define void @complete(i64 %context, i32 %stream, i64 %buffer, i64 %size, i64 %valid) {{
  %message = alloca i64, i32 2
  %second = getelementptr i64, {word} %message, i64 1
  store i64 %buffer, {word} %message
  store i64 %valid, {word} %second
  %write = inttoptr i64 {write} to {call}
  %count = call i64 %write(i32 {full_in}, {word} %message, i64 16)
  %success = icmp eq i64 %count, 16
  br i1 %success, label %done, label %full
full:
  %lost_at = inttoptr i64 {lost} to {word}
  %before = atomicrmw add {word} %lost_at, i64 1 monotonic
  br label %done
done:
  ret void
}}
"""
"""LLVM IR of the callbacks. Pointers are passed as integers, which x86-64 and arm64 pass in the same registers."""
_OPAQUE_FROM = 17
_OPAQUE = {"word": "ptr", "call": "ptr"}
_TYPED = {"word": "i64*", "call": "i64 (i32, i64*, i64)*"}
"""Typed pointers for LLVM versions before 17 (llvmlite up to 0.44)."""


class ActivityBuffers:
    """Activity buffers of this process. Raises `CuptiError` if llvmlite is missing or cannot compile the callbacks.

    Attributes:
        request: Address of the callback that provides an empty buffer.
        complete: Address of the callback that receives a completed buffer.
        ready: File descriptor that becomes readable when a buffer is completed.
    """

    _shared: ActivityBuffers | None = None

    def __init__(self) -> None:
        compile_code = _compiler()
        free_out, free_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        full_out, full_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._pipes = (free_out, free_in, full_out, full_in)
        self.ready, self._free = full_out, free_in
        self._memory = mmap.mmap(-1, _SIZE * _COUNT)
        self._lost = ctypes.c_uint64(0)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._addresses = frozenset(range(start, start + _SIZE * _COUNT, _SIZE))
        libc = ctypes.CDLL(None)
        try:
            self._engine = compile_code(
                read=_address(libc.read),
                write=_address(libc.write),
                free_out=free_out,
                full_in=full_in,
                size=_SIZE,
                lost=ctypes.addressof(self._lost),
            )
            self.request = int(self._engine.get_function_address("request"))
            self.complete = int(self._engine.get_function_address("complete"))
        except Exception as error:
            for descriptor in self._pipes:
                os.close(descriptor)
            raise CuptiError(f"llvmlite cannot compile the CUPTI callbacks: {first_line(error)}") from error
        os.write(free_in, b"".join(map(_ADDRESS.pack, sorted(self._addresses))))
        os.register_at_fork(after_in_child=self._detach)

    @classmethod
    def shared(cls) -> ActivityBuffers:
        if cls._shared is None:
            cls._shared = shared = cls()
            # CUPTI may invoke the callbacks even after Python has been finalized
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared))
        return cls._shared

    def _detach(self) -> None:
        """Replace the pipes in a forked child process, so that its messages do not reach the parent process."""
        with contextlib.suppress(OSError):
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in self._pipes:
                os.dup2(null, descriptor, inheritable=False)
            os.close(null)

    def completed(self) -> list[tuple[int, int]]:
        """Return an (address, valid size) pair for each buffer completed since the last call. Does not block."""
        messages: list[tuple[int, int]] = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.ready, _MESSAGE.size * _COUNT):
                messages += _MESSAGE.iter_unpack(data)
        # a buffer of another profiler may arrive while that profiler registers its callbacks
        return [(address, valid) for address, valid in messages if address in self._addresses and valid <= _SIZE]

    def recycle(self, address: int) -> None:
        os.write(self._free, _ADDRESS.pack(address))

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._pipes[3], _MESSAGE.pack(0, 0))

    @property
    def lost(self) -> int:
        """Number of buffer requests and completions that failed. Records are lost with each failure."""
        return self._lost.value


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _compiler() -> Callable[..., Any]:
    """Return a function that compiles the callbacks and returns the execution engine, which owns the machine code."""
    try:
        from llvmlite import binding
    except ModuleNotFoundError as error:
        raise CuptiError("llvmlite is not installed: pip install 'ipygpumem[outside]'") from error
    except Exception as error:
        raise CuptiError(f"llvmlite cannot be imported: {first_line(error)}") from error

    def compile_code(**constants: int) -> Any:
        with contextlib.suppress(RuntimeError):  # raised by llvmlite 0.45 and later, which need no initialization
            binding.initialize()
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        opaque = binding.llvm_version_info[0] >= _OPAQUE_FROM
        module = binding.parse_assembly(_CODE.format(**constants, **(_OPAQUE if opaque else _TYPED)))
        module.verify()
        engine = binding.create_mcjit_compiler(module, binding.Target.from_default_triple().create_target_machine())
        engine.finalize_object()
        return engine

    return compile_code
