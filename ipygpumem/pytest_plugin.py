"""A pytest plugin: limits on the memory of a test, and a report of every test's memory.

::

    @pytest.mark.gpumem_limit("2 GiB")                      # the highest peak on any GPU
    @pytest.mark.gpumem_limit("2 GiB", held=0, outside="50 MiB", host="1 GiB")
    def test_training_step(): ...

    pytest --gpumem                                         # what each test took, the largest first

Marks of a module, a class, a test and a case of it (``pytest.param(..., marks=...)``) add up, limit by limit: the
nearer one counts. Where there is no GPU, limits on
one pass with a warning.

What is measured is the test itself, without its fixtures: changes against the moment before it, as in the report of a
cell. The kernel's high-water mark of the host's memory is reset for each test that is measured. Unused it does nothing:
it imports neither PyTorch nor anything of this package but this file.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipygpumem.core.report import Report
    from ipygpumem.measure_block import measure

__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_runtest_call",
    "pytest_terminal_summary",
]

_MARK = "gpumem_limit"
_SHOWN = 30
_LIMITS = {"peak": "limit", "held": "limit_held", "outside": "limit_outside", "host": "limit_host"}
"""A mark's arguments, and the options of `ipygpumem.measure` that they are."""
_PROPERTIES = ("gpumem_peak", "gpumem_held", "gpumem_outside", "gpumem_host_peak")
"""Bytes, among a test's user properties: pytest-xdist and JUnit reports carry them."""

_prepared = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--gpumem``."""
    group = parser.getgroup("ipygpumem", "GPU memory")
    group.addoption("--gpumem", action="store_true", help="report the GPU and host memory of every test")


def pytest_configure(config: pytest.Config) -> None:
    """The marker, for ``--markers`` and ``--strict-markers``."""
    config.addinivalue_line(
        "markers",
        f"{_MARK}(peak=None, *, held=None, outside=None, host=None): fail the test if its peak on any GPU, what it "
        "still holds, memory outside PyTorch or the host's peak exceeds a size ('2 GiB', bytes)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse marks that mean nothing before any test runs.

    Raises:
        pytest.UsageError: Such a mark; the message names its test.
    """
    for item in items:
        try:
            _limits(item)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{item.nodeid}: {_MARK}: {error}") from error


def _limits(item: pytest.Item) -> dict[str, Any]:
    """A test's marks as options of `ipygpumem.measure`, the nearest mark's limit of each kind; none without a mark.

    Nearest of all are a case's own, of ``pytest.param(..., marks=...)``: pytest lists them after the function's.

    Raises:
        TypeError: Arguments that the mark does not have.
        ValueError: One that is no size.
    """
    found: dict[str, Any] = {}
    case = [mark for mark in getattr(getattr(item, "callspec", None), "marks", ()) if mark.name == _MARK]
    for mark in (*case, *item.iter_markers(_MARK)):
        for name, value in _options(mark).items():
            found.setdefault(name, value)
    return found


def _options(mark: pytest.Mark) -> dict[str, Any]:
    """One mark, the limits that it sets."""
    from ipygpumem.features.limits.model import Limits

    if len(mark.args) > 1:
        raise TypeError(f"it takes one size, the peak, without a name: not {len(mark.args)}")
    if mark.args and "peak" in mark.kwargs:
        raise TypeError("it sets the peak twice")
    given = {**dict(zip(_LIMITS, mark.args, strict=False)), **mark.kwargs}
    unknown = [name for name in given if name not in _LIMITS]
    if unknown:
        raise TypeError(f"there is no limit {unknown[0]!r}: there are {', '.join(_LIMITS)}")
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        raise ValueError("it sets no limit: write one, as in gpumem_limit('2 GiB')")
    Limits.read(**given)
    return {_LIMITS[name]: value for name, value in given.items()}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure the test where that was asked for."""
    limits = _limits(item)
    if not limits and not item.config.getoption("gpumem"):
        yield
        return
    block = _measured(limits)
    outcome: Any = yield
    error = _close(block, outcome)
    report: Report | None = getattr(block, "report", None)
    if report is not None:
        item.user_properties.extend(_properties(report))
        error = error or _doubts(item, report)
    if error is not None and outcome.excinfo is None:
        outcome.force_exception(pytest.fail.Exception(f"{type(error).__name__}: {error}", pytrace=False))


def _doubts(item: pytest.Item, report: Report) -> Warning | None:
    """Warn of limits that could not be checked; where warnings are errors, the error."""
    try:
        for note in report.notes:
            if "was not checked" in note:
                item.warn(pytest.PytestWarning(f"{_MARK}: {note}"))
    except Warning as error:
        return error
    return None


def _measured(limits: dict[str, Any]) -> measure:
    """An open measurement, after what every program needs once was brought in: no test is blamed for it."""
    import ipygpumem

    global _prepared  # noqa: PLW0603 (once in a process, however many sessions pytest has in it)
    if not _prepared and "torch" in sys.modules:
        _prepared = True
        ipygpumem.preload_pytorch()
    return ipygpumem.measure(host_peak="reset", **limits).__enter__()


def _close(block: measure, outcome: Any) -> Exception | None:
    """End a measurement; a broken limit is returned."""
    from ipygpumem import GPUMemLimitExceeded

    failure = outcome.excinfo or (None, None, None)
    try:
        block.__exit__(*failure)
    except GPUMemLimitExceeded as error:
        return error
    return None


def _properties(report: Report) -> list[tuple[str, object]]:
    """The largest figure of all devices, in bytes; what is not known is left out."""
    devices = report.devices.values()
    exact = [device for device in devices if device.high is None or device.high.exact]
    found = (
        max((device.peak for device in exact if device.peak is not None), default=None),
        max((device.held for device in devices if device.held is not None), default=None),
        max((device.outside for device in devices if device.process_wide and device.outside is not None), default=None),
        report.host.peak if report.host.exact else None,
    )
    return [(name, value) for name, value in zip(_PROPERTIES, found, strict=True) if value is not None]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table of ``--gpumem``."""
    if not config.getoption("gpumem"):
        return
    tests = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            facts = dict(getattr(report, "user_properties", ()))
            if getattr(report, "when", "") == "call" and any(name in facts for name in _PROPERTIES):
                tests[report.nodeid] = [facts.get(name) for name in _PROPERTIES]
    from ipygpumem.core.units import signed

    ordered = sorted(tests.items(), key=lambda item: [-(value or 0) for value in (item[1][0], item[1][3])])
    terminalreporter.section("memory of the tests (ipygpumem)")
    if not ordered:
        terminalreporter.write_line("no test was measured")
        return
    names = ("GPU peak", "GPU held", "outside PyTorch", "host peak")
    terminalreporter.write_line("  ".join([*(name.rjust(max(len(name), 10)) for name in names), "test"]))
    for nodeid, values in ordered[:_SHOWN]:
        cells = ("-" if value is None else signed(value) for value in values)
        columns = [cell.rjust(max(len(name), 10)) for cell, name in zip(cells, names, strict=True)]
        terminalreporter.write_line("  ".join([*columns, nodeid]))
    if len(ordered) > _SHOWN:
        terminalreporter.write_line(f"and {len(ordered) - _SHOWN} more tests with lower peaks")
