"""``%gpumem who`` and ``%gpumem free`` in real cells on the fake GPU."""

from __future__ import annotations

import gc
import re
import sys
import weakref
from pathlib import Path

import IPython
import pytest

import ipygpumem
from core.test_text import unsafe_characters

PACKAGE = Path(ipygpumem.__file__).parent
MIB = 1 << 20
GPU = "dtype=torch.uint8, device='cuda')"
FAIL = f"def fail(n):\n    x = torch.ones(n << 20, {GPU}\n    raise ValueError('no')\nfail(30)"


def held():
    return {holder.name: holder.amount // MIB for holder in ipygpumem.holders().holders}


def rows(text):
    return {match[1] for line in text.splitlines() if (match := re.match(r"  (\S.*?)  +\d", line))}


@pytest.mark.ipython
def test_holders_add_up(gpu_notebook):
    gpu_notebook.run(f"a = torch.ones(40 << 20, {GPU}\nb = [a[5:], torch.ones(10 << 20, {GPU}]")
    gpu_notebook.run(f"torch.ones(20 << 20, {GPU}")
    gpu_notebook.run(FAIL)
    assert gpu_notebook.run("%gpumem who").text == (
        "cuda:0: memory holders\n"
        "                                          size  tensors\n"
        "  a                                   40.0 MiB        1  ███         uint8 [41943040] · also b[0]\n"
        "  last exception: fail() x            30.0 MiB        1  ██          uint8 [31457280]\n"
        "  Out[2]                              20.0 MiB        1  ██          uint8 [20971520] · also _, _2, ...\n"
        "  b[1]                                10.0 MiB        1  █           uint8 [10485760]\n"
        "  cuBLAS workspace from the preload   32.0 MiB\n"
        "allocated (tensors)                  132.0 MiB        4\n"
        "%gpumem free would free 30.0 MiB held by the last exception or unreachable cycles\n"
        "%gpumem free --out would free 50.0 MiB, including the output history"
    )


def test_html_escapes_names(gpu_notebook, warnings_version):
    version = warnings_version()
    result = gpu_notebook.run(f"d = {{'<b>': torch.ones(9 << 20, {GPU}}}\n%gpumem who")
    html = result.displays[0]["text/html"]
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert warnings_version() == version


def test_names_are_printed_without_control_characters(gpu_notebook):
    name = "unsafe\x1b[2J\u202e\u2028"
    gpu_notebook.run(f"globals()[{name!r}] = torch.ones(9 << 20, {GPU}")
    result = gpu_notebook.run("%gpumem who")
    assert "unsafe?[2J??" in result.text
    for text in (result.stdout, *result.displays[0].values()):
        assert unsafe_characters(text) == []


INVALID_ARGUMENTS = {
    "who --new": "--new requires an earlier %gpumem who to compare with",
    "who missing": "no holder is named missing",
    "who -n 0": "argument -n: the value must be a positive integer, but got '0'",
    "who -d cuda:7": "there is no device cuda:7",
    "who --oops": "unrecognized arguments: --oops",
    "who -v In": "'In' is reserved by IPython",
    "-v __builtins__": "'__builtins__' is reserved by Python",
    "explain -v exit": "'exit' is reserved by IPython",
    "free missing": "name 'missing' is not defined; nothing was deleted",
    "free a.b": "'a.b' is not a variable name",
    "free Out": "'Out' is reserved by IPython",
    "free --oops": "unrecognized arguments: --oops",
    **{f"free {name}": f"'{name}' is reserved by Python" for name in ("__name__", "__builtins__", "__doc__")},
}


def test_invalid_argument_is_one_line_and_frees_nothing(gpu_notebook):
    gpu_notebook.run(f"kept = torch.ones(9 << 20, {GPU}")
    names = set(gpu_notebook.shell.user_ns)
    for line, message in INVALID_ARGUMENTS.items():
        result = gpu_notebook.run(f"%gpumem {line}")
        assert type(result.error).__name__ == "UsageError", line
        assert message in str(result.error) and str(result.error).count("\n") == 0
        assert names <= gpu_notebook.shell.user_ns.keys()
    assert held() == {"kept": 9}


def test_holders_added_by_a_cell(gpu_notebook):
    gpu_notebook.run(f"old = torch.ones(9 << 20, {GPU}")
    result = gpu_notebook.run(f"new = torch.ones(3 << 20, {GPU}\n%gpumem who --new -v new_holders")
    assert result.texts[0].startswith("cuda:0: new since this cell began")
    assert rows(result.texts[0]) == {"new"}
    assert [holder.name for holder in gpu_notebook.run("new_holders.holders").value] == ["new"]
    gpu_notebook.run(f"newer = torch.ones(4 << 20, {GPU}")
    result = gpu_notebook.run("%gpumem who --new")
    assert result.text.startswith("cuda:0: new since the last %gpumem who")
    assert rows(result.text) == {"newer"}
    assert gpu_notebook.run("%gpumem who --new").text == "cuda:0: new since the last %gpumem who\nno new tensors"


def test_command_runs_few_files(gpu_notebook):
    """The code of ``%gpumem who`` from the magic to the printed table is in at most 20 files of four packages."""
    gpu_notebook.run(f"x = torch.ones(3 << 20, {GPU}\nloss = torch.ones(1 << 20, requires_grad=True).exp().sum()")
    paths = set()

    def record(frame, event, _):
        if event == "call":
            paths.add(frame.f_code.co_filename)

    sys.setprofile(record)
    try:
        gpu_notebook.shell.run_line_magic("gpumem", "who")
    finally:
        sys.setprofile(None)
    files = {Path(path).relative_to(PACKAGE) for path in paths if Path(path).is_relative_to(PACKAGE)}
    assert len(files) <= 20, " ".join(sorted(map(str, files)))
    assert {file.parts[0] for file in files} == {"core", "features", "jupyter", "sources"}


def test_who_searches_the_heap_only_on_request(gpu_notebook, monkeypatch):
    searches, get_objects = [], gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: searches.append(1) or get_objects())
    gpu_notebook.run(f"old = torch.ones(9 << 20, {GPU}")
    table = gpu_notebook.run("%gpumem who").text
    assert searches == []
    gpu_notebook.run(f"new = torch.ones(3 << 20, {GPU}")
    assert rows(gpu_notebook.run("%gpumem who --new").text) == {"new"}
    result = gpu_notebook.run(f"newer = torch.ones(4 << 20, {GPU}\n%gpumem who --new")
    assert rows(result.texts[0]) == {"newer"}
    assert searches == []
    gpu_notebook.run("del new, newer")
    assert gpu_notebook.run("%gpumem who --all").text == table
    assert len(searches) == 1


