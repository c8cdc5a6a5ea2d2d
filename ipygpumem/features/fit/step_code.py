"""The code of a step, given as a statement or as a function, and the sizes at which it can run."""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.redaction import redact_code
from ipygpumem.features.fit.axes import Size, SizeAxis, check_axes, checked_axis


@dataclass(frozen=True, slots=True)
class StepCode:
    """The code of a step of the user's program.

    Attributes:
        text: The statement, with possible secrets replaced by ``***``, or the name of the function.
        axes: Variables that determine the size of the step.
        run: Function that runs the step at a size.
        roots: Function that returns the objects, by name, at which the search for the state of the step starts.
        namespaces: Dicts of global variables, each with the names of the variables that the statement may set.
        sources: Source code of notebook cells by file name.
        numbers: Execution counts of notebook cells by file name.
    """

    text: str
    axes: tuple[SizeAxis, ...]
    run: Callable[[Size], Any]
    roots: Callable[[], Mapping[str, Any]]
    namespaces: tuple[tuple[dict[str, Any], frozenset[str]], ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)


def function_step(step: Any, sizes: Any) -> StepCode:
    """Return the `StepCode` of a function that runs one step.

    If ``step`` is a bound method, its object is referenced weakly.

    Raises:
        OptionError: ``step`` is not a function that runs one step when it is called with these sizes, or the sizes are
            invalid.
    """
    if inspect.isgenerator(step) or not callable(step):
        kind = type(step).__name__
        raise OptionError(
            f"step must be a function that runs one step at a given size, but got an object of type {kind}"
        )
    name = getattr(step, "__name__", type(step).__name__)
    _check_function(name, step)
    reference: Any = weakref.WeakMethod(step) if inspect.ismethod(step) else lambda function=step: function

    def roots() -> dict[str, Any]:
        if reference() is None:
            raise OptionError(f"the object of the method {name} no longer exists: keep a reference to it")
        return {name: reference()}

    if isinstance(sizes, Mapping):
        axes = check_axes([checked_axis(key, values) for key, values in sizes.items()])
        if not axes:
            raise OptionError("sizes is empty: expected a range, or a dict that maps names to ranges")
        names = [axis.name for axis in axes]
        _check_parameters(name, step, **dict.fromkeys(names, ""))
        return StepCode(name, axes, lambda size: reference()(**dict(zip(names, size, strict=True))), roots)
    try:
        parameter = next(iter(inspect.signature(step).parameters), "size")
    except (TypeError, ValueError):  # a built-in function
        parameter = "size"
    _check_parameters(name, step, parameter)
    return StepCode(name, (checked_axis(parameter, sizes),), lambda size: reference()(*size), roots)


def _check_function(name: str, function: Any) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise OptionError(f"{name} is a generator function: pass a function that runs one step when it is called")
    if inspect.iscoroutinefunction(function):
        raise OptionError(f"{name} is a coroutine function: pass a function that runs one step when it is called")


def _check_parameters(name: str, function: Any, *names: str, **keywords: str) -> None:
    """Raise `OptionError` if a function cannot be called with these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a built-in function
        return
    try:
        signature.bind(*names, **keywords)
    except TypeError as error:
        arguments = f"the arguments {', '.join(keywords)}" if keywords else "one size"
        example = "{'batch': range(1, 65), 'length': range(1, 65)}"
        hint = "" if keywords else f": for two sizes, pass a dict, such as {example}"
        raise OptionError(f"{name} cannot be called with {arguments} ({error}){hint}") from None


def check_result(text: str, result: Any) -> None:
    """Raise `OptionError` if the result of a step is a generator or coroutine, whose code has not run."""
    if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
        kind = "coroutine" if inspect.iscoroutine(result) else "generator"
        raise OptionError(f"{text} returns a {kind}, whose code has not run: use a function that runs one step")


def statement_step(
    text: str,
    axes: tuple[SizeAxis, ...],
    codes: Sequence[types.CodeType],
    variables: dict[str, Any],
    run: Callable[[], Any],
) -> StepCode:
    """Return the `StepCode` of a statement that runs one step.

    Args:
        text: The statement.
        axes: Variables that determine the size of the step.
        codes: Code objects of the compiled statement.
        variables: Dict of global variables, in which the size is stored before each run.
        run: Function that runs the statement.

    Raises:
        OptionError: A variable in ``axes`` does not occur in the statement.
    """
    names = {name for code in codes for name in _names(code)}
    for axis in axes:
        if axis.name not in names:
            raise OptionError(f"the statement {text!r} does not use the variable {axis.name}")

    def at(size: Size) -> Any:
        __tracebackhide__ = True
        variables.update({axis.name: value for axis, value in zip(axes, size, strict=True)})
        return run()

    def roots() -> dict[str, Any]:
        return {name: variables[name] for name in names & variables.keys()}

    return StepCode(redact_code(text), axes, at, roots, ((variables, frozenset(names)),))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
