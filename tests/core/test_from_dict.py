"""Reports as plain data and back."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.facts import after, report
from ipygpumem import ReportError
from ipygpumem.core.grade import grade
from ipygpumem.core.other_process import OtherProcess, OtherProcessChange
from ipygpumem.core.report import RecordingFacts, Report
from ipygpumem.core.samples import OutsidePeak
from ipygpumem.features.limits.model import ExceededLimit
from ipygpumem.features.lines.model import DeviceLines, LineUse, SourceLine, SourceListing
from ipygpumem.features.modules.model import KindBytes, ModuleRow, ModuleTree, StepPhase
from ipygpumem.features.outside.model import LibraryMemory, OutsideMemory, PoolMemory
from ipygpumem.features.profile.model import CategoryPeak, ProfileFacts

LINES = DeviceLines(
    device="cuda:0",
    listings=(SourceListing("In [7]", (SourceLine(1, "\tx = f()", LineUse(5, 6, 7, 1, 2, 1, 3)), SourceLine(2, ""))),),
    before=1,
    elsewhere=LineUse(),
    end_requested=2,
    end_rounding=3,
    end_pending=-4,
    end_allocated=5,
    peak_requested=6,
    peak_rounding=None,
    peak_pending=0,
    peak_allocated=7,
)
TREE = ModuleTree(
    device="cuda:0",
    phases=(StepPhase("forward", 2, 0.5, 10, 20, None),),
    parts=(KindBytes("activations", 3, 0),),
    rows=(ModuleRow("", "Net", 0, 1, 2, 3, 4, 5, None, 6, 7, 8, "compiled"),),
    rounding=(None, 1),
    pending=(0, -2),
    allocated=(9, 8),
    notes=("a note",),
)
OUTSIDE = OutsideMemory(
    device="cuda:0",
    libraries=(LibraryMemory("cuBLAS", "libcublas.so.12", "device", 1, 2, 3, 4, 5, pooled=True),),
    pools=(PoolMemory("CuPy", None, 1, None, 3, grade("sampled", "why")),),
    peak=None,
    idle=0,
    rest=-1,
    seconds=0.5,
    grade=grade("exact", "records"),
)
NEIGHBOUR = OtherProcess(7, 5, "python a.py", "own", "ada", "kernel", "/home/ada/b.ipynb", "", 1.5, "")
PROFILE = ProfileFacts(
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
        recording=RecordingFacts("x.pickle", 5, 6, None, own=False, error="e"),
    ),
    lines=(LINES,),
    excesses=(ExceededLimit("cuda:0", "peak", 5, 4),),
    modules=(TREE,),
    libraries=(OUTSIDE,),
    profile=PROFILE,
    neighbours=(OtherProcessChange("cuda:0", NEIGHBOUR, 0, 5, "began"),),
    code="x = f()",
)


def plain(one=FULL):
    return json.loads(one.to_json())


def test_the_full_report_has_something_in_every_field():
    empty = [field.name for field in dataclasses.fields(Report) if getattr(FULL, field.name) in (None, "", ())]
    assert empty == [], "a new field of Report: give it to FULL, so that it is known to come back from a file"


LISTED = report(end=after(listed=((7, 5), (8, None))))


@pytest.mark.parametrize(
    "one", [FULL, LISTED, report(), report(peak=None), report(exact=False, success=None, cell=None)]
)
def test_a_report_comes_back_whole(one):
    assert "listed" not in one.to_json(), "numbers of other people's processes"
    assert Report.from_dict(plain(one)) == one
    assert pickle.loads(pickle.dumps(one)) == one


def test_a_host_without_a_gpu_comes_back():
    one = dataclasses.replace(report(), devices={})
    assert Report.from_dict(plain(one)) == one


def broken(path, value):
    data = plain()
    *folders, last = path
    place = data
    for name in folders:
        place = place[name]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return data


READING = ("devices", "cuda:0", "before")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ([*READING, "allocated"], "5", "devices.cuda:0.before.allocated is a text, not a whole number"),
        ([*READING, "allocated"], True, "devices.cuda:0.before.allocated is true or false, not a whole number"),
        ([*READING, "allocated"], 1 << 63, "devices.cuda:0.before.allocated is no number of 64 bits"),
        ([*READING, "allocated"], 1.5, "devices.cuda:0.before.allocated is a number, not a whole number"),
        ([*READING, "mode"], "all", "devices.cuda:0.before.mode is none of process, device, torch-only"),
        ([*READING, "mode"], ["process"], "devices.cuda:0.before.mode is none of process, device, torch-only"),
        ([*READING, "context"], None, "devices.cuda:0.before.context is null, not true or false"),
        (["devices", "cuda:0", "before"], KeyError, "devices.cuda:0.before is null, not an object"),
        (["devices"], [], "devices is a list, not an object"),
        (["host"], KeyError, "host is null, not an object"),
        (["seconds"], KeyError, "seconds is missing"),
        (["seconds"], float("nan"), "seconds is no finite number"),
        (["seconds"], 10**400, "seconds is no finite number"),
        (["seconds"], -0.5, "seconds is below zero"),
        (["cell"], -1, "cell is below zero"),
        (["time"], -5, "time is none: it counts seconds since 1970"),
        (["notes"], "note", "notes is a text, not a list"),
        (["notes", 1], 7, "notes[1] is a whole number, not a text"),
        (["modules", 0, "rounding"], [1, 2, 3], "modules[0].rounding has 3 parts, not 2"),
        (["modules", 0, "rows", 0, "calls"], None, "modules[0].rows[0].calls is null, not a whole number"),
        (["schema"], KeyError, "it has no schema: nothing that ipygpumem wrote"),
        (["schema"], True, "it has no schema: nothing that ipygpumem wrote"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(path, value, told):
    with pytest.raises(ReportError) as caught:
        Report.from_dict(broken(path, value))
    assert str(caught.value) == told


@pytest.mark.parametrize("data", [None, 5, "x", [], True])
def test_what_is_no_object_is_no_report(data):
    with pytest.raises(ReportError, match=r"the report is .*, not an object"):
        Report.from_dict(data)


def test_an_older_report_lacks_the_newer_fields():
    data = plain()
    for name in ("code", "modules", "excesses", "lines", "libraries"):
        del data[name]
    older = dataclasses.replace(FULL, code="", modules=(), excesses=(), lines=(), libraries=())
    assert Report.from_dict(data) == older


def test_a_later_schema_is_read_as_far_as_it_is_known():
    data = plain() | {"schema": 2, "modules": {"all": "new"}, "colour": "red"}
    data["devices"]["cuda:0"]["before"]["allocated"] = {"in": "another form"}
    found = Report.from_dict(data)
    assert found.modules == ()
    assert found.devices["cuda:0"].before.allocated is None
    assert found.devices["cuda:0"].after == FULL.devices["cuda:0"].after
    with pytest.raises(ReportError, match=r"written by a later version \(schema 2\): seconds is missing"):
        Report.from_dict(broken(["seconds"], KeyError) | {"schema": 2})


def test_a_text_cannot_move_the_cursor():
    data = plain(report(notes=("a\x1b[2J\nb\u202e\ud800",), end=after(why="x\ry")))
    found = Report.from_dict(data)
    assert found.notes == ("a?[2J?b??",)
    assert found.devices["cuda:0"].after.why == "x?y"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("process"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(plain())), inner, max_size=4),
    max_leaves=10,
)


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from places(inner, (*path, name))


@settings(deadline=None, max_examples=150)
@given(st.sampled_from([path for path in places(plain()) if path]), JUNK)
def test_whatever_stands_anywhere_is_read_or_told_in_one_line(path, junk):
    told = ""
    try:
        found = Report.from_dict(broken(path, copy.deepcopy(junk)))
    except ReportError as error:
        told = str(error)
    if told:
        assert len(told.splitlines()) == 1
        return
    assert Report.from_dict(json.loads(found.to_json())) == found
    assert repr(found)
