"""``%gpumem history`` and ``compare``, the log, a comparison with the previous run, and values in output metadata."""

from __future__ import annotations

import json
import shutil

import pytest
from IPython.core.error import UsageError

from ipygpumem import load_reports
from ipygpumem.features.history.model import MIME, rows_from_summary

MIB = 1 << 20
ALLOCATE = "{name} = torch.ones({mib} << 20, dtype=torch.uint8, device='cuda:{device}')"


def allocate(mib, name="x", device=0):
    return ALLOCATE.format(name=name, mib=mib, device=device)


def usage(result):
    assert isinstance(result.error, UsageError), result
    assert result.stderr.count("\n") == 1
    assert result.displays == []
    return result.stderr.strip().removeprefix("UsageError: ")


@pytest.fixture
def session(gpu_notebook):
    for code in (allocate(100), f"# more\n{allocate(300, 'y')}", "del x\n1/0"):
        gpu_notebook.run(code)
    return gpu_notebook


def labels(result):
    return [line.split("  ")[1] for line in result.text.splitlines()[2:] if line.startswith("  In")]


def test_session_cell_by_cell(session):
    result = session.run("%gpumem history")
    lines = result.text.splitlines()
    assert lines[0] == "this session: 3 measurements"
    assert lines[2].startswith("  In [1]  x = torch.ones(100 << 20")
    assert "+100.0 MiB  +100.0 MiB" in lines[2]
    assert lines[4].startswith("  In [3]  del x")
    assert "-100.0 MiB" in lines[4]
    assert lines[4].endswith("failed")
    assert result.value is None
    assert result.stdout == ""
    assert len(session.run("%gpumem history").displays) == 1, "the command is not part of the history"
    assert len(session.reports) == 3


def test_sorted_and_paged(session):
    assert labels(session.run("%gpumem history --by peak")) == ["In [2]", "In [1]", "In [3]"]
    assert labels(session.run("%gpumem history --by peak -n 1 --page 2")) == ["In [1]"]
    assert labels(session.run("%gpumem history -n 2")) == ["In [2]", "In [3]"]


INVALID_ARGUMENTS = [
    ("--by color", "%gpumem history: argument --by: invalid choice: 'color'"),
    ("-n none", "%gpumem history: argument -n/--top: the value must be a positive integer, but got 'none'"),
    ("--page 0", "%gpumem history: argument --page: the value must be a positive integer, but got '0'"),
    ("--page ²", "%gpumem history: argument --page: the value must be a positive integer, but got '²'"),
    ("a b", "%gpumem history: only one file can be displayed: use %gpumem compare to compare two files"),
    ("none.jsonl", "%gpumem history: none.jsonl: No such file or directory"),
    ("-d xx", "%gpumem history: 'xx' is not a device: use, for example, cuda:0 or 0"),
    ("-d cuda:9", "%gpumem history: no measurements on cuda:9; measured devices: cuda:0"),
    ("-d 0,9,host", "%gpumem history: no measurements on cuda:9, host; measured devices: cuda:0"),
    ("--plot --by peak", "%gpumem history: --plot displays all cells in execution order: omit --by"),
    ("--plot --page 2", "%gpumem history: --plot displays all cells in execution order: omit --by"),
    ("--fast", "%gpumem history: unrecognized arguments: --fast"),
]


def test_invalid_arguments(session):
    for arguments, message in INVALID_ARGUMENTS:
        assert usage(session.run(f"%gpumem history {arguments}")).startswith(message)


def test_assignment_to_the_name_of_a_command_is_a_statement(gpu_notebook):
    for operator in ("=", "= ", "+=", "//="):
        result = gpu_notebook.run(f"history = 3\n%gpumem history {operator} 4\nhistory")
        assert result.success
        assert result.value in {4, 7, 0}
    assert gpu_notebook.run("%gpumem compare = 5\ncompare").value == 5


def test_history_plot(session):
    (bundle,) = session.run("%gpumem history --plot").displays
    assert set(bundle) == {"text/plain", "image/png"}
    assert bundle["text/plain"].startswith("this session: 3 measurements")


def test_page_after_the_last(session):
    text = session.run("%gpumem history -n 2 --page 7").text
    assert text.splitlines()[-1] == "page 7 does not exist: the last page is 2"


def test_aliases_for_rows_per_page(session):
    assert labels(session.run("%gpumem history --top 1")) == labels(session.run("%gpumem history -n 1"))


