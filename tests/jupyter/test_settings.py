"""All traits of GPUMem, set by %config and in a configuration file, including invalid values."""

from __future__ import annotations

import logging

import pytest
from traitlets.config import Config

from ipygpumem import OptionError
from ipygpumem.features.oom.observer import oom_path
from ipygpumem.jupyter.settings import Settings, without_invalid_values

MIB = 1 << 20


def allocate(mib, name="kept", device="cuda"):
    return f"{name} = torch.ones({mib} << 20, dtype=torch.uint8, device={device!r})"


TAKE_AND_DROP = "x = torch.ones(64 << 20, dtype=torch.uint8, device='cuda'); del x"


@pytest.fixture
def configured(make_notebook):
    """Return a function that creates a notebook with settings and loads the extension.

    The output of loading is ``notebook.said``.
    """

    def make(**settings):
        notebook = make_notebook(GPUMem=settings)
        notebook.run("import torch", store_history=False)
        notebook.said = notebook.load()
        return notebook

    return make


@pytest.fixture(params=["before the load", "by %config"])
def setting(request, configured):
    """Return a function that creates a notebook with settings from a configuration file or set by %config."""

    def make(**settings):
        if request.param == "before the load":
            return configured(**settings)
        notebook = configured()
        for name, value in settings.items():
            notebook.run(f"%config GPUMem.{name} = {value!r}", store_history=False)
        return notebook

    return make


@pytest.mark.ipython
def test_config_lists_every_trait(gpu_notebook):
    text = gpu_notebook.run("%config GPUMem").stdout
    for name in ("devices", "host_peak", "limit", "min_change", "peaks", "preload", "report", "style", "synchronize"):
        assert f"GPUMem.{name}=" in text
    assert "Current: 'kernels'" in text


@pytest.mark.ipython
def test_config_reads_a_trait(gpu_notebook):
    assert gpu_notebook.run("%config GPUMem.report").value == "changed"
    assert gpu_notebook.run("%config GPUMem.min_change").value == MIB


INVALID = {
    "report": "sometimes",
    "preload": "everything",
    "style": "ascii",
    "peaks": "approximate",
    "host_peak": 3,
    "synchronize": "perhaps",
    "min_change": "4 elephants",
    "limit": "5 zebras",
    "devices": "cuda:7",
    "log": "/no-such-folder/s.jsonl",
    "oom_snapshot": "/no-such-folder/x.pickle",
    "outside": "perhaps",
    "live": "sometimes",
}


@pytest.mark.ipython
def test_invalid_value_by_config_is_one_line(gpu_notebook, monkeypatch):
    records, handler = [], logging.Handler(logging.ERROR)
    monkeypatch.setattr(handler, "emit", records.append)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    for name, value in INVALID.items():
        before = gpu_notebook.run(f"%config GPUMem.{name}").value
        result = gpu_notebook.run(f"%config GPUMem.{name} = {value!r}")
        assert result.success  # IPython logs one line
        (record,) = records
        assert "\n" not in record.getMessage()
        assert repr(value) in record.getMessage() or str(value) in record.getMessage(), name
        assert gpu_notebook.run(f"%config GPUMem.{name}").value == before
        records.clear()
        is_always = gpu_notebook.run("%config GPUMem.report").value == "always"
        gpu_notebook.run(f"%config GPUMem.report = {'changed' if is_always else 'always'!r}")
        assert records == [], "the next setting does not restore the invalid value"
        assert len(gpu_notebook.run("1 + 1").texts) == (not is_always), name


