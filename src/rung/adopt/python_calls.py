"""Proposes what the parameters of a Python file's functions are, where their names leave that open: sizes of a shape,
operands by position. As for CUDA files (launches.py), each proposal is tried on small cases."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuless.compile.source import Parameter
from rung.adopt.host_launches import Written
from rung.adopt.operands import alone, binds, fixed
from rung.errors import RungError
from rung.operation import Operation
from rung.rungs.python_entry import callables, has_kernel, parameters, tensors_of
from rung.rungs.words import SCALARS, SHAPES, names_of

MOST = 12  # proposals that are tried
_WORDS = r"[A-Z]|n|rows|cols|columns|size|dim|d|numel|hidden|features"
_ONE_BLOCK, _SHAPE = re.compile(r"\w\[\(?1,\)?\]\("), re.compile(r"\.(?:shape|size|numel)\b")
_SIZE = re.compile(rf"{_WORDS}|num_\w+|n_\w+|\w+_(?:size|dim|len|rows|cols)")


def propose(of: Operation, source: str, path: Path) -> list[dict[str, Any]]:
    """Calls of the file's functions that launch kernels, the likeliest first; none if it is not Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return list(itertools.islice(_proposals(of, tree, source, path), MOST))


def _proposals(of: Operation, tree: ast.Module, source: str, path: Path) -> Iterator[dict[str, Any]]:
    every = [_of_function(of, f, name, source, path) for name, f, _ in callables(tree) if has_kernel(tree, name)]
    for row in itertools.zip_longest(*every):  # in turn, so that each function has its best proposal tried early
        yield from filter(None, row)


def _of_function(
    of: Operation, function: ast.FunctionDef, name: str, source: str, path: Path
) -> Iterator[dict[str, Any]]:
    taken = _parameters(of, function)
    results = [o for o in of.operands if o.role == "out" and not o.optional and o.view_of is o.copy_of is None]
    returns = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function))
    made = [Parameter("float", f"{o.name} result", True, False) for o in results] if returns else []
    with_results = [p for p in made if not _takes(of, taken, p)]
    text = ast.unparse(function)
    try:
        ways = list(binds(of, (*taken, *with_results), Written(name), path, name, body=text))
    except RungError:
        return
    sizes = [p.name for p in taken if not p.pointer and p.ctype == "int"]
    if ways and len(sizes) > len(of.dims):  # of more axes than there are: these are one
        of_axes = itertools.chain((of.dims[0], of.dims[-1]), itertools.repeat("1"))
        ways.insert(0, (ways[0][0] | dict(zip(sizes, of_axes, strict=False)), ways[0][1]))
    for bind, _ in ways:
        shapes = {name: name for name in parameters(function) if name in SHAPES}
        meant = {**{p.name: str(bind[p.name]) for p in taken}, **shapes}
        rules = fixed(of, source, meant)
        counted = {} if _ONE_BLOCK.search(text) else meant  # which is for one row
        if not counted or not _SHAPE.search(text):  # what neither a size nor a shape counts is there once
            rows = alone(of, counted)
            rules = [*([*needs, *rows] for needs in rules if rows), *rules]
        yield from ({"entry": name, "bind": meant, "needs": needs} for needs in rules)


def _takes(of: Operation, taken: tuple[Parameter, ...], result: Parameter) -> bool:
    """Whether a function that returns something is given the memory for the result as well."""
    operand = of.operand(result.name.removesuffix(" result"))
    named = {operand.name, "out", "output", "dst", "result"}
    return any(p.pointer and re.sub(r"_ptr$", "", p.name.lower()) in named for p in taken)


def _parameters(of: Operation, function: ast.FunctionDef) -> tuple[Parameter, ...]:
    """A function's parameters as those of a kernel: tensors are pointers."""
    tensors = tensors_of(function)
    words = {word: o for o in of.operands for word in (*names_of(o), o.name)}
    scalars = {word for name in of.scalars for word in (name, *SCALARS.get(name, ()))}
    given = function.args
    arguments = {a.arg: a.annotation for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    found = []
    for name, required in parameters(function).items():
        told = ast.unparse(annotation) if (annotation := arguments[name]) else ""
        tensor = name in tensors or name.endswith("_ptr")  # an address, annotated as int or not
        known = name.lower() in words or name.lower() in scalars or (name in of.dims and not tensor)
        if name in SHAPES or (not required and not known):
            continue
        kind = "float" if "float" in told or (not told and name.lower() in scalars) else "int"
        if tensor or (not told and kind == "int" and not _SIZE.fullmatch(name)):
            whole = name.lower() in words and words[name.lower()].dtype in ("i32", "i64")
            found.append(Parameter("int" if whole else "float", name, True, False))
        else:
            found.append(Parameter(kind, name, False, False))
    return tuple(found)
