"""The difference between a rung's code and its parent's, with the ladder's own headers inlined."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from gpuless.base.files import read_text
from rung.rungs import header
from rung.rungs.base import Rung, without_prose
from rung.rungs.cuda import CudaRung

_HEADER = re.compile(r"\A\s*/\*---.*?---\*/", re.DOTALL)
_INCLUDE = re.compile(r'^#include "([^"/]+\.cuh)"[^\n]*$', re.MULTILINE)


def code(rung: Rung, without: Iterable[str] = ()) -> str:
    """A rung's text without its descriptive keys; headers beside it are inlined, except those named in `without`."""
    if not isinstance(rung, CudaRung):
        return _without_docstring(without_prose(rung.source))
    assert rung.path is not None
    keys = {name: value for name, value in rung.table.items() if name not in (*header.DESCRIPTIVE, "formats")}
    body = _HEADER.sub("", rung.source)
    return header.written(keys) + _with_neighbours(body, rung.path.parent, set(without))


def lines(parent: Rung, rung: Rung) -> list[str]:
    """The difference as a patch, without file names."""
    names = (parent.full_name, rung.full_name)
    return list(difflib.unified_diff(code(parent).splitlines(), code(rung).splitlines(), *names, lineterm="", n=3))


def _with_neighbours(text: str, folder: Path, seen: set[str]) -> str:
    def expand(found: re.Match[str]) -> str:
        path = folder / found[1]
        if not path.is_file():
            return found[0]  # a header that all ladders share
        if found[1] in seen:
            return ""
        seen.add(found[1])
        inner = read_text(path).replace("#pragma once\n", "")
        return f"// ---- {found[1]}\n" + _with_neighbours(inner, folder, seen)

    return _INCLUDE.sub(expand, text)


def _without_docstring(text: str) -> str:
    try:
        first = ast.parse(text).body[0]
    except (SyntaxError, IndexError):
        return text
    if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        return text
    return "\n".join(text.splitlines()[first.end_lineno :]).lstrip("\n")