@pytest.mark.parametrize("names", [INVALID.keys() - {"style"}, {"style"}], ids=["others", "style"])
def test_invalid_values_in_configuration_do_not_break_load(fake_gpu, configured, names):
    notebook = configured(**{"style": "table", **{name: INVALID[name] for name in names}})
    first, *faults = sorted(notebook.said.stdout.splitlines(), key=lambda line: "ignored" in line)
    assert first.startswith("ipygpumem: cuda:0 NVIDIA H200")
    starts = [f"ipygpumem: c.GPUMem.{name} = {INVALID[name]!r} is ignored: " for name in sorted(names)]
    assert [fault[: len(start)] for fault, start in zip(sorted(faults), starts, strict=True)] == starts
    assert notebook.said.stderr == ""
    assert notebook.said.success
    result = notebook.run(allocate(64))
    assert len(result.texts) == 1
    assert ("allocated (tensors)" in result.text) is ("style" not in names)  # valid values are applied


def test_nonexistent_device(fake_gpu, make_notebook, monkeypatch):
    """The device is checked after the import of torch, because the devices are unknown before."""
    from ipygpumem.sources import pytorch

    notebook = make_notebook(GPUMem={"devices": "cuda:7"})
    with monkeypatch.context() as patched:
        patched.setattr(pytorch, "module", lambda: None)
        config, faults = without_invalid_values(notebook.shell.config, "GPUMem")
        assert faults == []
        assert config.GPUMem.devices == "cuda:7"
        _, faults = without_invalid_values(Config(GPUMem={"devices": "gpu0"}), "GPUMem")
        assert faults == ["c.GPUMem.devices = 'gpu0' is ignored: 'gpu0' is not a device: use, for example, cuda:0 or 0"]


def test_missing_section_is_not_created():
    config = Config()
    assert without_invalid_values(config, "GPUMem") == (config, [])
    assert dict(config) == {}


def test_unknown_name_is_reported_by_traitlets(fake_gpu, configured):
    with pytest.warns(UserWarning, match="Config option `color` not recognized by `GPUMem`"):
        assert configured(color="red").said.success


@pytest.mark.ipython
@pytest.mark.parametrize(("report", "reports"), [("changed", [1, 0, 1]), ("always", [1, 1, 1]), ("off", [0, 0, 0])])
def test_report(fake_gpu, setting, report, reports):
    notebook = setting(report=report)
    cells = (allocate(64), "1 + 1", TAKE_AND_DROP)
    assert [len(notebook.run(cell).texts) for cell in cells] == reports
    assert len(notebook.run("%%gpumem\n1 + 1").texts) == 1  # requested reports are always shown


def test_load_mentions_that_reports_are_off(fake_gpu, configured):
    assert configured(report="off").said.stdout.endswith("; reports are off: use %gpumem on\n")


@pytest.mark.parametrize(
    ("minimum", "reports"), [(0, [1, 1, 1]), (MIB, [0, 1, 1]), ("4 MiB", [0, 0, 1]), ("1 GiB", [0, 0, 0])]
)
def test_min_change(fake_gpu, setting, minimum, reports):
    notebook = setting(min_change="2 GiB")
    notebook.run("x = torch.ones(1, device='cuda')")  # a segment to cut small blocks from
    notebook = setting(min_change=minimum)
    cells = (
        "y = torch.ones(1, device='cuda')",
        "z = torch.ones(1 << 20, dtype=torch.uint8, device='cuda')",
        allocate(64),
    )
    assert [len(notebook.run(cell).texts) for cell in cells] == reports


@pytest.mark.parametrize(("style", "tables"), [("auto", [0, 1]), ("line", [0, 0]), ("table", [1, 1])])
def test_style(fake_gpu, setting, style, tables):
    notebook = setting(style=style)
    cells = (allocate(64), f"%%gpumem\n{allocate(64, 'more')}")
    assert ["allocated (tensors)" in notebook.run(cell).text for cell in cells] == [bool(table) for table in tables]


@pytest.mark.parametrize("devices", ["1", 1, ["cuda:1"], ("1",), "cuda:1, cuda:1"])
def test_forms_of_devices(two_gpus, devices):
    assert Settings(config=Config(Settings={"devices": devices})).devices == ("cuda:1",)
    settings = Settings()
    settings.devices = devices
    assert settings.devices == ("cuda:1",)


