"""Buffers of reductions, with sizes that were recorded on an H200, which runs 2,048 threads on 132 processors."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from ipygpumem.core.units import KIB, MIB
from ipygpumem.snapshot.scaling.reductions import buffer_limit, with_reductions
from ipygpumem.snapshot.scaling.size_model import SizeModel

H200 = 132 * 2048


@pytest.mark.parametrize(
    ("output", "buffer", "semaphores", "limit"),
    [
        (4096, 8 * MIB, 32, 132 * MIB),  # gradients of 1,024 biases
        (4096, 166 * MIB, 32, 132 * MIB),  # of more than 16 times as many rows as at the limit
        (3072, 12 * MIB, 24, 132 * MIB),
        (12_288, 30 * MIB, 96, 132 * MIB),
        (400, 4_249_600, 8, 27_033_600),  # 100 biases do not fill the warps
        (1536, 12 * MIB, 24, 132 * MIB),  # bfloat16 is accumulated in float32
        (4096, 8 * MIB - 512, 32, 0),
        (4096, 8 * MIB, 64, 132 * MIB),  # 2,048 biases in bfloat16
        (4096, 8 * MIB, 48, 0),
        (4096, 0, 32, 0),
        (4097, 8 * MIB, 32, 0),
        (0, 8 * MIB, 0, 0),
    ],
)
def test_limit(output, buffer, semaphores, limit):
    assert buffer_limit(output, buffer, semaphores, H200) == limit
    assert buffer_limit(output, buffer, semaphores, 2 * H200) == 2 * limit


def test_runs_that_determine_the_growth():
    step = SimpleNamespace(sizes=np.asarray([4096, 132 * MIB, 32]), threads=H200)
    model = SizeModel.fit(((1, 2),), np.zeros((3, 2)))
    sizes = [(1,), (40,), (400,), (800,)]
    rows = np.asarray([1, 2])
    for recorded, expected in (([2, 50, 132, 132], [25, 125, 132]), ([0, -1, 132, 132], [6.6, 33, 132])):
        values = np.asarray([[value * MIB, 32] for value in recorded], np.float64)
        limited = with_reductions(model, step, rows, sizes, values)
        assert [limited.sizes((size,))[1] / MIB for size in (20, 100, 1000)] == pytest.approx(expected)
        assert limited.irregular.tolist() == [False, True, False]
    unknown = SimpleNamespace(sizes=step.sizes, threads=None)
    assert np.isinf(with_reductions(model, unknown, rows, sizes, values).limits).all()


def test_growth_above_the_limit():
    limits = np.asarray([132 * MIB, math.inf, math.inf])
    model = SizeModel(((1, 2),), np.asarray([[MIB, MIB], [MIB, MIB], [-KIB, 0]]), limits=limits)
    expected = {100: 100, 132: 132, 200: 132, 2112: 132, 3200: 200, 100_000: 256}
    assert {size: model.sizes((size,)).tolist() for size in expected} == {
        size: [limited * MIB, size * MIB, 0] for size, limited in expected.items()
    }
    assert model.exact_sizes((3,)).tolist() == [3 * MIB, 3 * MIB, -KIB]
