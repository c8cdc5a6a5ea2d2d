"""Drop-ins for two context managers of zeta.utils (kyegomez/zeta): same names, done right.

`save_memory_snapshot` takes a folder, makes it, and leaves ``snapshot.pickle`` in it; unlike its namesake it also takes
text for a path, and recording is off afterwards. `print_cuda_memory_usage` prints the change of
``torch.cuda.memory_allocated`` on the current device, in GiB with two decimals under the name GB as its namesake does,
also when the block raises, and inside another one.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError, RecordingError
from ipygpumem.core.units import GIB
from ipygpumem.measure_block import measure
from ipygpumem.measurement.allocation_history import recording_problem
from ipygpumem.sources import allocator, pytorch

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["print_cuda_memory_usage", "save_memory_snapshot"]


@contextlib.contextmanager
def save_memory_snapshot(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Record the block's allocation history and save it, also when the block raises.

    Args:
        path: A folder, made if need be, for ``snapshot.pickle``; or a file's name that ends in ``.pickle`` or ``.pkl``.

    Yields:
        The snapshot's path.

    Raises:
        OptionError: Nothing can be written there. Before the block runs.
        RecordingError: No history can be recorded here (no GPU, or another allocator). Before the block runs, and
            before a folder is made.
    """
    target = Path(path).expanduser()
    if target.suffix not in {".pickle", ".pkl"} or target.is_dir():
        why = recording_problem()
        if why:
            raise RecordingError(why)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(f"the folder {target} cannot be made: {error.strerror or error}") from error
        target = target / "snapshot.pickle"
    with measure(snapshot=target):
        yield target


@contextlib.contextmanager
def print_cuda_memory_usage() -> Iterator[None]:
    """Print what the block left allocated on the device that is current at its start: ``CUDA memory usage: 0.40 GB``.

    Raises:
        RecordingError: PyTorch has no GPU here. Before the block runs.
    """
    why = pytorch.problem(load=True)
    if why:
        raise RecordingError(f"no CUDA memory to print: {why}")
    index = pytorch.current_device()
    before = allocator.allocated_now(index)
    try:
        yield
    finally:
        print(f"CUDA memory usage: {(allocator.allocated_now(index) - before) / GIB:.2f} GB")  # noqa: T201 (its purpose)