def test_devices(two_gpus, setting):
    notebook = setting(devices="cuda:1")
    assert notebook.run("%config GPUMem.devices", store_history=False).value == ("cuda:1",)
    assert notebook.run(allocate(64)).texts == []
    result = notebook.run(allocate(64, "other", "cuda:1"))
    assert result.text.startswith("cuda:1  +64.0 MiB held")
    assert list(notebook.last.devices) == ["cuda:1"]
    assert notebook.said.stdout.startswith("ipygpumem: cuda:0 NVIDIA H200")  # the current one is preloaded
    notebook.run("%config GPUMem.devices = None")
    notebook.run("del kept, other")
    assert list(notebook.last.devices) == ["cuda:0", "cuda:1"]


def test_empty_list_of_devices_is_rejected(fake_gpu, configured):
    assert "devices is empty: use None to select all devices" in configured(devices=[]).said.stdout


def test_unload_resets_monitored_devices(two_gpus, configured):
    from ipygpumem.measurement.runtime import current

    notebook = configured(devices="cuda:1")
    assert current().monitor.selected == ("cuda:1",)
    notebook.run("%unload_ext ipygpumem")
    assert current().monitor.selected is None


def test_preload_context(fake_gpu, configured):
    notebook = configured(preload="context")
    assert "baseline 612 MiB (context 612, first kernels 0); a report" in notebook.said.stdout
    assert "outside PyTorch +66.0 MiB" in notebook.run("x = torch.ones(64, 64, device='cuda')\ny = x @ x").text


def test_preload_off_does_not_initialize_cuda(fake_gpu, configured):
    notebook = configured(preload="off")
    assert notebook.said.stdout == (
        "ipygpumem: CUDA is not initialized; the first cell to use CUDA sets the baseline; "
        "a report follows every cell that changes memory\n"
    )
    for cell in ("x = 1", "%gpumem", "%%gpumem\ny = 1", "%gpumem 6 * 7", "import ipygpumem; ipygpumem.reading()"):
        notebook.run(cell)
    assert fake_gpu[0].context is False
    assert notebook.run("torch.cuda.is_initialized()").value is False
    assert not any(fake_gpu.calls.values()), fake_gpu.calls

    result = notebook.run(allocate(64))
    assert result.text.startswith(
        "cuda:0  +64.0 MiB held · peak +64.0 MiB · CUDA context and first kernels +612.0 MiB · "
    )
    assert notebook.run("ipygpumem.measurement.runtime.current().baseline.outside").value == 612 * MIB
    result = notebook.run(allocate(64, "more"))
    assert "context" not in result.text
    assert "since the baseline" not in notebook.run("%gpumem").text, "no memory was allocated in between"


def test_breakdown_before_cuda_is_initialized(fake_gpu, configured):
    text = configured(preload="off").run("%gpumem").text
    assert "no GPU" not in text
    assert "CUDA is not initialized" in text


@pytest.mark.ipython
def test_preload_set_later_by_config(fake_gpu, configured):
    notebook = configured(preload="off")
    result = notebook.run("%config GPUMem.preload = 'context'")
    assert result.stdout.startswith("ipygpumem: cuda:0 NVIDIA H200, 139.8 GiB; baseline 612 MiB (context 612, ")
    assert notebook.run("%config GPUMem.preload = 'off'").stdout == ""


def test_untouched_peaks_are_not_reset(fake_gpu, configured):
    notebook = configured(peaks="untouched")
    assert fake_gpu.calls["resetPeakMemoryStats"] == 0
    assert "peak +64.0 MiB" in notebook.run(TAKE_AND_DROP).text  # a new maximum is exact
    result = notebook.run("x = torch.ones(32 << 20, dtype=torch.uint8, device='cuda'); del x")
    assert fake_gpu.calls["resetPeakMemoryStats"] == 0
    assert result.texts == []  # a bound from an older maximum says nothing about this cell
    assert notebook.last.devices["cuda:0"].grades["peak"].trust == "bound"
    notebook.run("%config GPUMem.peaks = 'exact'")
    notebook.run("x = torch.ones(32 << 20, dtype=torch.uint8, device='cuda'); del x")
    assert notebook.last.devices["cuda:0"].grades["peak"].trust == "exact"
    assert fake_gpu.calls["resetPeakMemoryStats"] > 0