def test_host_row_before_the_gpu_was_used(session):
    import dataclasses

    first = dataclasses.replace(session.reports[0], devices={})
    from ipygpumem.features.history.reports import session_reports

    session_reports().append(first)
    text = session.run("%gpumem history --by time").text
    assert text.endswith("on the host, held and peak refer to the resident memory of the process")


def test_unused_device(two_gpus, make_notebook):
    notebook = make_notebook()
    notebook.run("import torch", store_history=False)
    notebook.load()
    notebook.run("x = torch.ones(5, device='cuda:0')")
    result = notebook.run("%%gpumem -d 1\ny = torch.ones(5, device='cuda:0')")
    assert result.text.splitlines()[-1] == "cuda:1 is not used by this process"
    assert "cuda:1: not" not in notebook.run("%%gpumem -d 1\ny = torch.ones(5, device='cuda:1')").text
    notebook.run("%config GPUMem.devices = 'cuda:0'")
    assert (
        notebook.run("%%gpumem -d 1\ny = 1").text.splitlines()[-1]
        == "cuda:1 is not one of the monitored devices (GPUMem.devices)"
    )


def test_history_of_an_empty_session(gpu_notebook):
    assert gpu_notebook.run("%gpumem history").text == "this session: no measurements yet"
    assert set(gpu_notebook.run("%gpumem history --plot").displays[0]) == {"text/plain", "image/png"}


def test_each_device_has_a_row_and_peaks_are_not_added(two_gpus, make_notebook):
    notebook = make_notebook()
    notebook.run("import torch", store_history=False)
    notebook.load()
    notebook.run(f"{allocate(100)}\n{allocate(300, 'y', 1)}")
    lines = notebook.run("%gpumem history").text.splitlines()
    assert [line.split("cuda:")[1].split()[:5] for line in lines[2:]] == [
        ["0", "+100.0", "MiB", "+100.0", "MiB"],
        ["1", "+300.0", "MiB", "+300.0", "MiB"],
    ]
    assert "400.0" not in notebook.run("%gpumem history").text
    assert "CUDA initialized" in lines[3]
    only = notebook.run("%gpumem history -d 1").text
    assert "cuda:0" not in only
    assert "+300.0 MiB" in only


def test_log(gpu_notebook, tmp_path):
    path = tmp_path / "s.jsonl"
    gpu_notebook.run(f"%config GPUMem.log = {str(path)!r}")
    gpu_notebook.run(allocate(100))
    gpu_notebook.run(
        "import ipygpumem\nwith ipygpumem.measure():\n    y = torch.ones(5 << 20, dtype=torch.uint8, device='cuda')"
    )
    gpu_notebook.run("%gpumem z = 1")
    reports = load_reports(path)
    assert list(reports) == list(gpu_notebook.reports)[-len(reports) :]
    assert [report.code for report in reports][-4:] == [allocate(100), "In [3]:2", "import ipygpumem", "z = 1"]
    assert labels(gpu_notebook.run(f"%gpumem history {path}"))[:2] == ["In [2]", "In [3]"]
    gpu_notebook.run("%config GPUMem.log = None")
    gpu_notebook.run(allocate(7))
    assert len(load_reports(path)) == len(reports)


def test_secrets_in_the_first_line_are_not_kept(gpu_notebook, tmp_path):
    path = tmp_path / "s.jsonl"
    gpu_notebook.run(f"%config GPUMem.log = {str(path)!r}")
    result = gpu_notebook.run(f"TOKEN = 'hf_swordfish'; {allocate(10)}")
    gpu_notebook.run("%config GPUMem.log = None")
    history = gpu_notebook.run("%gpumem history").text
    assert "TOKEN = '***'; " in history
    log = path.read_text()
    assert any(json.loads(line)["code"].startswith("TOKEN = '***'; ") for line in log.splitlines())
    assert "swordfish" not in f"{log}{history}{result.displays}"


def test_configured_log_ends_with_the_extension(fake_gpu, make_notebook, tmp_path):
    path = tmp_path / "s.jsonl"
    notebook = make_notebook(GPUMem={"log": str(path)})
    notebook.run("import torch", store_history=False)
    notebook.load()
    notebook.run(allocate(5))
    notebook.run("%reload_ext ipygpumem", store_history=False)
    notebook.run(allocate(6))
    assert [report.code for report in load_reports(path)] == [allocate(5), allocate(6)]
    notebook.run("%unload_ext ipygpumem", store_history=False)
    notebook.run("import ipygpumem\nwith ipygpumem.measure(): pass")
    assert len(load_reports(path)) == 2


