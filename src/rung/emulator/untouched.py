"""What Python, numpy, torch, Triton and rung were before a rung's file was loaded, by identity: a file that replaces a
function or gives a class another method computes with that, and names and paths can be imitated.
"""

from __future__ import annotations

import builtins
import sys
from types import FunctionType, ModuleType
from typing import Any

_MISSING = object()
_PACKAGES = ("builtins", "numpy", "triton", "rung", "linecache", "inspect", "ast")
_TORCH = ("torch._ops", "torch.utils._python_dispatch")  # the functions of others end in operators, which are seen
_UNUSED = ("numpy.testing", "numpy.ma", "numpy.f2py", "triton.compiler", "triton.backends", "rung.ladders")

_owners: dict[int, tuple[Any, str, dict[str, Any], int]] = {}  # by id: module or class, name, callables, attributes
_tritons: dict[int, Any] = {}  # functions and classes of Triton's


def take() -> None:
    """Note the modules that are imported by now; those that were noted before stay as they were."""
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        if not isinstance(module, ModuleType) or id(module) in _owners:
            continue
        if (name in _TORCH or package in _PACKAGES) and not name.startswith(_UNUSED):
            _note(module, name)
            for owner in list(vars(module).values()) if package in ("triton", "torch", "rung") else ():
                if isinstance(owner, type) and owner.__module__ == name and id(owner) not in _owners:
                    _note(owner, f"{name}.{owner.__qualname__}")
        if package == "triton":
            for value in vars(module).values():
                note_tritons(value)


def _note(owner: Any, name: str) -> None:
    count = len(vars(owner)) if isinstance(owner, type) and name.startswith("triton") else -1
    _owners[id(owner)] = (owner, name, {n: v for n, v in vars(owner).items() if _code(v)}, count)


def _code(value: Any) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def note_tritons(value: Any) -> None:
    """A function or class of Triton's own, or a kernel in its library."""
    one = getattr(value, "fn", value)
    if isinstance(one, FunctionType | type):
        _tritons[id(one)] = one


def is_tritons(value: Any) -> bool:
    """Whether this function or class is one of Triton's."""
    return _tritons.get(id(value), _MISSING) is value


def changed() -> str:
    """The first function or class that is not what it was; empty if there is none."""
    for owner, name, before, count in _owners.values():
        now = vars(owner)
        if count >= 0 and len(now) != count:
            return f"another attribute of {name}"
        for attribute, value in before.items():
            if now.get(attribute, _MISSING) is not value:
                return f"another {name}.{attribute}"
    return ""


def usual_builtins(function: FunctionType) -> bool:
    """Whether the names of Python's that a function uses are Python's own."""
    given = function.__globals__.get("__builtins__", builtins)
    return given is builtins or given is vars(builtins)
