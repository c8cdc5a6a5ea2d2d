"""Tests of the labels of other processes, and of their changes, which add up to the device's change."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.reports import after, before, report
from ipygpumem.core.other_process import OtherProcess
from ipygpumem.features.processes.model import other_process_changes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("facts", "label"),
    [
        ({}, ""),
        ({"name": "python", "relation": "other", "user": "ada"}, "python, user ada"),
        ({"relation": "other", "user": "1001"}, "unnamed, user 1001"),
        ({"name": "python a.py", "relation": "own", "user": "me"}, "python a.py"),
        ({"name": "python a.py", "relation": "own", "notebook": "/home/me/b.ipynb"}, "python a.py, from b.ipynb"),
        (
            {"name": "python -m ipykernel", "relation": "own", "role": "kernel", "notebook": "C:\\me\\b.ipynb"},
            "kernel of b.ipynb",
        ),
        ({"name": "python -m ipykernel", "relation": "own", "role": "kernel"}, "kernel, python -m ipykernel"),
        ({"name": "python t.py", "relation": "child", "role": "rank 1"}, "rank 1, python t.py, child of this process"),
        ({"relation": "child"}, "unnamed, child of this process"),
    ],
)
def test_label_and_title(facts, label):
    process = OtherProcess(7, None, **facts)
    assert process.label == label
    assert process.title == (f"pid 7 ({label})" if label else "pid 7")


def identify(pid, event):
    return OtherProcess(pid, None, f"p{pid}", command="secret"), event


def device(old, new, **changes):
    start = before(listed=old, others=sum(size or 0 for _, size in old))
    end = after(listed=new, others=sum(size or 0 for _, size in new))
    return dataclasses.replace(report(start, end).devices["cuda:0"], **changes)


def test_events_and_changes():
    changes = other_process_changes(device(((1, 10), (2, 20), (3, 30)), ((2, 25), (3, 30), (4, 400))), identify)
    assert [(c.neighbour.pid, c.before, c.after, c.change, c.event) for c in changes] == [
        (4, 0, 400, 400, "came"),
        (1, 10, 0, -10, "left"),
        (2, 20, 25, 5, ""),
    ]
    assert {change.neighbour.command for change in changes} == {""}, (
        "reports, which may be shared, contain no command lines"
    )
    unchanged = other_process_changes(device(((3, 30),), ((3, 30),)), identify, unchanged=True)
    assert [(change.neighbour.pid, change.change, change.event) for change in unchanged] == [(3, 0, "")]


LISTS = st.dictionaries(st.integers(1, 9), st.none() | st.integers(0, 1 << 40), max_size=6).map(
    lambda entries: tuple(entries.items())
)


@given(LISTS, LISTS)
def test_changes_add_up_to_device_change(old, new):
    device_report = device(old, new)
    changes = other_process_changes(device_report, identify)
    assert sum(change.change for change in changes) == device_report.others


def test_no_changes_unless_listed_at_both_ends():
    changed = device((), ((1, 10),))
    unknown = dataclasses.replace(changed.before, process=None, others=None, listed=())
    assert other_process_changes(dataclasses.replace(changed, before=unknown), identify, unchanged=True) == ()
    # before CUDA is initialized, the memory of this process is 0 and the list is not read
    idle = dataclasses.replace(changed.before, context=False, process=0, others=None, listed=())
    assert other_process_changes(dataclasses.replace(changed, before=idle), identify) == ()
