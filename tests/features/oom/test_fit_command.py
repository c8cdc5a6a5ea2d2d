"""The command to find the largest size at which a cell fits, from the source code of the cell."""

import pytest

from ipygpumem.features.oom.earlier_runs import fit_command


def step(batch, layers=4):
    pass


def pair(image, width):
    pass


VARIABLES = {"batch": 512, "batch_size": 64, "n": 40, "seed": 7, "hidden": 4096, "m": 9, "flag": True}
VARIABLES |= {"step": step, "pair": pair, "width": None}


@pytest.mark.parametrize(
    ("source", "line", "command"),
    [
        ("step(batch)", 1, "batch=1..512 step(batch)"),
        ("batch = 512\nloss = step(batch)", 2, "batch=1..512 loss = step(batch)"),
        (
            "for epoch in range(3):\n    for seed in range(9):\n        step(batch, seed)",
            3,
            "batch=1..512 step(batch, seed)",
        ),
        ("step(n)", 1, "n=1..40 step(n)"),
        ("train(batch, token='hf_Kx81')", 1, "batch=1..512 train(batch, token='***')"),
        ("step(256, layers=12)", 1, "batch=1..256 step(batch, layers=12)"),
        ("train(model, batch_size=3)", 1, "batch_size=1..8 train(model, batch_size=batch_size)"),
        (
            "Trainer(model).run(\n    batch_size=n,\n    epochs=100)",
            2,
            "n=1..40 Trainer(model).run(batch_size=n, epochs=100)",
        ),
        (
            "import torch\nx = torch.randn(batch, n)\ny = model(x)\ny.sum().backward()",
            4,
            "batch=1..512 x = torch.randn(batch, n); y = model(x); y.sum().backward()",
        ),
        ("step(n, 512)", 1, "n=1..40 step(n, 512)"),
        ("pair(image, 256)", 1, "width=1..256 pair(image, width)"),
        ("pair(width, 256)", 1, ""),
        ("x = 0\nprint(n); y = step(batch)", 2, "batch=1..512 print(n); y = step(batch)"),
        ("import torch; step(batch)", 1, ""),
        ("step(n, m)", 1, ""),
        ("model = Net(hidden)", 1, ""),
        ("step(flag)", 1, ""),
        ("with autocast():\n    step(batch)", 2, ""),
        ("import torch\nmodel(x)", 2, ""),
        ("step(batch, '" + 150 * "x" + "')", 1, ""),
        ("step(", 1, ""),
        ("step(batch)", 7, ""),
    ],
)
def test_command(source, line, command):
    assert fit_command(source, line, VARIABLES) == (f"%gpumem fit {command}" if command else "")
