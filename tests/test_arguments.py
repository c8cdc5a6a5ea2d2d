"""Arguments of a wrong type are refused with one line that contains the argument's name, the value and the type."""

from __future__ import annotations

import re

import pytest

import ipygpumem

SNAPSHOT = ipygpumem.Snapshot.load({"segments": [], "device_traces": [[]]})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ipygpumem.measure(stacks=[], snapshot="x"), "stacks must be 'python', 'all' or 'none', but got []"),
        (lambda: ipygpumem.measure(peaks={}), "peaks must be 'exact' or 'untouched', but got {}"),
        (lambda: ipygpumem.measure(host_peak=[]), "host_peak must be 'bound' or 'reset', but got []"),
        (lambda: ipygpumem.measure(history="abc", snapshot="x"), "history must be a dict of arguments, but got 'abc'"),
        (lambda: ipygpumem.measure(limit_held="x"), "limit_held: 'x' is not a size: write a number of bytes"),
        (lambda: ipygpumem.measure(devices=b"0"), "\"b'0'\" is not a device: use, for example, cuda:0 or 0"),
        (lambda: ipygpumem.processes(device=1.5), "'1.5' is not a device"),
        (lambda: ipygpumem.explain(device=len), "is not a device: use, for example, cuda:0 or 0"),
        (lambda: ipygpumem.load_reports(None), "path must be the name of a file, but got None"),
        (lambda: ipygpumem.read_ranks(3), "folder must be the name of a directory, but got 3"),
        (lambda: ipygpumem.merge_reports(3), "reports must be a dictionary or a list of reports, but got 3"),
        (lambda: ipygpumem.reports.append("x" * 99), "report must be a Report, but got 'xxxxxxxxxxxx...xxxxxxxxxxxxx'"),
        (
            lambda: SNAPSHOT.to_html("x.html", settings=3),
            "settings must be a string such as 'expandable_segments:True', but got 3",
        ),
        (lambda: SNAPSHOT.ooms(last="1"), "last must be a number of errors or None, but got '1'"),
        (lambda: SNAPSHOT.window(None, 3), "start_us must be a number of microseconds, but got None"),
        (lambda: SNAPSHOT.short_lived(at_least=True), "at_least must be a number of bytes, but got True"),
        (lambda: ipygpumem.fit(abs, margin=None), "margin must be a share of the memory, such as 0.02, but got None"),
        (lambda: ipygpumem.fit(abs, most="5%"), "most must be a share of the free memory, such as 0.25, but got '5%'"),
        (lambda: SNAPSHOT.to_html("x.html", theme=[]), "theme must be 'auto', 'light' or 'dark', but got []"),
    ],
)
def test_arguments_of_a_wrong_type(call, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        call()
    assert isinstance(caught.value, ipygpumem.OptionError)
    assert "\n" not in str(caught.value)
