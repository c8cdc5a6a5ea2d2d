"""Drop-in replacements for two context managers of the zeta package (``zeta.utils`` in kyegomez/zeta).

`save_memory_snapshot` creates a directory that contains ``snapshot.pickle``. Unlike the original, it does not
write ``trace_plot.html``, also accepts a string or the path of a pickle file, and stops recording after the block.
`print_cuda_memory_usage` prints the change in
``torch.cuda.memory_allocated`` even if the block raises an exception. The unit is GiB, labeled GB as in the original.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ipygpumem.core.errors import OptionError, RecordingError
from ipygpumem.core.units import GIB
from ipygpumem.measure_block import measure
from ipygpumem.measurement.allocation_history import recording_problem
from ipygpumem.sources import pytorch

__all__ = ["print_cuda_memory_usage", "save_memory_snapshot"]


@contextlib.contextmanager
def save_memory_snapshot(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Record the allocation history during a block and save it, even if the block raises an exception.

    Yields the path of the snapshot. The errors below are raised before the block runs.

    Args:
        path: Directory for ``snapshot.pickle``, which is created if it does not exist, or the path of a file whose name
            ends in ``.pickle`` or ``.pkl``.

    Raises:
        OptionError: The path cannot be written to.
        RecordingError: There is no GPU or the allocator does not support recordings. The directory is not created.
    """
    target = Path(path).expanduser()
    if target.suffix not in {".pickle", ".pkl"} or target.is_dir():
        problem = recording_problem()
        if problem:
            raise RecordingError(problem)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(f"cannot create the directory {target}: {error.strerror or error}") from error
        target = target / "snapshot.pickle"
    with measure(snapshot=target):
        yield target


@contextlib.contextmanager
def print_cuda_memory_usage() -> Iterator[None]:
    """Print the change in allocated memory during a block, such as ``CUDA memory usage: 0.40 GB``.

    The change is measured on the device that is current when the block starts.

    Raises:
        RecordingError: No GPU is available to PyTorch. The block does not run.
    """
    problem = pytorch.problem(load=True)
    if problem:
        raise RecordingError(f"CUDA memory usage is not available: {problem}")
    cuda: Any = sys.modules["torch"].cuda
    index = cuda.current_device() if cuda.is_initialized() else 0
    before = cuda.memory_allocated(index)
    try:
        yield
    finally:
        print(f"CUDA memory usage: {(cuda.memory_allocated(index) - before) / GIB:.2f} GB")  # noqa: T201 (its purpose)
