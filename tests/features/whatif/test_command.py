import copy
import functools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from ipygpumem.cli import main
from ipygpumem.core.tables import text_tables
from ipygpumem.core.units import parse_size
from ipygpumem.features.whatif.table import blockers_table, comparison_table
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.replay import result
from ipygpumem.snapshot.replay.result import replay
from ipygpumem.snapshot.replay.run import run
from ipygpumem.snapshot.replay.settings_comparison import compare_settings
from snapshot import files

DATA = Path(__file__).parents[2] / "data"
OOM = str(DATA / "oom_fragmented.pickle.xz")
ALL_PROBES = result._PROBES
load_recording = functools.cache(Snapshot.load)


@pytest.fixture(autouse=True)
def few_probes(monkeypatch):
    """Test fewer limits near the smallest sufficient limit. This search is tested in tests/snapshot/replay."""
    monkeypatch.setattr(result, "_PROBES", 1)


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch):
    """Load each recording once."""
    load = Snapshot.load

    def load_once(source):
        is_recording = isinstance(source, (str, Path)) and Path(source).parent == DATA
        return load_recording(str(source)) if is_recording else load(source)

    monkeypatch.setattr(Snapshot, "load", load_once)


def shell(capsys, *arguments):
    status = main(["whatif", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_table(capsys):
    status, output, _ = shell(capsys, OOM, "--set", "expandable_segments:True", "--set", "max_split_size_mb:32")
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert status == 0
    assert lines[1:5] == [
        "reserved peak smallest limit within 1,716 to 1,742 MiB",
        "as recorded 1,716 MiB 1,740 MiB out of memory",
        "expandable_segments:True 1,700 MiB 1,656 MiB yes",
        "max_split_size_mb:32 1,788 MiB 1,748 MiB out of memory",
    ]
    available = "1,716 to 1,742 MiB was available to PyTorch when the request failed"
    assert f"{available}; the recording does not contain a more exact value." in lines
    setting = "set PYTORCH_ALLOC_CONF=expandable_segments:True before torch is imported"
    assert f"Recommendation: {setting} (up to PyTorch 2.8: PYTORCH_CUDA_ALLOC_CONF)." in lines
    assert "project/experiment.py:18 forward 180 MiB 60 MiB 192 MiB 24" in lines
    assert "Freeing 16 blocks (14.5 MiB) in 4 segments before the request would have made room for it." in lines


@pytest.mark.parametrize(("capacity", "event", "blocks"), [("1690MiB", 5997, 3), ("1730MiB", 5998, None)])
def test_blocks_to_free_within_a_capacity(capacity, event, blocks):
    compared = compare_settings(files.snapshot("oom_fragmented"), settings=["max_split_size_mb:512"], capacity=capacity)
    blockers, recording = compared.blockers, compared.verification.recording
    assert (blockers.event, blockers.capacity, blockers.reserved) == (event, parse_size(capacity), None)
    assert blockers.smallest.bytes <= 11 << 20
    assert blocks is None or len(blockers.smallest.rows) == blocks
    operations, frees = recording.operations, ~np.array(blockers.smallest.rows)
    before, after = np.split(operations[~np.isin(operations, frees)], [np.searchsorted(recording.events, event)])
    for rows, fails in ((frees, False), (frees[1:], True)):
        changed = np.concatenate([before, rows, after])
        failure = run(recording, recording.settings, limit=blockers.capacity, operations=changed).failure
        assert (failure is not None and failure.event == event) == fails
    assert [change.label for change in blockers.changes] == ["project/experiment.py:33 <module>"]


def test_larger_capacity(capsys):
    _, output, _ = shell(capsys, OOM, "--set", "max_split_size_mb:512", "--capacity", "24GiB")
    assert " within 24,576 MiB\n" in output
    assert "partly used segments" not in output


def test_recommendation_within_a_larger_capacity(capsys):
    file, setting = str(DATA / "variable_lengths_oom.pickle.xz"), "expandable_segments:True"
    _, output, _ = shell(capsys, file, "--set", setting, "--capacity", "24GiB")
    assert f"\nRecommendation: set PYTORCH_ALLOC_CONF={setting} before " in output
    assert "\nMemory ran short while recording: a request failed. The reserved peaks in the other rows are " in output


def test_settings_with_the_same_effect(capsys):
    file = str(DATA / "max_split.pickle.xz")
    settings = ["large_segment_size_mb:64,max_split_size_mb:512", "large_segment_size_mb:64"]
    unchanged = "max_split_size_mb:64,pinned_use_background_threads:True"
    _, output, _ = shell(capsys, file, "--set", settings[0], "--set", settings[1], "--set", unchanged)
    assert f"\nThese settings have the same effect as {settings[0]}: {settings[1]}.\n" in output
    assert f"\nThese settings have no effect compared with the recorded settings: {unchanged}.\n" in output


def test_older_blocks_at_other_addresses(capsys):
    file = str(DATA / "resnet50.pickle.xz")
    _, output, _ = shell(capsys, file, "--set", "expandable_segments:True", "--capacity", "1016MiB")
    line = " ".join(output.splitlines()[3].split())
    assert line == "expandable_segments:True 1,014 to 1,164 MiB 0% 1,024 MiB depends on older memory"
    assert replay(load_recording(file), settings="expandable_segments:True").fits("1000MiB") is None
    _, output, _ = shell(capsys, file, "--set", "expandable_segments:True", "--capacity", "900MiB")
    assert output.splitlines()[3].endswith("out of memory")
    assert "\nNone of these settings is enough: about " in output


@pytest.mark.parametrize("name", ["gpt_two_sizes", "oom_fragmented"])
def test_capacity_without_fragmentation(capsys, name):
    file = str(DATA / f"{name}.pickle.xz")
    _, output, _ = shell(capsys, file, "--set", "max_split_size_mb:512", "--capacity", "10MiB")
    assert "\nNone of these settings is enough: at least " in output
    assert output.splitlines()[-1].startswith("None of these settings is enough")


def test_title_and_peaks_within_a_capacity(capsys, monkeypatch):
    monkeypatch.setattr(result, "_PROBES", ALL_PROBES)
    file, setting = str(DATA / "cuda_graphs.pickle.xz"), "garbage_collection_threshold:0.8"
    _, output, _ = shell(capsys, file, "--capacity", "600MiB", "--set", setting)
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[3] == f"{setting} 680 MiB out of memory"
    assert "The CUDA context and kernels of a program need about 0.7 GiB in addition to these 600 MiB." in lines
    assert any(line.startswith("partly used segments when a request of ") for line in lines)
    assert any(" failed within 600 MiB (event " in line for line in lines)


def test_fragmentation_at_the_peak(capsys):
    _, output, _ = shell(capsys, str(DATA / "gpt_small.pickle.xz"), "--set", "expandable_segments:True")
    assert output.endswith(
        "PyTorch reserved new memory for the request; reserved memory rose to 1,936 MiB.\n"
        "50.0 MiB was free in 17 partly used segments, in blocks of at most 15.0 MiB.\n"
        "62.0 MiB was free in unused segments, which PyTorch releases only if memory runs out, during garbage "
        "collection (garbage_collection_threshold), or when torch.cuda.empty_cache() is called.\n"
    )


def test_default_settings(capsys):
    file = str(DATA / "max_split.pickle.xz")
    _, output, _ = shell(capsys, file, "--set", "", "--set", "max_split_size_mb:512")
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[1:4] == [
        "reserved peak smallest limit within 1,146 to 1,154 MiB",
        "as recorded 1,146 MiB 1,120 MiB yes",
        "default settings 2,588 MiB 1,160 MiB out of memory",
    ]
    assert "\nMemory may have run short while recording: cached segments were freed, either in order to serve" in output
    assert "\nThe replay with the recorded settings (max_split_size_mb:64) agrees with the recording: " in output
    assert "\nThese settings have no effect compared with the default settings: max_split_size_mb:512.\n" in output


def test_result_depends_on_addresses(capsys):
    file, setting = str(DATA / "collection.pickle.xz"), "roundup_power2_divisions:4"
    compared = compare_settings(files.snapshot("collection"), settings=[setting], capacity="1250MiB")
    output = text_tables([comparison_table(compared)])
    assert output.splitlines()[3].endswith("1,252 MiB  depends on addresses")
    (alternative,) = json.loads(json.dumps(compared.to_dict()))["alternatives"]
    assert (alternative["fits"], alternative["fits_reason"]) == (None, "depends on addresses")
    sentence = "Whether one of these settings is enough depends on the addresses of new segments, which are unknown."
    assert f"\n{sentence}" in output
    _, output, _ = shell(capsys, file, "--set", setting, "--capacity", "1200MiB")
    assert output.splitlines()[3].endswith("out of memory")
    _, output, _ = shell(capsys, str(DATA / "gpt_two_sizes.pickle.xz"), "--set", setting, "--capacity", "10MiB")
    assert output.splitlines()[3].endswith("878 MiB  out of memory"), "blocks older than the recording need 594 MiB"


def test_result_depends_on_the_limit(capsys):
    file = str(DATA / "variable_lengths_oom.pickle.xz")
    _, output, _ = shell(capsys, file, "--set", "roundup_power2_divisions:8")
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[1].endswith("within 3,120 to 3,350 MiB")
    assert lines[3] == "roundup_power2_divisions:8 4,650 MiB 3,296 MiB depends on limit"
    cause = "the memory that was available, which is not recorded exactly"
    assert f"Whether one of these settings is enough depends on {cause}." in lines
    _, output, _ = shell(capsys, OOM, "--set", "max_split_size_mb:32")
    assert "\nNone of these settings is enough: up to 24.0 MiB more memory is required.\n" in output


def test_approximate_replay(capsys, tmp_path):
    recording = files.raw("collection")
    recording["allocator_settings"]["garbage_collection_threshold"] = 0.0
    path = tmp_path / "changed.pickle"
    path.write_bytes(pickle.dumps(recording))
    _, output, _ = shell(capsys, str(path), "--set", "expandable_segments:True")
    assert " ".join(output.splitlines()[2].split()).startswith("as recorded 1,274 MiB ")
    assert "differs from the recording (event " in output
    assert "; its peak is 1,312 MiB.\n" in output


def test_larger_limits_that_fail(capsys, monkeypatch):
    monkeypatch.setattr(result, "_PROBES", ALL_PROBES)
    file = str(DATA / "collection.pickle.xz")
    _, output, _ = shell(capsys, file, "--set", "", "--capacity", "24GiB")
    note = '\nSome limits larger than "smallest limit" are not enough: default settings (up to 1,174 MiB).\n'
    assert " 1,160 MiB " in output.splitlines()[3]
    assert note in output


def test_garbage_collection_requires_a_limit(capsys):
    file, setting = str(DATA / "cnn_steps.pickle.xz"), "garbage_collection_threshold:0.8"
    _, output, _ = shell(capsys, file, "--set", setting, "--capacity", "2.5GiB")
    assert " ".join(output.splitlines()[3].split()).startswith(f"{setting} 2,206 to 2,234 MiB -12% ")
    limit = "torch.cuda.set_per_process_memory_fraction"
    assert f"\ngarbage_collection_threshold has no effect unless {limit} limits the memory: " in output
    assert f"and limit the memory to 2.5 GiB with {limit}.\n" in output
    file = str(DATA / "variable_lengths_oom.pickle.xz")
    _, output, _ = shell(capsys, file, "--set", "garbage_collection_threshold:0.6")
    assert "has no effect unless" not in output, "a limit of the program was reached"


def test_recording_in_which_no_segment_was_allocated(capsys):
    _, output, _ = shell(capsys, str(DATA / "gpt_cpp.pickle.xz"), "--set", "expandable_segments:True")
    assert "\nNo recommendation: reserved memory did not grow while recording" in output


def test_no_table_without_partly_used_segments(capsys):
    _, output, _ = shell(capsys, str(DATA / "cuda_graphs.pickle.xz"), "--set", "expandable_segments:True")
    lines = output.splitlines()
    assert lines[lines.index("") + 1 :][:2] == [
        "memory when 96.0 MiB was requested (event 1,713)",
        "PyTorch reserved new memory for the request; reserved memory rose to 1,206 MiB.",
    ]
    assert "grow by up to 25%, would have lowered" in lines[-1]
    assert not blockers_table(compare_settings(files.snapshot("cuda_graphs"), settings=[""]).blockers).header


def test_recorded_setting(capsys):
    file, setting = str(DATA / "two_streams_expandable.pickle.xz"), "expandable_segments:True"
    _, output, _ = shell(capsys, file, "--set", setting)
    assert "\nNone of these settings has an effect on the requests.\n" in output


def test_other_devices(capsys, tmp_path):
    recording = files.raw("oom_fragmented")
    copied = copy.deepcopy([segment for segment in recording["segments"] if segment["device"] == 0])
    recording["segments"] = [*recording["segments"], *({**segment, "device": 1} for segment in copied)]
    recording["device_traces"] = [recording["device_traces"][0][-500:] for _ in range(2)]
    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps(recording))
    snapshot = Snapshot.load(path)
    assert snapshot.summary().count("see ipygpumem whatif two.pickle --device 1\n") == 1
    recording["device_traces"][0] = [event for event in recording["device_traces"][0] if event["action"] != "oom"]
    failed = compare_settings(Snapshot.load(recording), settings=["max_split_size_mb:512"])
    assert (failed.device, failed.failed) == (1, True)
    _, output, _ = shell(capsys, str(path), "--device", "1", "--set", "max_split_size_mb:512")
    assert output.splitlines()[0] == "two.pickle GPU 1"
    assert "\nThe file also contains allocations on GPU 0: select a device with --device.\n" in output


@pytest.mark.parametrize(("torch", "note"), [("", " (PyTorch 2.11 or later)"), ("2.11.0", "")])
def test_recommended_setting_of_new_versions(capsys, tmp_path, torch, note):
    recording = files.raw("oom_fragmented")
    recording["ipygpumem"] = {"torch": torch} if torch else {}
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(recording))
    _, output, _ = shell(capsys, str(path), "--set", "large_segment_size_mb:64")
    setting = "PYTORCH_ALLOC_CONF=large_segment_size_mb:64"
    assert f"\nRecommendation: set {setting} before torch is imported{note}.\n" in output


