"""Buffers of PyTorch's reduction kernels, such as those that compute the gradients of biases.

Thread blocks that reduce parts of the same outputs exchange partial results in a buffer, and wait for each other with
semaphores (aten/src/ATen/native/cuda/Reduce.cuh). The number of thread blocks and the size of the buffer are
proportional to the size of the input, up to the number of thread blocks that the GPU can run at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.scaling.size_model import Floats, Size, SizeModel, best_powers, scale
from ipygpumem.snapshot.scaling.step import StepRecording

_MAX_THREADS = 512  # largest number of threads per block, divided by the number of outputs per thread
_WARP = 32
_SEMAPHORE = 4  # size in bytes
_MIN_ACCUMULATOR = 4  # smallest size in bytes of a partial result; those of bfloat16 are float32


def with_reductions(
    model: SizeModel, step: StepRecording, rows: Ints, sizes: Sequence[Size], recorded: Floats
) -> SizeModel:
    """Return a model with limits for the buffers of reductions in a step.

    ``rows``, ``sizes`` and ``recorded``: Workspaces and their sizes, as in `with_workspaces`.
    """
    limits, coefficients = np.full(len(model.coefficients), np.inf), model.coefficients.copy()
    totals = np.asarray([math.prod(size) for size in sizes], np.float64)
    for column in np.flatnonzero((np.diff(rows) == 1) & (rows[:-1] > 0)) if step.threads else ():
        row, values = rows[column], recorded[:, column]
        output, buffer, semaphores = step.sizes[row - 1 : row + 2].tolist()
        limit = buffer_limit(output, buffer, semaphores, step.threads or 0)
        if limit:
            # the largest run below the limit or, if there is none, the smallest run at the limit
            order = np.where(values < limit, totals, -totals)
            run = int(np.argmax(np.where(values > 0, order, -np.inf)))
            limits[row] = limit
            below = [index for index in np.argsort(totals).tolist() if 0 < values[index] < limit]
            powers = best_powers(model, [sizes[index] for index in below or [run]], values[below or [run]])
            coefficients[row] = model.proportional(values[run] / scale(sizes[run], powers), 0, powers)
    limited = np.isfinite(limits)
    low, high = (np.where(limited, 1.0, bound) for bound in (model.low, model.high))
    irregular = model.irregular | limited
    return replace(model, coefficients=coefficients, irregular=irregular, low=low, high=high, limits=limits)


def buffer_limit(output: int, buffer: int, semaphores: int, threads: int) -> int:
    """Return the maximum size of a reduction's buffer in bytes, or 0 if the allocations do not belong to a reduction.

    ``output``, ``buffer``, ``semaphores``: Sizes in bytes of three successive allocations.
    ``threads``: Number of threads that the GPU can run at the same time.
    """
    for itemsize in (4, 2, 8):
        outputs, remainder = divmod(output, itemsize)
        if remainder or not outputs:
            continue
        vector = math.gcd(outputs, 4)  # outputs per thread
        width = min(1 << ((outputs // vector).bit_length() - 1), _WARP)
        groups = -(-outputs // (width * vector))
        unit = max(itemsize, _MIN_ACCUMULATOR) * outputs * width * vector  # the part of one block per group
        if groups * _SEMAPHORE == semaphores and buffer > 0 and buffer % unit == 0:
            return unit * -(-(threads * vector // _MAX_THREADS) // groups)
    return 0
