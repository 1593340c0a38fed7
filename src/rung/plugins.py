"""What other packages add to rung, by entry points: verbs, ladders, families, exports.

Packages of a checkout need not be installed: if their folder `src` is on the path, the pyproject.toml beside it tells.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import tomllib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

COMMANDS, LADDERS, FAMILIES, EXPORTS = (
    "rung.commands",  # verb -> module:function
    "rung.ladders",  # any name -> package whose folder holds folders of rungs
    "rung.families",  # any name -> package whose folder holds families
    "rung.exports",  # format -> module:function from a rung to files by name
)


@cache
def entries(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name; those of a checkout come before installed ones."""
    installed = {entry.name: entry for entry in entry_points(group=group)}
    return dict(sorted((installed | _of_checkouts(group)).items()))


def _of_checkouts(group: str) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for place in sys.path:
        described = Path(place).parent / "pyproject.toml"
        if Path(place).name == "src" and described.is_file():
            declared = tomllib.loads(described.read_text(encoding="utf-8")).get("project", {}).get("entry-points", {})
            found |= {n: EntryPoint(n, value, group) for n, value in declared.get(group, {}).items()}
    return found


@cache
def folders(group: str) -> tuple[Path, ...]:
    """The folders of the packages that a group's entry points name."""
    specs = (importlib.util.find_spec(entry.value) for entry in entries(group).values())
    return tuple(Path(place).resolve() for spec in specs if spec for place in spec.submodule_search_locations or ())


def summary(entry: EntryPoint) -> str:
    """The first line of the docstring of an entry's function, read without importing its module."""
    spec = importlib.util.find_spec(entry.module)
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8")) if spec and spec.origin else ast.Module([], [])
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == entry.attr)
    return next((ast.get_docstring(function) or "" for function in functions), "").partition("\n")[0]