def test_full_report_of_cell_lists_new_holders(gpu_notebook):
    gpu_notebook.run(f"old = torch.ones(9 << 20, {GPU}")
    text = gpu_notebook.run(f"%%gpumem\nnew = torch.ones(3 << 20, {GPU}").text
    assert re.search(r"cuda:0: new since this cell began\n.*\n  new  3\.0 MiB", text)
    assert "  old" not in text
    assert "new since" not in gpu_notebook.run("%%gpumem\n1 + 1").text


def test_holders_by_name(gpu_notebook):
    gpu_notebook.run(f"a = torch.ones(9 << 20, {GPU}; b = torch.ones(3 << 20, {GPU}")
    text = gpu_notebook.run("%gpumem who b").text
    assert "  b " in text
    assert "  a " not in text
    assert re.search(r"other holders +9\.0 MiB", text)


@pytest.mark.ipython
def test_recording_shows_allocation_lines(gpu_notebook):
    gpu_notebook.run("%gpumem record start")
    gpu_notebook.run(f"def make():\n    return torch.ones(9 << 20, {GPU}\na = make()")
    text = gpu_notebook.run("%gpumem who").text
    assert "In [2]:2 make()" in text
    gpu_notebook.run("%gpumem record stop")


@pytest.mark.ipython
def test_free_removes_last_exception_everywhere(gpu_notebook):
    gpu_notebook.run(FAIL)
    announced = ipygpumem.holders().freeable("cuda:0", "traceback")
    allocated = ipygpumem.reading().devices["cuda:0"].allocated
    text = gpu_notebook.run("%gpumem free").text
    assert "freed: the traceback of ValueError" in text
    assert re.search(r"allocated \(tensors\) +62\.0 MiB +32\.0 MiB +-30\.0 MiB", text)
    assert announced == 30 * MIB == allocated - ipygpumem.reading().devices["cuda:0"].allocated
    assert not hasattr(sys, "last_traceback")
    assert held() == {}


