"""``%gpumem view FILE`` and ``%%gpumem --snapshot FILE --view``."""

import json
import shutil

import pytest
from IPython.core.error import UsageError

from ipygpumem import Snapshot
from ipygpumem.viewer.display_target import DisplayTarget
from ipygpumem.viewer.view import View
from snapshot import files
from snapshot.decoding import decode

# ipywidgets 7, which Colab uses, calls a deprecated function of traitlets
pytestmark = pytest.mark.filterwarnings("ignore:Deprecated in traitlets:DeprecationWarning")

WIDGET = "application/vnd.jupyter.widget-view+json"
HINT = "(to open the viewer in a browser, run ipygpumem view FILE in a shell)"
BODY = "kept = torch.ones(30 << 20, dtype=torch.uint8, device='cuda')\nlen(kept)"


def watch(monkeypatch, kind):
    """Give the shell the attributes of a kernel's shell. The tests in tests/kernel use real kernels."""
    monkeypatch.setattr(
        "ipygpumem.viewer.display_target.shell_target",
        lambda shell: DisplayTarget(
            kind, lambda data, metadata: shell.display_pub.publish(data=data, metadata=metadata)
        ),
    )


@pytest.fixture
def gpt(tmp_path):
    return shutil.copy(files.path("gpt_small"), tmp_path / "my gpt.xz")


def usage(result):
    assert isinstance(result.error, UsageError), result
    assert result.stderr.count("\n") == 1
    assert result.displays == []
    return result.stderr.strip().removeprefix("UsageError: ")


@pytest.fixture
def quiet(make_notebook):
    notebook = make_notebook()
    notebook.load()
    return notebook


@pytest.mark.ipython
def test_file_in_a_terminal(cpu_notebook, gpt):
    result = cpu_notebook.run(f"%gpumem view '{gpt}'")
    assert result.success
    assert result.texts == [f"{Snapshot.load(gpt).summary()}\n{HINT}"], "the cell has no separate report"
    assert result.value is None


@pytest.mark.ipython
@pytest.mark.parametrize("kind", ["live", "batch"])
def test_file_in_a_notebook(quiet, monkeypatch, kind):
    watch(monkeypatch, kind)
    result = quiet.run(f"%gpumem view '{files.path('cuda_graphs')}'")
    kinds = [set(data) for data in result.displays]
    assert kinds == [{"text/plain", "image/png"}, *([{"text/plain", WIDGET}] if kind == "live" else [])]


def test_two_files_and_names_that_expand(quiet, gpt, tmp_path):
    quiet.shell.user_ns["folder"] = tmp_path
    result = quiet.run(f"%gpumem view '{{folder}}/my gpt.xz' {files.path('resnet50')}")
    assert "my gpt.xz\n\nGPU 0: peak 976.7 MiB" in result.text


def test_other_allocator_settings(cpu_notebook):
    path = files.path("oom_fragmented")
    result = cpu_notebook.run(f"%gpumem whatif '{path}' --set expandable_segments:True")
    assert "Recommendation: set PYTORCH_ALLOC_CONF=expandable_segments:True" in result.text
    assert result.value is None
    result = cpu_notebook.run(f"%gpumem whatif '{files.path('cuda_graphs')}' --set expandable_segments:True --json")
    assert [item["settings"] for item in json.loads(result.stdout)["alternatives"]] == ["expandable_segments:True"]


def test_replay_in_the_viewer(quiet, monkeypatch):
    watch(monkeypatch, "live")
    widgets = []
    monkeypatch.setattr(View, "_widget_bundle", lambda view: widgets.append(view.widget) or ({}, {}))
    assert quiet.run(f"%gpumem view '{files.path('cuda_graphs')}' --set expandable_segments:True").success
    encoded = widgets[0]._encoders["0"]()
    assert decode(encoded)[0]["devices"][0]["replay"]["settings"] == "expandable_segments:True"


