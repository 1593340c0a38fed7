"""Finds operations: folders with an operation.py."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path

from rung.errors import RungError
from rung.operation import Operation, folders
from rung.rungs import python_module


@cache
def operations() -> dict[str, Operation]:
    """Every operation that has a ladder."""
    return {name: _operation_at(folder / "operation.py") for name, folder in folders().items()}


def operation(name: str) -> Operation:
    """The operation called `name`."""
    found = folders()
    if name not in found:
        raise RungError(f"there is no operation {name!r}{nearest(name, list(found))}; there are {', '.join(found)}.")
    return _operation_at(found[name] / "operation.py")


@cache
def _operation_at(path: Path) -> Operation:
    found = getattr(python_module.load(path), "OPERATION", None)
    if not isinstance(found, Operation) or found.name != path.parent.name:
        raise RungError(f"{path} defines no OPERATION named {path.parent.name!r}.")
    return found


def nearest(word: str, names: list[str]) -> str:
    close = difflib.get_close_matches(word, names, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