def test_log_failure_is_reported_once(gpu_notebook, tmp_path):
    directory = tmp_path / "gone"
    directory.mkdir()
    gpu_notebook.run(f"%config GPUMem.log = {str(directory / 's.jsonl')!r}")
    shutil.rmtree(directory)
    first, second = gpu_notebook.run(allocate(5)), gpu_notebook.run(allocate(6))
    assert first.success and len(first.displays) == 1
    assert first.stderr == (
        f"ipygpumem: cannot write the log {directory}/s.jsonl: No such file or directory; "
        "reports are kept in memory until the log is writable\n"
    )
    assert second.stderr == ""
    directory.mkdir()
    gpu_notebook.run(allocate(7))
    assert [report.code for report in load_reports(directory / "s.jsonl")][-3:] == [
        allocate(5),
        allocate(6),
        allocate(7),
    ]


def test_last_run_is_shown(gpu_notebook):
    first = gpu_notebook.run(f"a = []\n{allocate(100)}", cell_id="one")
    assert "previous run" not in first.text
    second = gpu_notebook.run(f"a = []\n{allocate(250)}", cell_id="one")
    assert second.text.splitlines()[1].startswith("previous run, In [1]: +100.0 MiB held · peak +100.0 MiB, ")
    third = gpu_notebook.run(allocate(20), cell_id="one")
    assert "previous run, In [2]: +150.0 MiB held · peak +250.0 MiB, " in third.text
    other_cell = gpu_notebook.run(allocate(30, "y"), cell_id="two")
    assert "previous run" not in other_cell.text


def test_equal_run_is_mentioned_only_on_request(gpu_notebook):
    code = "kept.append(torch.ones(5 << 20, dtype=torch.uint8, device='cuda'))"
    gpu_notebook.run("kept = []")
    texts = [gpu_notebook.run(code, cell_id="one").text for _ in range(3)]
    assert all("+5.0 MiB held" in text for text in texts)
    assert not any("previous run" in text for text in texts)
    assert "previous run" not in gpu_notebook.run(f"%%gpumem\n{code}", cell_id="two").text
    assert ": same memory usage, " in gpu_notebook.run(f"%%gpumem\n{code}", cell_id="two").text


def test_output_metadata_contains_the_values(session):
    session.run(allocate(50, "z"))
    (output,) = session.shell.display_pub.outputs
    (row,) = rows_from_summary(json.loads(json.dumps(output["metadata"][MIME])))
    report = session.last
    assert (row.cell, row.held, row.peak) == (report.cell, 50 * MIB, report.devices["cuda:0"].peak)


def test_values_of_a_failed_cell_are_stored_once(session):
    session.run(allocate(1 << 20, "z"))
    summaries = [output["metadata"][MIME] for output in session.shell.display_pub.outputs if MIME in output["metadata"]]
    assert [output["devices"]["cuda:0"]["ooms"] for output in summaries] == [1]


def test_comparison_of_two_runs(session, tmp_path):
    logs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, mib in zip(logs, (10, 25), strict=True):
        session.run(f"%config GPUMem.log = {str(path)!r}")
        session.shell.execution_count = 50
        session.run(allocate(mib, "fresh"))
        session.run("del fresh")
    session.run("%config GPUMem.log = None")
    result = session.run(f"%gpumem compare {logs[0]} {logs[1]}")
    lines = result.text.splitlines()
    assert lines[0].startswith("b.jsonl compared with a.jsonl (rows in both: ")
    (row,) = [line for line in lines if line.startswith("  In [50]")]
    assert "+25.0 MiB" in row
    assert "+15.0 MiB" in row
    assert usage(session.run(f"%gpumem compare {logs[0]}")).startswith(
        "%gpumem compare: the following arguments are required: B"
    )
    assert "earlier run" not in result.text
    (rerun,) = [line for line in logs[1].read_text().splitlines() if '"cell": 50,' in line]
    logs[1].write_text(f"{logs[1].read_text()}{rerun}\n")
    note = "b.jsonl: only the last run of each cell is compared (skipped: 1 earlier run)"
    assert note in session.run(f"%gpumem compare {logs[0]} {logs[1]}").text
    with logs[0].open("a") as file:
        file.write("half")
    result = session.run(f"%gpumem compare {logs[0]} {logs[1]} --by peak")
    assert result.stdout.startswith(f"ipygpumem: skipped: {logs[0]}: line ")
