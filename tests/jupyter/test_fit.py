"""``%gpumem fit`` in real cells on the fake GPU."""

from __future__ import annotations

import json

import pytest

STEP = """\
calls = []
def step(batch, name="", fail=None, token=""):
    global last
    calls.append(name)
    last = torch.zeros((batch + 10) << 20, dtype=torch.uint8, device="cuda")
    two = torch.zeros(batch << 20, dtype=torch.uint8, device="cuda")
    if batch == fail:
        raise KeyboardInterrupt
    del last
"""


@pytest.fixture
def notebook(gpu_notebook):
    assert gpu_notebook.run(STEP).success
    return gpu_notebook


@pytest.mark.ipython
def test_answer(notebook):
    result = notebook.run("%gpumem fit --on '2 GiB' batch=1..4096 step(batch, 'a  b')")
    assert result.text == (
        "step(batch, 'a  b'): batch 1 to 4,096, cuda:0 NVIDIA H200, for a GPU with 2 GiB, 1.3 GiB for PyTorch\n"
        "  measured     2: 46.0 MiB   4: 50.0 MiB   2 again: 46.0 MiB   8: 58.0 MiB (predicted 58.0 MiB)   "
        "158: 358.0 MiB (predicted 358.0 MiB)\n"
        "  peak         batch 1 to 4,096: 42.0 MiB + 2.00 MiB * batch, in the forward pass (In[1]:6 step)\n"
        "  largest      664 (reserved 1.3 GiB)\n"
        "  recommended  650 (reserved 1.3 GiB), which leaves 2% free; "
        "verified at 158: measured 358.0 MiB, predicted 358.0 MiB\n"
        "calls grew by 6 items, which were removed."
    )
    assert result.value is None
    assert result.stdout == ""
    assert not {"batch", "last", "two"} & notebook.shell.user_ns.keys()
    assert notebook.shell.user_ns["calls"] == []
    assert "<th" in result.displays[0]["text/html"]


@pytest.mark.ipython
def test_options(notebook):
    notebook.shell.user_ns["batch"] = "mine"
    result = notebook.run("%gpumem fit --json -v answer batch=1..64 size=1..16 step(batch * size, token='k')")
    assert json.loads(result.stdout)["step"] == "step(batch * size, token='***')"
    assert json.loads(result.stdout)["axes"][1] == {"name": "size", "first": 1, "last": 16}
    assert notebook.shell.user_ns["batch"] == "mine"
    assert notebook.run("answer.predict(10, 10)").value == (32 + 10 + 2 * 100) << 20
    assert notebook.run("%gpumem fit -q batch=1..64 -v other size=1..16 --margin '10 %' step(batch * size)").success
    assert notebook.shell.user_ns["other"].margin == 0.1
    assert [axis.name for axis in notebook.shell.user_ns["other"].axes] == ["batch", "size"]
    assert notebook.run("%gpumem fit -q -o --margin 10% batch=1..64 step(batch);").value.margin == 0.1
    assert "NAME=FIRST..LAST STATEMENT" in notebook.run("%gpumem fit --help").stdout
    assert notebook.run("fit = 3\n%gpumem fit = 4\nfit").value == 4, "a statement"


@pytest.mark.ipython
def test_advice(notebook):
    """Changes are shown on request and if the step does not fit at any size."""
    assert "change" not in notebook.run("%gpumem fit batch=1..64 step(batch)").text
    assert notebook.run("%gpumem fit --advise batch=1..64 step(batch)").text.endswith(
        "No known change reduces the peak at batch 64 by at least 1%."
    )
    assert "No known change" in notebook.run("%gpumem fit --try --on '720 MiB' batch=1..64 step(batch)").text
    result = notebook.run("%gpumem fit --json --on '720 MiB' batch=1..64 step(batch)")
    answer = json.loads(result.stdout)
    assert answer["largest"] is None
    assert answer["advice"]["size"] == [1]
    assert answer["advice"]["current"]["largest"] is None


