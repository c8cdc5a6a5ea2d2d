"""Pytest plugin that checks memory limits of tests, and prints a table of the memory usage of all tests.

::

    @pytest.mark.gpumem_limit("2 GiB")                      # highest peak on any GPU
    @pytest.mark.gpumem_limit("2 GiB", held=0, outside="50 MiB", host="1 GiB")
    def test_training_step(): ...

    pytest --gpumem                                         # memory usage of each test, largest first

Marks of modules, classes, tests and parameter sets (``pytest.param(..., marks=...)``) are combined. For each limit, the
most specific mark takes precedence. Without a GPU, limits on GPU memory pass with a warning.

Like notebook cells, tests are measured as changes relative to their start. Fixtures are excluded. The kernel's record
of peak resident memory is reset for each measured test. If neither the marker nor the option is used, the plugin does
not import PyTorch or other modules of this package.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipygpumem.core.report import Report
    from ipygpumem.measure_block import measure

_MARK = "gpumem_limit"
_MAX_ROWS = 30
_PROPERTIES = ("gpumem_peak", "gpumem_held", "gpumem_outside", "gpumem_host_peak")
"""User properties of a test, in bytes; pytest-xdist and JUnit reports include them."""
_HEADER = ("GPU peak", "GPU held", "outside PyTorch", "host peak")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--gpumem``."""
    group = parser.getgroup("ipygpumem", "GPU memory")
    group.addoption("--gpumem", action="store_true", help="report the GPU and host memory usage of every test")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARK}(peak=None, *, held=None, outside=None, host=None): fail the test if its peak on any GPU, the GPU "
        "memory that it leaves allocated, its memory outside PyTorch or its peak of host memory exceeds a size "
        "('2 GiB' or a number of bytes)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check all marks before any test runs; raise `pytest.UsageError` for a test whose mark is invalid."""
    for item in items:
        try:
            _limits(item)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{item.nodeid}: invalid mark: {error}") from error


def _limits(item: pytest.Item) -> dict[str, Any]:
    """Return the limits of a test as arguments for `ipygpumem.measure`; an empty dict without a mark."""
    limits: dict[str, Any] = {}
    # pytest lists the marks of a parameter set after those of the function, although they are more specific
    parameter_marks = [mark for mark in getattr(getattr(item, "callspec", None), "marks", ()) if mark.name == _MARK]
    for mark in (*parameter_marks, *item.iter_markers(_MARK)):
        limits = {**gpumem_limit(*mark.args, **mark.kwargs), **limits}
    return limits


def gpumem_limit(peak: Any = None, *, held: Any = None, outside: Any = None, host: Any = None) -> dict[str, Any]:
    """Return the limits of a mark as arguments for `ipygpumem.measure`; raise `ValueError` for invalid limits."""
    from ipygpumem.features.limits.model import Limits

    sizes = (peak, held, outside, host)
    if not Limits.parse(*sizes):
        raise ValueError("no limit is set: add one, as in gpumem_limit('2 GiB')")
    names = ("limit", "limit_held", "limit_outside", "limit_host")
    return {name: size for name, size in zip(names, sizes, strict=True) if size is not None}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure the test if it has a limit or ``--gpumem`` is set."""
    limits = _limits(item)
    if not limits and not item.config.getoption("gpumem"):
        yield
        return
    block = _start_measurement(limits)
    outcome: Any = yield
    error = _end_measurement(block, outcome)
    report: Report | None = getattr(block, "report", None)
    if report is not None:
        item.user_properties.extend(_user_properties(report))
        error = error or _warn_unchecked(item, report)
    if error is not None and outcome.excinfo is None:
        outcome.force_exception(pytest.fail.Exception(f"{type(error).__name__}: {error}", pytrace=False))


def _start_measurement(limits: dict[str, Any]) -> measure:
    import ipygpumem
    from ipygpumem.measurement.runtime import current

    if current().baseline is None and "torch" in sys.modules:
        ipygpumem.preload_pytorch()  # otherwise the report of the first test would include the CUDA context
    return ipygpumem.measure(host_peak="reset", **limits).__enter__()


def _end_measurement(block: measure, outcome: Any) -> Exception | None:
    """End a measurement and return the error if a limit is exceeded."""
    from ipygpumem import GPUMemLimitExceeded

    try:
        block.__exit__(*(outcome.excinfo or (None, None, None)))
    except GPUMemLimitExceeded as error:
        return error
    return None


def _warn_unchecked(item: pytest.Item, report: Report) -> Warning | None:
    """Warn about limits that were not checked; return the warning if warnings are errors."""
    try:
        for note in report.notes:
            if "not checked" in note:
                item.warn(pytest.PytestWarning(f"{_MARK}: {note}"))
    except Warning as error:
        return error
    return None


def _user_properties(report: Report) -> list[tuple[str, object]]:
    """Return the largest value over all devices for each property, in bytes. Unknown values are omitted."""
    devices = report.devices.values()
    peaks = [device.peak for device in devices if device.high is None or device.high.exact]
    outside = [device.outside for device in devices if device.process_wide]
    metrics = (
        *(_largest(values) for values in (peaks, [device.held for device in devices], outside)),
        report.host.peak if report.host.exact else None,
    )
    return [(name, value) for name, value in zip(_PROPERTIES, metrics, strict=True) if value is not None]


def _largest(values: list[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table requested with ``--gpumem``."""
    if not config.getoption("gpumem"):
        return
    from ipygpumem.core.units import VISIBLE, signed

    tests = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = dict(getattr(report, "user_properties", ()))
            if getattr(report, "when", "") == "call" and any(name in properties for name in _PROPERTIES):
                tests[report.nodeid] = [properties.get(name) for name in _PROPERTIES]
    terminalreporter.section("memory of the tests (ipygpumem)")
    if not tests:
        terminalreporter.write_line("no test was measured")
        return
    widths = [max(len(name), 10) for name in _HEADER]
    terminalreporter.write_line("  ".join([*map(str.rjust, _HEADER, widths), "test"]))
    changed = [item for item in tests.items() if any(abs(value or 0) >= VISIBLE for value in item[1])]
    ordered = sorted(changed, key=lambda item: [-(value or 0) for value in (item[1][0], item[1][3])])
    for nodeid, values in ordered[:_MAX_ROWS]:
        cells = ["-" if value is None else signed(value) for value in values]
        terminalreporter.write_line("  ".join([*map(str.rjust, cells, widths), nodeid]))
    if len(ordered) > _MAX_ROWS:
        terminalreporter.write_line(f"and {len(ordered) - _MAX_ROWS} more tests with lower peaks")
    if len(changed) < len(tests):
        terminalreporter.write_line(f"{len(tests) - len(changed)} without a visible change not shown")
