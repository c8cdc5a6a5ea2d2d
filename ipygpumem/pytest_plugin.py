"""Pytest plugin that checks the memory limits of tests and, on request, prints a table of their memory usage.

::

    @pytest.mark.gpumem_limit("2 GiB")                      # limit for the peak on any GPU
    @pytest.mark.gpumem_limit("2 GiB", held=0, outside="50 MiB", host="1 GiB")
    def test_training_step(): ...

    pytest --gpumem                                         # table of memory usage, highest peaks first

Marks of modules, classes, tests and parameter sets (``pytest.param(..., marks=...)``) are combined. For each limit, the
most specific mark takes precedence. Without a GPU, limits on GPU memory pass with a warning.

Memory is measured relative to the start of the test, as for a notebook cell; fixtures are excluded. The operating
system's peak counter for resident memory is reset for each measured test. If neither the mark nor the option is used,
the plugin imports neither PyTorch nor the modules that measure memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ipygpumem.core.report import Report

_MARK = "gpumem_limit"
_MAX_ROWS = 30
_PROPERTIES = ("gpumem_peak", "gpumem_held", "gpumem_outside", "gpumem_host_peak")
"""Names of the ``user_properties`` of a measured test, which JUnit reports include. The values are in bytes."""
_HEADER = ("GPU peak", "GPU held", "outside PyTorch", "host peak")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ipygpumem", "GPU memory")
    group.addoption("--gpumem", action="store_true", help="report the GPU and host memory usage of every test")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARK}(peak=None, *, held=None, outside=None, host=None): fail the test if it exceeds a limit on its peak "
        "on any GPU, the GPU memory that it leaves allocated, its growth of memory outside PyTorch, or its peak host "
        "memory; a limit is a size such as '2 GiB' or a number of bytes",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check all marks before the first test runs. An invalid mark raises `pytest.UsageError`."""
    for item in items:
        try:
            _limits(item)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{item.nodeid}: invalid mark {_MARK}: {error}") from error


def _limits(item: pytest.Item) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    # pytest lists the marks of a parameter set after those of the function, although they are more specific
    parameter_marks = [mark for mark in getattr(getattr(item, "callspec", None), "marks", ()) if mark.name == _MARK]
    for mark in (*parameter_marks, *item.iter_markers(_MARK)):
        limits = {**gpumem_limit(*mark.args, **mark.kwargs), **limits}
    return limits


def gpumem_limit(peak: Any = None, *, held: Any = None, outside: Any = None, host: Any = None) -> dict[str, Any]:
    """Return arguments of `ipygpumem.measure` for the limits in a mark. Raises `ValueError` if a limit is invalid."""
    from ipygpumem.features.limits.model import MemoryLimits

    sizes = (peak, held, outside, host)
    if not MemoryLimits.parse(*sizes):
        raise ValueError("no limit is set: add one, as in gpumem_limit('2 GiB')")
    names = ("limit", "limit_held", "limit_outside", "limit_host")
    return {name: size for name, size in zip(names, sizes, strict=True) if size is not None}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    limits = _limits(item)
    if not limits and not item.config.getoption("gpumem"):
        yield
        return
    import ipygpumem
    from ipygpumem.measurement.runtime import current

    if current().baseline is None and "torch" in sys.modules:
        ipygpumem.preload_pytorch()  # otherwise the report of the first test would include the CUDA context
    block = ipygpumem.measure(host_peak="reset", **limits).__enter__()
    error: Exception | None = None
    outcome: Any = yield
    try:
        block.__exit__(*(outcome.excinfo or (None, None, None)))
    except ipygpumem.GPUMemLimitExceeded as limit_error:
        error = limit_error
    report: Report | None = getattr(block, "report", None)
    if report is not None:
        item.user_properties.extend(_user_properties(report))
        try:
            for note in [note for note in report.notes if "not checked" in note]:
                item.warn(pytest.PytestWarning(f"{_MARK}: {note}"))
        except Warning as warning:  # pytest can turn warnings into errors
            error = error or warning
    if error is not None and outcome.excinfo is None:
        outcome.force_exception(pytest.fail.Exception(f"{type(error).__name__}: {error}", pytrace=False))


def _user_properties(report: Report) -> list[tuple[str, object]]:
    devices = report.devices.values()
    peaks = [device.peak for device in devices if device.high is None or device.high.exact]
    outside = [device.outside for device in devices if device.process_wide]
    metrics = (peaks, [device.held for device in devices], outside, [report.host.peak] if report.host.exact else [])
    known_values = [[value for value in values if value is not None] for values in metrics]
    return [(name, max(values)) for name, values in zip(_PROPERTIES, known_values, strict=True) if values]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("gpumem"):
        return
    from ipygpumem.core.units import VISIBLE, many, signed

    tests = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = dict(getattr(report, "user_properties", ()))
            if getattr(report, "when", "") == "call" and any(name in properties for name in _PROPERTIES):
                tests[report.nodeid] = [properties.get(name) for name in _PROPERTIES]
    terminalreporter.section("memory usage of the tests (ipygpumem)")
    if not tests:
        terminalreporter.write_line("no tests were measured")
        return
    widths = [max(len(name), 10) for name in _HEADER]
    terminalreporter.write_line("  ".join([*map(str.rjust, _HEADER, widths), "test"]))
    changed_tests = [item for item in tests.items() if any(abs(value or 0) >= VISIBLE for value in item[1])]
    sorted_tests = sorted(changed_tests, key=lambda item: [-(value or 0) for value in (item[1][0], item[1][3])])
    for nodeid, values in sorted_tests[:_MAX_ROWS]:
        cells = ["-" if value is None else signed(value) for value in values]
        terminalreporter.write_line("  ".join([*map(str.rjust, cells, widths), nodeid]))
    if len(sorted_tests) > _MAX_ROWS:
        terminalreporter.write_line(
            f"and {many(len(sorted_tests) - _MAX_ROWS, 'more test')} with the same or lower peaks"
        )
    if len(changed_tests) < len(tests):
        terminalreporter.write_line(
            f"not shown: {many(len(tests) - len(changed_tests), 'test')} with 0.0 MiB in all columns"
        )