def test_without_data(cpu_notebook):
    """A step for a GPU is estimated on a machine that has none."""
    assert cpu_notebook.run("import torch\n" + STEP).success
    result = cpu_notebook.run("%gpumem fit --dry --on '24 GiB' batch=1..64 step(batch)")
    assert result.text.startswith("step(batch): batch 1 to 64, GPU with 24 GiB, 23.3 GiB for PyTorch, estimated\n")
    assert "64: 138.0 MiB (predicted 138.0 MiB)" in result.text
    assert "at 64        by phase: forward pass 138.0 MiB" in result.text
    assert cpu_notebook.shell.user_ns["calls"] == []
    assert cpu_notebook.run("layer = torch.nn.Linear(64, 64)").success
    statement = "layer(torch.ones(batch << 10, 64)).square().sum().backward()"
    result = cpu_notebook.run(f"%gpumem fit --dry --advise --on '24 GiB' batch=1..64 {statement}")
    assert "save_on_cpu" in result.text
    assert "is not predicted" not in result.text
    reason = cpu_notebook.run("%gpumem fit --dry --on '24 GiB' batch=1..64 float(torch.ones(batch).sum())").text
    assert "In [5]:1 (float(torch.ones(batch).sum())) needs the value of a tensor (for example for float()" in reason
    error = cpu_notebook.run("%gpumem fit --dry batch=1..64 step(batch)").error
    assert "PyTorch finds no GPU: pass the memory of the GPU, such as --on '24 GiB'" in str(error)


@pytest.mark.ipython
def test_exceptions_restore_the_names(notebook):
    result = notebook.run("%gpumem fit batch=1..64 step(batch, fail=4)")
    assert isinstance(result.error, KeyboardInterrupt)
    assert notebook.shell.user_ns["calls"] == []
    assert not {"batch", "last"} & notebook.shell.user_ns.keys()
    assert not notebook.run("import torch\ntorch._C._cuda_isHistoryEnabled()").value
    assert notebook.run("%gpumem fit -q -o batch=1..64 step(batch)").value.largest == 64


@pytest.mark.ipython
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bat=1..64 step(batch)", "the statement 'step(batch)' does not use the variable bat"),
        (
            "batch=64..1 step(batch)",
            "the range 64..1 of batch is empty: its first value must not exceed its last value",
        ),
        ("batch=1..2 step(batch)", "a prediction requires at least 3 sizes: use a longer range for batch"),
        ("batch=0..64 step(batch)", "the sizes of batch must be positive integers, but got range(0, 65)"),
        ("a=1..9 b=1..9 c=1..9 step(a+b+c)", "expected one or two different variables, but got a, b, c"),
        (
            "step(batch)",
            "'step(batch)' does not begin with a variable and its range: for example, use batch=1..4096 step(batch)",
        ),
        ("batch=1..64", "the statement after batch=1..64 is missing: add one, as in batch=1..64 step(batch)"),
        ("batch=1..64 (x for x in range(batch))", "returns a generator, whose code has not run"),
        ("batch=1..64 batch + 1", "batch + 1 allocates no GPU memory at size 2"),
        ("--margin many batch=1..64 step(batch)", "the value must be a share such as 2% or 0.02, but got 'many'"),
        ("--on many batch=1..64 step(batch)", "'many' is not a size"),
        (
            "--most 80% batch=1..64 step(batch)",
            "most must be greater than 0 and at most 0.5 of the free memory, but got 0.8",
        ),
        ("--dry --try batch=1..64 step(batch)", "--try requires runs on a GPU, and cannot be combined with --dry"),
        ("--nonsense batch=1..64 step(batch)", "unrecognized arguments: --nonsense"),
        ("batch=1..64 --nonsense step(batch)", "unrecognized arguments: --nonsense"),
        ("batch=1..64 -v answer", "the statement after batch=1..64 is missing"),
        ("batch=1..64 step(batch) -v answer", "the options must be before the statement: -v answer"),
        ("batch=1..64 step(batch) --dry", "the options must be before the statement: --dry"),
    ],
)
def test_invalid_lines(notebook, line, message):
    result = notebook.run(f"%gpumem fit {line}")
    assert type(result.error).__name__ == "UsageError"
    assert str(result.error).startswith("%gpumem fit: ")
    assert message in str(result.error)
    assert "\n" not in str(result.error)


@pytest.mark.ipython
def test_without_a_gpu(cpu_notebook):
    error = cpu_notebook.run("%gpumem fit batch=1..64 print(batch)").error
    assert str(error).startswith("%gpumem fit: the step must run on a GPU, and torch")
    assert str(error).endswith("to estimate the memory usage without a GPU, use --dry --on '24 GiB'")