@pytest.mark.ipython
def test_no_traceback_to_debug_after_free(gpu_notebook):
    gpu_notebook.run(FAIL)
    gpu_notebook.run("%gpumem free")
    result = gpu_notebook.run("%debug")
    assert result.success
    gpu_notebook.run("1/0")
    assert sys.last_type is ZeroDivisionError


@pytest.mark.ipython
def test_free_keeps_outputs_and_variables(gpu_notebook):
    gpu_notebook.run(f"mine = torch.ones(9 << 20, {GPU}\n_1 = 'my own'")
    gpu_notebook.run(f"torch.ones(20 << 20, {GPU}")
    assert "nothing to free" in gpu_notebook.run("%gpumem free").text or held() == {"mine": 9, "Out[2]": 20}
    assert held() == {"mine": 9, "Out[2]": 20}
    text = gpu_notebook.run("%gpumem free --out").text
    assert "freed: 1 output" in text
    assert held() == {"mine": 9}
    assert gpu_notebook.shell.user_ns["_1"] == "my own"
    assert gpu_notebook.run("1 + 1").value == 2
    assert gpu_notebook.run("_").value == 2, "outputs work as before"


@pytest.mark.ipython
def test_free_variable_with_its_copies(gpu_notebook):
    gpu_notebook.run(f"x = torch.ones(9 << 20, {GPU}\nother = 1")
    gpu_notebook.run("x")
    gpu_notebook.run("def f(given): 1/0\nf(x)")
    text = gpu_notebook.run("%gpumem free x").text
    assert "freed: x, Out[2]; the traceback of ZeroDivisionError" in text
    assert held() == {}
    assert "x" not in gpu_notebook.shell.user_ns
    assert gpu_notebook.shell.user_ns["other"] == 1


def test_free_variable_referenced_elsewhere(gpu_notebook):
    gpu_notebook.run(f"x = torch.ones(9 << 20, {GPU}\ny = [x]")
    assert "still held by y (9.0 MiB)" in gpu_notebook.run("%gpumem free x").text


@pytest.mark.ipython
def test_exception_in_variable_is_kept(gpu_notebook):
    gpu_notebook.run("try:\n    1/0\nexcept Exception as e:\n    kept = e\nraise kept")
    trace = gpu_notebook.run("kept.__traceback__").value
    gpu_notebook.run("%gpumem free")
    assert gpu_notebook.run("kept.__traceback__ is not None").value is True
    del trace


def test_free_cache(gpu_notebook, fake_gpu):
    gpu_notebook.run(f"x = torch.ones(60 << 20, {GPU}; del x")
    before = fake_gpu.calls["emptyCache"]
    text = gpu_notebook.run("%gpumem free --cache").text
    assert fake_gpu.calls["emptyCache"] == before + 1
    assert "PyTorch's cache" in text
    assert re.search(r"cached +62\.0 MiB +0\.0 MiB +-62\.0 MiB", text)


def test_free_collects_unreachable_cycles(gpu_notebook):
    gpu_notebook.run("import gc; gc.disable()")
    gpu_notebook.run(f"class Node: pass\nn = Node(); n.me = n; n.x = torch.ones(9 << 20, {GPU}")
    gpu_notebook.run("import weakref; w = weakref.ref(n)\ndel n")
    try:
        assert held() == {"unreachable cycles": 9}
        gpu_notebook.run("%gpumem free")
        assert gpu_notebook.run("w()").value is None
    finally:
        gpu_notebook.run("gc.enable()")