def test_capacity_and_json(capsys):
    setting, unchanged = ("--set", "large_segment_size_mb:64"), "pinned_use_background_threads:True"
    arguments = ("--capacity", "1875MiB", "--json", *setting, "--set", unchanged)
    status, output, _ = shell(capsys, str(DATA / "gpt_small.pickle.xz"), *arguments)
    data = json.loads(output)
    assert status == 0
    assert data["recorded"]["fits"] is True
    assert data["equivalent"] == {unchanged: "default settings"}
    (alternative,) = data["alternatives"]
    assert (alternative["settings"], alternative["fits"]) == (setting[1], None)
    assert alternative["fits_reason"] == "depends on older memory"
    assert (data["blockers"]["size"], data["blockers"]["reserved"]) == (80 << 20, 1936 << 20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((OOM, "--set", "max_split:1"), "unknown allocator setting: max_split"),
        ((OOM, "--capacity", "0"), "at least 1 byte"),
        ((OOM, "--device", "x"), "must be an integer"),
    ],
)
def test_invalid_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit):
        main(["whatif", *arguments])
    assert message in capsys.readouterr().err


def test_file_that_cannot_be_replayed(capsys, tmp_path):
    path = tmp_path / "empty.json"
    path.write_text('{"segments": [], "device_traces": [[]]}')
    status, _, error = shell(capsys, str(path))
    assert status == 1
    assert error.strip().endswith("device 0 cannot be replayed: the recording contains no allocations")
