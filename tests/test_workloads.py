"""The programs of tests/gpu/workloads, and the comparison of their runs."""

import ast
import copy
import json

import pytest

from tests.gpu.workloads.compare import differences, wrong_answers
from tests.gpu.workloads.kernel import normalize
from tests.gpu.workloads.program import read_program, read_programs
from tests.gpu.workloads.table import markdown_table, text_table

PROGRAMS = read_programs()
CELL = {
    "error": "ValueError",
    "stderr": "UserWarning: x\n",
    "stdout": "1\n",
    "result": "tensor(1)",
    "displays": ["<b>"],
}
OBSERVED = {
    "values": {"result": ["0x1.8p+0"], "model": "ab12"},
    "rng": {"torch": "ab12", "cuda:0": "cd34"},
    "counters": {"cuda:0 max_memory_allocated": 1024},
    "state": {"gradients": True, "global hooks": [0, 0]},
    "names": ["model", "result"],
}
RECORD = {"cells": [CELL], "observed": OBSERVED, "failed": ""}
HEAD = (
    '"""Title."""\nANSWER = {"lines": "f(x)|g(x)", "peak": "f(x)", "modules": "blocks.*", "kind": "a*", "who": "x"}\n'
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program_is_complete(program):
    assert "who" in program.answer and (program.answer.get("lines") or program.raises)
    assert any(cell.measured for cell in program.cells)
    for cell in program.cells:
        compile(cell.code, program.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_there_are_enough_programs():
    assert len(PROGRAMS) >= 24


@pytest.mark.parametrize(
    ("category", "change"),
    [
        ("exceptions and tracebacks", lambda record: record["cells"][0].update(error="SystemError")),
        ("warnings", lambda record: record["cells"][0].update(stderr="")),
        ("printed text", lambda record: record["cells"][0].update(stdout="2\n")),
        ("values of cells", lambda record: record["cells"][0].update(result="")),
        ("displayed objects", lambda record: record["cells"][0].update(displays=["report"])),
        ("cells", lambda record: record["cells"].append(CELL)),
        ("values", lambda record: record["observed"]["values"].update(result=["0x1.8p+1"])),
        ("rng", lambda record: record["observed"]["rng"].update(torch="")),
        ("counters", lambda record: record["observed"]["counters"].clear()),
        ("state", lambda record: record["observed"]["state"].update(gradients=False)),
        ("names", lambda record: record["observed"]["names"].append("report")),
    ],
)
def test_difference_is_reported(category, change):
    record = copy.deepcopy(RECORD)
    assert differences(RECORD, record) == {}
    change(record)
    assert list(differences(RECORD, record)) == [category]


def test_output_of_extension_is_no_difference():
    record = copy.deepcopy(RECORD)
    record["cells"][0]["displays"].insert(0, "cuda:0  +1.0 MiB held")
    record["cells"][0]["stdout"] = "ipygpumem: a snapshot\n1\n"
    record["cells"][0]["stderr"] += (
        "[W1122 CPUAllocator.cpp:245] Memory block of unknown size was allocated before the profiling started, ..\n"
    )
    assert differences(RECORD, record) == {}


def _line(text, peak):
    return {"text": text, "use": {"peak": peak}}


@pytest.mark.parametrize(
    ("option", "observed", "wrong"),
    [
        ("lines", {"lines": [{"listings": [{"lines": [_line("y = g(x)", 2), _line("h(x)", 1)]}]}]}, []),
        ("lines", {"lines": [{"listings": [{"lines": [_line("y = g(x)", 1), _line("h(x)", 2)]}]}]}, ["lines"]),
        ("lines", {}, ["lines"]),
        ("snapshot", {"recording": {"peak_lines": [{"lines": [{"label": "(?)"}, {"label": "In [1]:1: f(x)"}]}]}}, []),
        ("snapshot", {"recording": {"peak_lines": [{"lines": [{"label": "In [1]:1: g(x)"}]}]}}, ["peak"]),
        (
            "modules",
            {
                "modules": [
                    {
                        "rows": [{"path": "", "own": 1}, {"path": "blocks.0", "own": 2}],
                        "parts": [{"kind": "activations", "peak": 2}, {"kind": "buffers", "peak": 1}],
                    }
                ]
            },
            [],
        ),
        (
            "modules",
            {"modules": [{"rows": [{"path": "head", "own": None}], "parts": [{"kind": "buffers", "peak": 1}]}]},
            ["modules", "kind"],
        ),
    ],
)
def test_known_answers_of_reports(tmp_path, option, observed, wrong):
    path = tmp_path / "program.py"
    path.write_text(f"{HEAD}# %%\nx = 1\n", encoding="utf-8")
    found = wrong_answers(read_program(path), option, {"observed": {"report": observed}})
    assert list(found) == [f"largest, {key}" for key in wrong]


@pytest.mark.parametrize(("holders", "wrong"), [([["x", 2], ["y", 1]], []), ([["y", 2], ["x", 1]], ["largest, who"])])
def test_known_answer_of_who(tmp_path, holders, wrong):
    path = tmp_path / "program.py"
    path.write_text(f"{HEAD}# %%\nx = 1\n", encoding="utf-8")
    assert list(wrong_answers(read_program(path), "who", {"observed": {"holders": holders}})) == wrong


def test_tables_name_differences_and_reasons():
    options = {
        "loaded": {"differences": {}, "answers": {}, "ratio": 1.004},
        "lines": {"differences": {"rng": "cell 1"}, "answers": {}, "ratio": 1.0},
        "modules": {"skipped": "has no single model"},
        "limit": {"failed": "RuntimeError"},
    }
    programs = {
        "lstm": {"title": "An LSTM", "seconds": 1.0, "cell_seconds": 0.0124, "options": options},
        "torchao": {"title": "Quantization", "options": {}, "skipped": "not installed: torchao"},
        "last": {"title": "The last program", "options": {}},
    }
    results = json.loads(json.dumps({"programs": programs}))
    text = text_table(results)
    assert [line.split()[:1] for line in text.splitlines()[:3]] == [["program"], ["lstm"], ["torchao"]]
    assert "1.00" in text and "lstm, lines: rng: cell 1" in text and "not installed: torchao" in text
    assert "last     not run" in text and "1 programs" in text
    assert "| `lstm`: An LSTM | 12 | 1.00 | - | DIFFERS | - | - | FAILED | - | - | - |" in markdown_table(results)
    assert "3 runs with the extension, 2 with a difference" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mError\x1b[0m in /tmp/ipykernel_12/34.py, line 3", "Error in CELL.py, line 3"),
        ("<object at 0x7f00>", "<object at 0xADDRESS>"),
        ("----> 1 get_ipython().run_line_magic('_gpumem_begin', '--lines')", "----> 1 FIRST LINE"),
        (" 50%|##   | 1/2 [00:00<00:01,  1.5it/s]\r100%|#####| 2/2 [00:01<00:00, 1.9it/s]", "100%|#####| 2/2 TIME"),
    ],
)
def test_normalized_text(tmp_path, text, expected):
    assert normalize(text, tmp_path) == expected
