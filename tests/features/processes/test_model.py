"""Other processes: what each is called, and changes that add up to the device's."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.facts import after, before, report
from ipygpumem.features.processes.model import OtherProcess, other_process_changes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("facts", "label"),
    [
        ({}, ""),
        ({"name": "python", "relation": "other", "user": "ada"}, "python, of user ada"),
        ({"relation": "other", "user": "1001"}, "unnamed, of user 1001"),
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
def test_what_a_neighbour_is_called(facts, label):
    one = OtherProcess(7, None, **facts)
    assert one.label == label
    assert one.title == (f"pid 7 ({label})" if label else "pid 7")


def who(pid, listed):
    return OtherProcess(pid, None, f"p{pid}", command="secret"), listed


def device(old, new, **changes):
    start = before(listed=old, others=sum(size or 0 for _, size in old))
    end = after(listed=new, others=sum(size or 0 for _, size in new))
    return dataclasses.replace(report(start, end).devices["cuda:0"], **changes)


def test_who_came_who_left_and_who_grew():
    found = other_process_changes(device(((1, 10), (2, 20), (3, 30)), ((2, 25), (3, 30), (4, 400))), who)
    assert [(one.neighbour.pid, one.before, one.after, one.change, one.event) for one in found] == [
        (4, 0, 400, 400, "came"),
        (1, 10, 0, -10, "left"),
        (2, 20, 25, 5, ""),
    ]
    assert {one.neighbour.command for one in found} == {""}, "reports are logged and given away"
    standing = other_process_changes(device(((3, 30),), ((3, 30),)), who, standing=True)
    assert [(one.neighbour.pid, one.change, one.moved) for one in standing] == [(3, 0, False)]


LISTS = st.dictionaries(st.integers(1, 9), st.none() | st.integers(0, 1 << 40), max_size=6).map(
    lambda found: tuple(found.items())
)


@given(LISTS, LISTS)
def test_changes_add_up_to_that_of_all(old, new):
    one = device(old, new)
    found = other_process_changes(one, who)
    assert sum(change.change for change in found) == one.others


def test_where_processes_cannot_be_told_apart_nobody_came():
    whole = device((), ((1, 10),))
    unknown = dataclasses.replace(whole.before, process=None, others=None, listed=())
    assert other_process_changes(dataclasses.replace(whole, before=unknown), who, standing=True) == ()
    # before CUDA started here our own memory is 0 for certain, and nobody else's was read
    idle = dataclasses.replace(whole.before, context=False, process=0, others=None, listed=())
    assert other_process_changes(dataclasses.replace(whole, before=idle), who) == ()
