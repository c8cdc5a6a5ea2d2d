"""Profiles on a real GPU: kernels in the trace, categories as in PyTorch's export, the allocator's counters."""

import gzip
import json

import numpy as np
import pytest


@pytest.fixture
def example(torch):
    from fakes.programs import example

    return example(steps=3, side=96)


def profiled(torch, run):
    from ipygpumem.features.profile.profiler_session import ProfilerSession

    capture = ProfilerSession()
    capture.start()
    run()
    torch.cuda.synchronize()
    capture.stop()
    assert capture.error == ""
    return capture


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_categories_match_torch_export(torch, example, tmp_path):
    from ipygpumem.features.profile.event_tree import read_flow
    from ipygpumem.features.profile.timeline import build_timelines

    capture = profiled(torch, example)
    timelines = {timeline.device: timeline for timeline in build_timelines(read_flow(capture.result))}
    assert next(iter(timelines)) == "cuda:0"
    for device in ("cuda:0", "cpu"):
        capture._profile.export_memory_timeline(str(tmp_path / "t.json"), device)
        times, sizes = json.loads((tmp_path / "t.json").read_text())
        our_times = np.array([int(int(time) / 1000) for time in timelines[device].time])
        rows = np.searchsorted(our_times, times, side="right")
        rows[: int(times[0] == times[1])] = 0  # if there is an initial state
        levels, expected = timelines[device].usage[rows], np.array(sizes)[:, 1:]
        different = np.flatnonzero((levels != expected).any(axis=1))
        assert not len(different), (
            device,
            [(times[i], levels[i].tolist(), expected[i].tolist()) for i in different[:5]],
        )


def test_peak_agrees_with_allocator_counters(torch, example, tmp_path):
    import ipygpumem

    with ipygpumem.measure(trace=tmp_path / "t.json.gz", timeline=tmp_path / "t.html") as m:
        example()
    report = m.report
    assert report.profile.errors == ()
    peak = report.profile.peaks[0]
    assert peak.device == "cuda:0"
    device = report.devices["cuda:0"]
    assert 0 < peak.bytes <= device.high.allocated, "memory that no operator used is in no category"
    # memory that was allocated before and not used is in no category
    assert peak.bytes > 0.9 * (device.high.allocated - device.before.allocated)
    events = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)
    memory = [event["args"] for event in events if event.get("name") == "[memory]"]
    assert max(fields["Total Allocated"] for fields in memory if fields["Device Type"] == 1) == device.high.allocated


def test_with_a_snapshot_and_lines(torch, tmp_path):
    import ipygpumem

    with ipygpumem.measure(
        snapshot=tmp_path / "s.pickle", lines=True, trace=tmp_path / "t.json", timeline=tmp_path / "t.html"
    ) as m:
        tensors = torch.ones(1 << 20, device="cuda").mul(2)
    assert m.report.recording.error == ""
    assert m.report.lines
    assert m.report.profile.errors == ()
    del tensors


def test_code_that_runs_out_of_memory_has_its_categories(torch, tmp_path):
    import ipygpumem

    model = torch.nn.Linear(1000, 1000, device="cuda")
    with pytest.raises(torch.OutOfMemoryError), ipygpumem.measure(timeline=tmp_path / "t.html") as m:
        model(torch.ones(10, 1000, device="cuda")).sum().backward()
        torch.empty(1 << 46, device="cuda")
    profile = m.report.profile
    assert (profile.why, profile.errors) == ("", ())
    assert dict(profile.peaks[0].categories)["parameter"] >= 4_000_000


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears:UserWarning")  # pytorch#180348
def test_code_with_its_own_profiler_keeps_its_kernels(torch, tmp_path):
    import ipygpumem

    with ipygpumem.measure(timeline=tmp_path / "t.html") as m:
        torch.ones(1000, device="cuda").mul(2)
        with torch.profiler.profile() as user_profile:
            x = torch.ones(1000, 1000, device="cuda")
            (x @ x).sum().item()
    assert any(event.device_type.name == "CUDA" for event in user_profile.events())
    assert m.report.profile.interrupted_after is not None


def test_run_without_cuda_events_creates_no_context(run_python, tmp_path):
    values = run_python(f"""
        import ipygpumem, torch
        with ipygpumem.measure(trace={str(tmp_path / "t.json")!r}, timeline={str(tmp_path / "t.html")!r}) as m:
            torch.ones(1000).mul(2)
        emit(started=torch.cuda.is_initialized(), errors=m.report.profile.errors,
             devices=[peak.device for peak in m.report.profile.peaks])
    """)
    assert values["started"] is False
    assert values["errors"] == []
    assert values["devices"] == ["cpu"]


def test_library_recording_is_disabled_during_profile(run_python, tmp_path):
    values = run_python(f"""
        import ipygpumem, torch
        ipygpumem.preload_pytorch()
        from ipygpumem.measurement.runtime import current
        from ipygpumem.features.plan import make_plan
        from ipygpumem.features.profile.collect import profile_collector
        from ipygpumem.core.report import MeasurementLabel
        from ipygpumem.measurement.measurement import MeasurementOptions
        runtime = current()
        profile = profile_collector({str(tmp_path / "t.json")!r}, None)
        plan = make_plan(runtime, outside=True, every_cell=True, profile=profile)
        measurement = plan.begin(runtime, MeasurementOptions())
        torch.ones(1000, 1000, device="cuda") @ torch.ones(1000, 1000, device="cuda")
        torch.cuda.synchronize()
        report = plan.finish(measurement, MeasurementLabel(), success=True).report
        text = open({str(tmp_path / "t.json")!r}).read()
        emit(notes=report.notes, errors=report.profile.errors, kernels=text.count('"kernel"'))
    """)
    assert values["errors"] == []
    assert values["kernels"] > 0, "the profile takes precedence"
    assert any("torch.profiler used CUPTI" in note or "by library" in note for note in values["notes"])