def test_synchronize(fake_gpu, configured):
    notebook = configured()
    before = fake_gpu.calls["synchronize"] + fake_gpu.calls["streamSynchronize"]
    notebook.run(allocate(64))
    assert fake_gpu.calls["synchronize"] + fake_gpu.calls["streamSynchronize"] == before
    notebook.run("%config GPUMem.synchronize = True")
    waits = []
    from ipygpumem.sources import pytorch

    original = pytorch.synchronize
    pytorch.synchronize = lambda: waits.append("all devices")
    try:
        notebook.run(allocate(64, "more"))
    finally:
        pytorch.synchronize = original
    assert waits == ["all devices"] * 2


def test_host_peak(make_notebook):
    notebook = make_notebook(GPUMem={"report": "always", "host_peak": "reset"})
    notebook.load()
    # its own pages: a bytearray may reuse free memory of the heap
    notebook.run("import mmap\nx = mmap.mmap(-1, 64 << 20)\nfor at in range(0, len(x), 4096): x[at] = 1\nx.close()")
    for _ in range(2):  # repeated: the high-water mark must be reset for the peak of this cell
        notebook.run("x = mmap.mmap(-1, 32 << 20)\nfor at in range(0, len(x), 4096): x[at] = 1\nx.close()")
        assert notebook.last.host.grades["peak"].trust == "exact"
        assert 31 * MIB < notebook.last.host.peak < 60 * MIB


def test_every_trait_is_tested():
    assert set(Settings.class_traits(config=True)) == set(INVALID)


def test_configuration_from_the_command_line():
    from traitlets.config.loader import DeferredConfigString

    words = {"min_change": "4 MiB", "devices": "None", "limit": "None", "synchronize": "True", "report": "always"}
    config = Config(Settings={name: DeferredConfigString(text) for name, text in words.items()})
    settings = Settings(config=config)
    assert (settings.min_change, settings.devices, settings.synchronize) == (4 * MIB, None, True)


def test_device_selected_in_a_cell_is_reported_from_the_next_cell(two_gpus, setting):
    notebook = setting()
    notebook.run("a = torch.ones(10 << 20, device='cuda:0'); b = torch.ones(10 << 20, device='cuda:1')")
    notebook.run("%config GPUMem.devices = 'cuda:1'")
    assert list(notebook.last.devices) == ["cuda:1"]
    notebook.run("%config GPUMem.devices = 'cuda:0'")
    assert list(notebook.last.devices) == []
    result = notebook.run("%%gpumem\n%config GPUMem.devices = 'cuda:0,cuda:1'")
    assert list(notebook.last.devices) == ["cuda:0"]
    assert notebook.last.devices["cuda:0"].held == 0
    note = (
        "cuda:1 was added to the monitored devices during this measurement and is included from the next measurement on"
    )
    assert notebook.last.notes == (note,)
    assert note in result.text
    notebook.run("c = torch.ones(1 << 20, device='cuda:1')")
    assert {name: device.held for name, device in notebook.last.devices.items()} == {"cuda:0": 0, "cuda:1": 4 << 20}


@pytest.mark.parametrize("template", ["{m}.pickle", "{}.pickle", "{n[0]}.pickle", "{n.x}.pickle", "{n:z}.pickle", "{n"])
def test_invalid_placeholders_of_the_snapshot(template):
    with pytest.raises(OptionError, match="the only valid placeholders are"):
        oom_path(template, 1)
