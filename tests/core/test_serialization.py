"""Tests of the conversion of reports to JSON-serializable data and back."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.reports import after, report
from ipygpumem import ReportError
from ipygpumem.core.other_process import OtherProcess, OtherProcessChange
from ipygpumem.core.reading import make_accuracy
from ipygpumem.core.report import RecordingInfo, Report
from ipygpumem.core.samples import OutsidePeak
from ipygpumem.features.limits.model import ExceededLimit
from ipygpumem.features.lines.model import AllocationSite, DeviceLines, LineUsage, PeakLines, SourceLine, SourceListing
from ipygpumem.features.modules.model import MemoryKindUsage, ModuleRow, ModuleTree, StepPhase
from ipygpumem.features.outside.model import LibraryMemory, OutsideMemory, PoolMemory
from ipygpumem.features.profile.model import CategoryPeak, ProfileSummary

LINES = DeviceLines(
    device="cuda:0",
    listings=(
        SourceListing("In [7]", (SourceLine(1, "\tx = f()", LineUsage(5, 6, 7, 1, 2, 1, 3)), SourceLine(2, ""))),
    ),
    before=1,
    elsewhere=LineUsage(),
    end_requested=2,
    end_rounding=3,
    end_pending=-4,
    end_allocated=5,
    peak_requested=6,
    peak_rounding=None,
    peak_pending=0,
    peak_allocated=7,
)
PEAK_LINES = PeakLines("cuda:0", (AllocationSite("train.py:3", 512, 1),), AllocationSite("3 more", 5, 6), 7, -8, 9)
TREE = ModuleTree(
    device="cuda:0",
    phases=(StepPhase("forward", 2, 0.5, 10, 20, None),),
    parts=(MemoryKindUsage("activations", 3, 0),),
    rows=(ModuleRow("", "Net", 0, 1, 2, 3, 4, 5, None, 6, 7, 8, "compiled"),),
    rounding=(None, 1),
    pending=(0, -2),
    allocated=(9, 8),
    notes=("a note",),
)
OUTSIDE_MEMORY = OutsideMemory(
    device="cuda:0",
    libraries=(LibraryMemory("cuBLAS", "libcublas.so.12", "device", 1, 2, 3, 4, 5, pooled=True),),
    pools=(PoolMemory("CuPy", None, 1, None, 3, make_accuracy("sampled", "why")),),
    peak=None,
    idle=0,
    rest=-1,
    seconds=0.5,
    grade=make_accuracy("exact", "records"),
)
OTHER_PROCESS = OtherProcess(7, 5, "python a.py", "own", "ada", "kernel", "/home/ada/b.ipynb", "", 1.5, "")
PROFILE = ProfileSummary(
    *("t.json.gz", 5, "t.html", 6, 7),
    (CategoryPeak("cuda:0", 8, 0.5, (("parameter", 3), ("unknown", 5))),),
    *(1.5, 0.25, "why", ("an error",)),
)
SAMPLED = OutsidePeak(1, 0.5, 0.25, 0.125, 3)
FULL = dataclasses.replace(
    report(
        sampled={"cuda:0": SAMPLED},
        notes=("one", "two"),
        cell_id="a1b",
        recording=RecordingInfo("x.pickle", 5, 6, None, own=False, error="e", peak_lines=(PEAK_LINES,)),
    ),
    lines=(LINES,),
    excesses=(ExceededLimit("cuda:0", "peak", 5, 4),),
    modules=(TREE,),
    libraries=(OUTSIDE_MEMORY,),
    profile=PROFILE,
    neighbours=(OtherProcessChange("cuda:0", OTHER_PROCESS, 0, 5, "began"),),
    code="x = f()",
)


def plain_data(report=FULL):
    return json.loads(report.to_json())


def test_full_report_has_a_value_in_every_field():
    empty = [field.name for field in dataclasses.fields(Report) if getattr(FULL, field.name) in (None, "", ())]
    assert empty == [], "give a new field of Report a value in FULL, so that the tests check that it is read back"


LISTED = report(end=after(listed=((7, 5), (8, None))))


@pytest.mark.parametrize(
    "original", [FULL, LISTED, report(), report(peak=None), report(exact=False, success=None, cell=None)]
)
def test_report_round_trip(original):
    assert "[7, 5]" not in original.to_json(), "process IDs of other users are not written"
    assert Report.from_dict(plain_data(original)) == original
    assert pickle.loads(pickle.dumps(original)) == original


def test_round_trip_without_a_gpu():
    original = dataclasses.replace(report(), devices={})
    assert Report.from_dict(plain_data(original)) == original


def broken(path, value):
    data = plain_data()
    *parents, last = path
    parent = data
    for name in parents:
        parent = parent[name]
    if value is KeyError:
        del parent[last]
    else:
        parent[last] = value
    return data


READING = ("devices", "cuda:0", "before")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ([*READING, "allocated"], "5", "devices.cuda:0.before.allocated is a string, not an integer"),
        ([*READING, "allocated"], True, "devices.cuda:0.before.allocated is true or false, not an integer"),
        ([*READING, "allocated"], 1 << 63, "devices.cuda:0.before.allocated must be between -2**60 and 2**60"),
        ([*READING, "allocated"], 1.5, "devices.cuda:0.before.allocated is a number, not an integer"),
        ([*READING, "mode"], "all", "devices.cuda:0.before.mode must be one of 'process', 'device', 'torch-only'"),
        ([*READING, "mode"], ["a"], "devices.cuda:0.before.mode must be one of 'process', 'device', 'torch-only'"),
        ([*READING, "context"], None, "devices.cuda:0.before.context is null, not true or false"),
        (["devices", "cuda:0", "before"], KeyError, "devices.cuda:0.before is missing"),
        (["devices"], [], "devices is a list, not an object"),
        (["host"], KeyError, "host is missing"),
        (["seconds"], KeyError, "seconds is missing"),
        (["seconds"], float("nan"), "seconds is not a finite number"),
        (["seconds"], 10**400, "seconds is not a finite number"),
        (["seconds"], -0.5, "seconds is -0.5, but must not be negative"),
        (["cell"], -1, "cell is -1, but must not be negative"),
        (["time"], -5, "time is -5.0, but must be in seconds since the Unix epoch"),
        (["notes"], "note", "notes is a string, not a list"),
        (["notes", 1], 7, "notes[1] is an integer, not a string"),
        (["modules", 0, "rounding"], [1, 2, 3], "modules[0].rounding must have 2 items, but got 3"),
        (["modules", 0, "rows", 0, "calls"], None, "modules[0].rows[0].calls is null, not an integer"),
        (["schema"], KeyError, "the data has no valid schema version, so it was not written by ipygpumem"),
        (["schema"], True, "the data has no valid schema version, so it was not written by ipygpumem"),
    ],
)
def test_invalid_value_is_reported_with_its_path(path, value, message):
    with pytest.raises(ReportError) as exc_info:
        Report.from_dict(broken(path, value))
    assert str(exc_info.value) == message


@pytest.mark.parametrize("data", [None, 5, "x", [], True])
def test_values_that_are_not_objects(data):
    with pytest.raises(ReportError, match=r"the report is .*, not an object"):
        Report.from_dict(data)


def test_missing_fields_of_an_older_report_have_defaults():
    data = plain_data()
    for name in ("code", "modules", "excesses", "lines", "libraries"):
        del data[name]
    older = dataclasses.replace(FULL, code="", modules=(), excesses=(), lines=(), libraries=())
    assert Report.from_dict(data) == older


def test_known_fields_of_a_later_schema_are_read():
    data = plain_data() | {"schema": 2, "modules": {"all": "new"}, "color": "red"}
    data["devices"]["cuda:0"]["before"]["allocated"] = {"in": "another form"}
    result = Report.from_dict(data)
    assert result.modules == ()
    assert result.devices["cuda:0"].before.allocated is None
    assert result.devices["cuda:0"].after == FULL.devices["cuda:0"].after
    with pytest.raises(ReportError, match="the data was written by a later version of ipygpumem"):
        Report.from_dict(broken(["seconds"], KeyError) | {"schema": 2})


def test_control_characters_are_replaced():
    data = plain_data(report(notes=("a\x1b[2J\nb\u202e\ud800",), end=after(why="x\ry")))
    result = Report.from_dict(data)
    assert result.notes == ("a?[2J?b??",)
    assert result.devices["cuda:0"].after.why == "x?y"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("process"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(plain_data())), inner, max_size=4)
    ),
    max_leaves=10,
)


def paths(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from paths(inner, (*path, name))


@settings(max_examples=100)
@given(st.sampled_from([path for path in paths(plain_data()) if path]), JUNK)
def test_any_invalid_value_is_read_or_reported_in_one_line(path, junk):
    try:
        result = Report.from_dict(broken(path, copy.deepcopy(junk)))
    except ReportError as error:
        message = str(error)
        assert len(message.splitlines()) == 1
        return
    assert Report.from_dict(json.loads(result.to_json())) == result
    assert repr(result)
