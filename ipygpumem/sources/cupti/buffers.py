"""Buffers that CUPTI fills: asked for and given back by two native functions that take neither GIL nor lock.

CUPTI calls both inside the program's CUDA calls. A Python function there waits for the GIL while PyTorch's allocator
is locked, and whoever holds the GIL may wait for that lock: a deadlock within a second of a threaded load. So the two
are compiled once by llvmlite. One pipe holds the addresses of free buffers, another those of full ones: reading and
writing a few bytes is all that they do, and when nobody empties the full ones CUPTI drops records and nothing waits.

What was registered with CUPTI cannot be taken back. So buffers, pipes and code stay for the process's life.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import CuptiError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Buffers"]

_SIZE = 128 << 10
_COUNT = 256
"""Each thread that allocates may have one. Their messages fit into a pipe of one page, which is all that a user with
many pipes gets."""
_MESSAGE = struct.Struct("=QQ")
_ADDRESS = struct.Struct("=Q")

_CODE = """
define void @request(i64 %buffer, i64 %size, i64 %most) {{
  %at = inttoptr i64 %buffer to {word}
  %size_at = inttoptr i64 %size to {word}
  %most_at = inttoptr i64 %most to {word}
  store i64 0, {word} %most_at
  %read = inttoptr i64 {read} to {call}
  %count = call i64 %read(i32 {free_out}, {word} %at, i64 8)
  %there = icmp eq i64 %count, 8
  %room = select i1 %there, i64 {size}, i64 0
  store i64 %room, {word} %size_at
  br i1 %there, label %done, label %starved
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
  %there = icmp eq i64 %count, 16
  br i1 %there, label %done, label %full
full:
  %lost_at = inttoptr i64 {lost} to {word}
  %before = atomicrmw add {word} %lost_at, i64 1 monotonic
  br label %done
done:
  ret void
}}
"""
"""Pointers come as numbers, which the calling conventions of x86-64 and arm64 do not tell apart."""
_OPAQUE_FROM = 17
_OPAQUE = {"word": "ptr", "call": "ptr"}
_TYPED = {"word": "i64*", "call": "i64 (i32, i64*, i64)*"}
"""How LLVM before 17 (llvmlite up to 0.44) writes pointers."""


class Buffers:
    """The one pool of this process.

    Attributes:
        request: Address of the function that hands an empty buffer out.
        complete: Address of the function that takes a full one.
        ready: File descriptor that can be read once a buffer is full.

    Raises:
        CuptiError: llvmlite is missing or cannot compile here.
    """

    _pool: Buffers | None = None

    def __init__(self) -> None:
        compile_code = _compiler()
        free_out, free_in = _pipe()
        full_out, full_in = _pipe()
        self._pipes = (free_out, free_in, full_out, full_in)
        self.ready, self._free = full_out, free_in
        self._memory = mmap.mmap(-1, _SIZE * _COUNT)
        self._lost = ctypes.c_uint64(0)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._own = frozenset(range(start, start + _SIZE * _COUNT, _SIZE))
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
            raise CuptiError(f"llvmlite cannot compile here: {first_line(error)}") from error
        os.write(free_in, b"".join(map(_ADDRESS.pack, sorted(self._own))))
        os.register_at_fork(after_in_child=self._detach)

    @classmethod
    def pool(cls) -> Buffers:
        """The pool, made at the first call."""
        if cls._pool is None:
            cls._pool = pool = cls()
            # CUPTI may call the functions until the very end of the process, after Python has taken itself apart
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
        return cls._pool

    def _detach(self) -> None:
        """In a forked child the pipes are the parent's: what CUPTI says there must not reach it."""
        with contextlib.suppress(OSError):
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in self._pipes:
                os.dup2(null, descriptor, inheritable=False)
            os.close(null)

    def full(self) -> list[tuple[int, int]]:
        """Address and valid bytes of every buffer that was completed since the last call. Waits for nothing."""
        messages = []
        while True:
            try:
                data = os.read(self.ready, _MESSAGE.size * _COUNT)
            except BlockingIOError:
                break
            if not data:
                break
            messages += list(_MESSAGE.iter_unpack(data))
        # while another profiler registers its functions a buffer of its own may come here, and is not ours to touch
        return [(address, valid) for address, valid in messages if address in self._own and valid <= _SIZE]

    def give_back(self, address: int) -> None:
        """A buffer has been read, and may be filled again."""
        os.write(self._free, _ADDRESS.pack(address))

    def wake(self) -> None:
        """Let whoever waits for `ready` look up: a message of no buffer."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._pipes[3], _MESSAGE.pack(0, 0))

    @property
    def lost(self) -> int:
        """How often CUPTI had to go without a buffer, or could not say that one was full: then records are missing."""
        return self._lost.value


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _compiler() -> Callable[..., Any]:
    """What turns the two functions, given their numbers, into machine code; it lives as long as what it returns."""
    try:
        from llvmlite import binding
    except ModuleNotFoundError as error:
        raise CuptiError("llvmlite is not installed: pip install 'ipygpumem[outside]'") from error
    except Exception as error:
        raise CuptiError(f"llvmlite cannot be imported: {first_line(error)}") from error

    def compiled(**numbers: int) -> Any:
        with contextlib.suppress(RuntimeError):  # from 0.45 on it is done already, and asking for it is an error
            binding.initialize()
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        opaque = binding.llvm_version_info[0] >= _OPAQUE_FROM
        module = binding.parse_assembly(_CODE.format(**numbers, **(_OPAQUE if opaque else _TYPED)))
        module.verify()
        engine = binding.create_mcjit_compiler(module, binding.Target.from_default_triple().create_target_machine())
        engine.finalize_object()
        return engine

    return compiled