def test_tensors_in_host_memory_are_listed_without_gpu(cpu_notebook):
    cpu_notebook.run("import torch\nx = torch.ones(3 << 20)")
    text = cpu_notebook.run("%gpumem who x").texts[0]
    assert text.startswith("cpu: memory holders")
    assert re.search(r"\n  x +12\.0 MiB", text)
    assert "this process (RSS)" in cpu_notebook.run("%gpumem free").texts[0]


@pytest.mark.ipython
def test_stored_result_keeps_no_tensor_alive(gpu_notebook):
    gpu_notebook.run(f"x = torch.ones(9 << 20, {GPU}")
    tensor_ref = weakref.ref(gpu_notebook.shell.user_ns["x"])
    gpu_notebook.run("%gpumem who -v new_holders")
    gpu_notebook.run("del x")
    assert tensor_ref() is None


def test_unload_restores_roots(gpu_notebook):
    from ipygpumem.features.holders.reference_graph import naming_functions, python_roots

    assert naming_functions().roots is not python_roots
    gpu_notebook.run("%unload_ext ipygpumem")
    assert naming_functions().roots is python_roots


@pytest.mark.ipython
def test_true_and_none_are_not_copies_of_a_variable(gpu_notebook):
    gpu_notebook.run("flag, nothing = True, None")
    gpu_notebook.run("1 == 1")
    gpu_notebook.run("def fails():\n    empty = None\n    raise ValueError('kept')\nfails()")
    gpu_notebook.run("%gpumem free flag nothing")
    assert True in gpu_notebook.shell.user_ns["Out"].values()
    assert "flag" not in gpu_notebook.shell.user_ns and "nothing" not in gpu_notebook.shell.user_ns
    assert isinstance(sys.last_value, ValueError)


@pytest.mark.ipython
def test_free_keeps_underscore_assigned_by_user(gpu_notebook):
    gpu_notebook.run(f"x = torch.ones(9 << 20, {GPU}\n_ = x")
    text = gpu_notebook.run("%gpumem free x").text
    assert gpu_notebook.shell.user_ns["_"] is not None
    assert held() == {"_": 9}
    assert "still held by _ (9.0 MiB)" in text


@pytest.mark.ipython
@pytest.mark.parametrize(
    ("raises", "name"),
    [
        ("class Bad(Exception): pass\ne = Bad()\ne.batch = x\nraise e", "Bad"),
        ("raise ValueError('too large', x)", "ValueError"),
        ("x.no_such_thing", "AttributeError"),
        ("try:\n    raise KeyError(x)\nexcept KeyError:\n    raise RuntimeError('later')", "RuntimeError"),
    ],
)
def test_free_variable_referenced_by_last_exception(gpu_notebook, raises, name):
    gpu_notebook.run(f"x = torch.ones(9 << 20, {GPU}")
    gpu_notebook.run(raises)
    gpu_notebook.shell.user_ns.pop("e", None)
    text = gpu_notebook.run("%gpumem free x").text
    assert f"the traceback of {name}" in text
    assert held() == {}


@pytest.mark.ipython
def test_object_of_attribute_error_has_a_name(gpu_notebook):
    gpu_notebook.run(f"def f():\n    torch.ones(9 << 20, {GPU}.nothing_of_the_kind\nf()")
    (holder,) = ipygpumem.holders().holders
    assert (holder.parts[0].name, holder.place) == ("last exception.obj", "traceback")


def test_local_variable_is_preferred_to_exception_attribute(gpu_notebook):
    gpu_notebook.run(f"def f():\n    mine = torch.ones(9 << 20, {GPU}\n    mine.nothing_of_the_kind\nf()")
    (holder,) = ipygpumem.holders().holders
    assert holder.parts[0].name == "last exception: f() mine"
    assert "last exception.obj" in holder.parts[0].also


@pytest.mark.ipython
def test_user_variables_named_like_outputs(gpu_notebook):
    gpu_notebook.run("'an output'")
    gpu_notebook.run(f"_, __, _7 = [torch.ones(9 << 20, {GPU} for _ in range(3)]")
    holders = ipygpumem.holders().holders
    assert {(holder.name, holder.place) for holder in holders} == {(name, "variable") for name in ("_", "__", "_7")}
    text = gpu_notebook.run("%gpumem who").text
    assert "free" not in text
    gpu_notebook.run("%gpumem free --out")
    assert held() == {"_": 9, "__": 9, "_7": 9}
    result = gpu_notebook.run("%gpumem free _ __ _7")
    assert (result.error, held()) == (None, {})


