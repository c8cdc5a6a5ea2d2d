"""Source regions of functions, cells and with statements; no code of user objects runs."""

from __future__ import annotations

import functools

import pytest
from torch import nn

from ipygpumem.core.errors import OptionError
from ipygpumem.features.lines.source_code import (
    SourceCode,
    SourceRegion,
    code_object,
    enclosing_functions,
    function_region,
    resolve_name,
    with_statement_region,
)

CELL = """\
%matplotlib inline
@decorator
def first(x):
    def inner():
        return (
            x
        )
    return inner

class Net:
    async def forward(self): pass
    @property
    def size(self):
        return 1
!ls
y = lambda: 3
"""
TEXTS = SourceCode({"cell": CELL})


def multiline_function():
    """Return a number from several lines."""
    return (
        1
    )  # fmt: skip


def decorate(function):
    @functools.wraps(function)
    def wrapper():
        return function()

    return wrapper


class Model(nn.Module):
    def forward(self, x):
        return x

    @staticmethod
    def static():
        return 1

    @classmethod
    def of_class(cls):
        return 2


class Hostile:
    __class__ = property(lambda self: 1 / 0)

    def __getattr__(self, name):
        raise SystemExit(name)


class Wrapped:
    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __call__(self):
        return self.__wrapped__()


class Lazy:
    @functools.cached_property
    def size(self):
        return 1

    @functools.singledispatchmethod
    def of(self, value):
        return value

    part = functools.partialmethod(of, 1)


@pytest.mark.parametrize(
    "wrap",
    [
        functools.lru_cache,
        functools.cache,
        functools.singledispatch,
        Wrapped,
        lambda function: decorate(functools.lru_cache(function)),
        lambda function: functools.lru_cache(decorate(function)),
        lambda function: Wrapped(functools.partial(decorate(functools.cache(function)))),
    ],
)
def test_code_inside_caches_and_wrappers(wrap):
    assert code_object(wrap(multiline_function)) is multiline_function.__code__


def test_code_inside_descriptors_of_functools():
    names = [code_object(vars(Lazy)[name]).co_name for name in ("size", "of", "part")]
    assert names == ["size", "of", "of"]


def test_code_of_named_objects():
    model = Model()
    assert code_object(multiline_function) is multiline_function.__code__
    assert code_object(decorate(decorate(multiline_function))) is multiline_function.__code__
    assert code_object(functools.partial(multiline_function)) is multiline_function.__code__
    assert code_object(Model.forward) is code_object(model.forward) is code_object(model) is Model.forward.__code__
    assert code_object(vars(Model)["static"]) is Model.static.__code__
    assert code_object(vars(Model)["of_class"]).co_name == "of_class"
    for value in (len, 3, Model, "plain", None, Hostile(), [multiline_function].append):
        assert code_object(value) is None


def test_self_wrapping_function_has_no_code():
    def wrapper():
        return 1

    wrapper.__wrapped__ = wrapper
    assert code_object(wrapper) is None


def test_regions():
    first = multiline_function.__code__.co_firstlineno
    region = function_region(multiline_function.__code__, SourceCode({}))
    assert (region.file, region.first, region.last) == (__file__, first, first + 4), (
        "the region ends at the closing bracket"
    )
    code = compile("\n\ndef f():\n    return [\n    ]\n", "nowhere", "exec").co_consts[0]
    with pytest.raises(OptionError, match="the source code of f is not available: the file nowhere cannot be read"):
        function_region(code, SourceCode({}))


def test_functions_around_lines():
    def names(*lines):
        return [(region.name, region.first, region.last) for region in enclosing_functions("cell", lines, TEXTS)]

    assert names(5) == [("first", 2, 8)], "the region includes the decorator"
    assert names(11, 14) == [("Net.forward", 11, 11), ("Net.size", 12, 14)]
    assert names(16, 1, 99) == []
    assert enclosing_functions("cell", [1], SourceCode({"cell": "def ("})) == [], (
        "files with invalid syntax contain no functions"
    )


def test_with_statement():
    text = "with a:\n    with (\n        b\n    ):\n        c\n    d\n"
    texts = SourceCode({"f": text})
    assert with_statement_region("f", 1, texts, "x") == SourceRegion("f", 1, 6, "x")
    assert with_statement_region("f", 3, texts, "x") == SourceRegion("f", 2, 5, "x")
    assert with_statement_region("f", 6, texts, "x") == SourceRegion("f", 6, 6, "x")


def test_names():
    space = {"model": nn.Sequential(nn.Sequential(Model())), "Model": Model, "trap": Hostile()}
    assert resolve_name("model.0.0", space.__getitem__) is space["model"][0][0]
    assert resolve_name("Model.forward", space.__getitem__) is Model.forward
    assert resolve_name("model[0][0]", space.__getitem__) is space["model"][0][0]
    assert resolve_name("model[-1]", space.__getitem__) is space["model"][0]
    space["parts"] = {"a": [space["model"]], "b": nn.ModuleDict({"x": space["model"]})}
    for name in ("parts['a'][0]", 'parts["b"]["x"]', "parts['b'].x"):
        assert resolve_name(name, space.__getitem__) is space["model"]
    invalid = (
        "model[7]",
        "model[0",
        "model[Model]",
        "model[0]x",
        "trap[0]",
        "parts['a']['b']",
        "[0]",
        "model.",
        "model[]",
    )
    for name in ("nothing", "model.7", "trap.anything", "Model.none", "", *invalid):
        with pytest.raises(OptionError, match="is not defined"):
            resolve_name(name, space.__getitem__)
