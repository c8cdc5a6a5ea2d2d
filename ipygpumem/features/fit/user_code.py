"""Which classes and modules belong to the user, without calling methods of metaclasses."""

from __future__ import annotations

import sys
import types
from typing import Any

from ipygpumem.core.introspection import is_instance, is_library_file, mro, type_dict

_MODULE = type.__dict__["__module__"].__get__


def is_user_module(module: Any) -> bool:
    """Return whether an object is a module of the user rather than of Python or of an installed package."""
    if not is_instance(module, types.ModuleType):
        return False
    variables = vars(module)
    file = variables.get("__file__") or next(iter(variables.get("__path__", ())), None)
    return type(file) is str and not is_library_file(file) and variables.get("__package__") != "ipygpumem"


def is_user_class(kind: type) -> bool:
    """Return whether a class is defined in the user's code."""
    name = module_name(kind)
    file = getattr(sys.modules.get(name), "__file__", None)
    is_user_file = type(file) is str and not is_library_file(file) and not name.startswith("ipygpumem.")
    return name == "__main__" or is_user_file


def defines(kind: type, name: str) -> bool:
    """Return whether a class has an attribute, without calling methods of its metaclass."""
    return any(name in type_dict(base) for base in mro(kind))


def module_name(kind: type) -> str:
    """Return the name of the module in which a class is defined."""
    return str(_MODULE(kind))