@pytest.mark.ipython
def test_free_out_frees_the_announced_size(gpu_notebook):
    """This includes outputs that are no longer in the history."""
    gpu_notebook.run(f"torch.ones(9 << 20, {GPU}")
    gpu_notebook.run("Out.clear()\ndel _1")
    assert ipygpumem.holders().freeable("cuda:0", "traceback", "output") == 9 << 20
    gpu_notebook.run("%gpumem free --out")
    assert held() == {}


@pytest.mark.ipython
def test_shell_attribute_is_not_an_output(gpu_notebook):
    gpu_notebook.run(f"get_ipython().mine = torch.ones(9 << 20, {GPU}")
    (holder,) = ipygpumem.holders().holders
    assert (holder.parts[0].name, holder.place) == ("IPython.mine", "elsewhere")
    gpu_notebook.shell.mine = None


HOSTILE = (
    "class Meta(type):\n    def __eq__(self, other): raise RuntimeError('mine')\n"
    "class Thing(metaclass=Meta):\n    def __init__(self, held): self.held = held\n"
)


def test_free_object_whose_metaclass_raises(gpu_notebook):
    gpu_notebook.run(f"{HOSTILE}thing = Thing(torch.ones(9 << 20, {GPU})")
    result = gpu_notebook.run("%gpumem free thing")
    assert (result.error, result.stderr, held()) == (None, "", {})


@pytest.mark.ipython
@pytest.mark.parametrize(
    "body",
    [
        "@property\n    def exceptions(self): raise RuntimeError('mine')",
        "def __getattribute__(self, name):\n        raise RuntimeError('mine')",
    ],
)
def test_free_variable_while_last_exception_raises_when_read(gpu_notebook, body):
    if IPython.version_info < (8,) and "__getattribute__" in body:
        pytest.skip("this version of IPython cannot show the traceback of such an exception")
    gpu_notebook.run(f"x = torch.ones(9 << 20, {GPU}\ny = torch.ones(5 << 20, {GPU}")
    gpu_notebook.run(f"class Odd(Exception):\n    {body}")
    gpu_notebook.run("def fails(mine):\n    raise Odd\nfails(x)")
    result = gpu_notebook.run("%gpumem free x")
    assert (result.error, result.stderr) == (None, "")
    assert "freed: x" in result.text
    assert held() == {"y": 5}


def test_free_deletes_nothing_if_search_for_copies_fails(gpu_notebook, monkeypatch):
    from ipygpumem.features.free import delete

    def fails(shell, value):
        raise RuntimeError("an internal error")

    gpu_notebook.run(f"x = torch.ones(9 << 20, {GPU}")
    monkeypatch.setattr(delete, "_last_exception_refers_to", fails)
    gpu_notebook.run("%gpumem free x")
    assert held() == {"x": 9}


@pytest.mark.ipython
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups exist since Python 3.11")
def test_free_variable_referenced_by_exception_group(gpu_notebook):
    gpu_notebook.run(f"x = torch.ones(9 << 20, {GPU}")
    gpu_notebook.run(
        "def fails(mine):\n    raise KeyError\ntry:\n    fails(x)\nexcept KeyError as error:\n    kept = error\n"
        "raise ExceptionGroup('several', [kept])"
    )
    gpu_notebook.run("del kept\nx = x")
    gpu_notebook.run("%gpumem free x")
    assert held() == {}


@pytest.mark.ipython
def test_failed_frame_is_preferred_to_context_manager_arguments(gpu_notebook):
    gpu_notebook.run(f"def fails():\n    loc = torch.ones(9 << 20, {GPU}\n    raise ValueError")
    gpu_notebook.run(
        "import contextlib\n@contextlib.contextmanager\ndef manager():\n    try:\n        yield\n"
        "    except ValueError:\n        raise MemoryError from None\nwith manager():\n    fails()"
    )
    assert held() == {"last exception: fails() loc": 9}