INVALID_ARGUMENTS = [
    ("", "%gpumem view: expected 1 to 8 snapshots to show side by side, but got 0"),
    ("a b c d e f g h i", "%gpumem view: expected 1 to 8 snapshots to show side by side, but got 9"),
    ("--brief a", "%gpumem view: unrecognized arguments: --brief"),
    ("a --set x:1", "%gpumem view: argument --set: unknown allocator setting: x"),
    ("missing.pickle", "%gpumem view: missing.pickle: No such file or directory"),
    ("~nobody-of-this-name/x", "%gpumem view: ~nobody-of-this-name/x: No such file or directory"),
    ("'a", '%gpumem view: No closing quotation in "\'a"'),
    ("{no_such}", "%gpumem view: '{no_such}' cannot be expanded (NameError: name 'no_such' is not defined)"),
]


def test_invalid_arguments(quiet):
    for arguments, message in INVALID_ARGUMENTS:
        assert usage(quiet.run(f"%gpumem view {arguments}")) == message


def test_file_that_is_not_a_snapshot(quiet, tmp_path):
    (tmp_path / "x").write_text("nonsense")
    assert usage(quiet.run(f"%gpumem view {tmp_path}/x")).startswith(f"%gpumem view: {tmp_path}/x: the file is neither")


def test_recorded_cell_is_shown_below_its_report(gpu_notebook, tmp_path, monkeypatch):
    watch(monkeypatch, "live")
    path = tmp_path / "x.pickle"
    result = gpu_notebook.run(f"%%gpumem --snapshot {path} --view\n{BODY}")
    assert result.value == 31457280
    table, image, viewer = result.displays
    assert f"snapshot {path}: " in table["text/plain"]
    assert image["text/plain"] == Snapshot.load(path).summary()
    assert "peak 62.0 MiB requested" in image["text/plain"]
    assert f"In[{gpu_notebook.shell.execution_count - 1}]:2 <" in image["text/plain"]
    assert "image/png" in image
    assert WIDGET in viewer


@pytest.mark.ipython
def test_failing_cell_is_shown_and_fails(gpu_notebook, tmp_path):
    result = gpu_notebook.run(f"%%gpumem --snapshot {tmp_path}/x.pickle --view\n{BODY}\n1/0")
    assert isinstance(result.error, ZeroDivisionError)
    assert HINT in result.texts[-1]


@pytest.mark.ipython
def test_quiet_keeps_the_view(gpu_notebook, tmp_path):
    result = gpu_notebook.run(f"%%gpumem -q --snapshot {tmp_path}/x.pickle --view\n{BODY}")
    assert HINT in result.text
    assert result.stdout == "Out[1]: 31457280\n"


def test_statement(gpu_notebook, tmp_path):
    result = gpu_notebook.run(f"%gpumem --snapshot {tmp_path}/x.pickle --view {BODY.splitlines()[0]}")
    assert HINT in result.texts[-1]
    assert "peak 62.0 MiB requested" in result.texts[-1]


def test_failing_view_is_one_line(gpu_notebook, tmp_path, monkeypatch):
    def broken(self, target):
        raise RuntimeError("no canvas\nand more")

    monkeypatch.setattr(View, "publish", broken)
    result = gpu_notebook.run(f"%%gpumem --snapshot {tmp_path}/x.pickle --view\n{BODY}")
    assert result.success
    assert result.value == 31457280
    assert len(result.displays) == 1
    assert result.stdout == f"Out[1]: 31457280\nipygpumem: {tmp_path}/x.pickle cannot be shown: no canvas\n"
    assert result.stderr == ""


def test_no_view_without_snapshot_file(gpu_notebook, tmp_path):
    (tmp_path / "gone").mkdir()
    result = gpu_notebook.run(
        f"%%gpumem --snapshot {tmp_path}/gone/x.pickle --view\n{BODY.splitlines()[0]}\n"
        f"import shutil; shutil.rmtree('{tmp_path}/gone')"
    )
    assert "was not written" in result.text
    assert result.success


def test_view_requires_snapshot(gpu_notebook):
    message = usage(gpu_notebook.run(f"%%gpumem --view\n{BODY}"))
    assert message == "%%gpumem: --view requires a snapshot: add --snapshot PATH"
    assert "kept" not in gpu_notebook.shell.user_ns
