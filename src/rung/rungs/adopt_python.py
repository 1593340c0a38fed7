"""Proposes what the parameters of a Python file's functions are, where their names leave that open: sizes of a shape,
operands by position. As for CUDA files (adopt.py), each proposal is tried on small cases; the first right one is taken.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuless.base.files import read_text
from gpuless.compile.source import Parameter
from rung.errors import RungError
from rung.operation import Operation
from rung.rungs import adopt, python_module
from rung.rungs.adopt import Proposal
from rung.rungs.python_entry import callables, called, has_kernel, parameters, tensors_of
from rung.rungs.words import SCALARS, SHAPES, names_of

MOST = 12  # proposals that are tried
_WORDS = r"[A-Z]|n|rows|cols|columns|size|dim|d|numel|hidden|features"
_ONE_BLOCK, _SHAPE = re.compile(r"\w\[\(?1,\)?\]\("), re.compile(r"\.(?:shape|size|numel)\b")
_SIZE = re.compile(rf"{_WORDS}|num_\w+|n_\w+|\w+_(?:size|dim|len|rows|cols)")


def adopted(of: Operation, path: Path) -> Proposal | None:
    """How the file's function is called best; None if its names tell it."""
    try:
        python_module.read_facts(path, of)
        return None
    except RungError as told:
        source = read_text(path)
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise told from None
        tables = list(itertools.islice(_proposals(of, tree, source, path), MOST))
        if not tables:
            raise

    def found() -> Proposal:
        right, none, _ = adopt.try_proposals(of, path, tables)
        if right is not None:
            why = adopt.unsure(right, "NEEDS")
            operands = {*of.scalars, *(o.name for o in of.operands)}
            sizes = {*right["table"]["bind"].values()} - operands  # which are told apart at some shapes only
            shapes = right["right"] if sizes or not right["right"] else None
            return Proposal(right["table"], (why, *_lines([right["table"]])) if why else (), shapes)
        return Proposal(tables[0], (none, *_lines(tables[: adopt.CANDIDATES])))

    return adopt.kept_proposal(of, source, found)


def _lines(tables: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(called(t["entry"], t["bind"], t["needs"]) for t in tables))


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
        binds = list(adopt.binds(of, (*taken, *with_results), adopt.Written(name), path, name, body=text))
    except RungError:
        return
    sizes = [p.name for p in taken if not p.pointer and p.ctype == "int"]
    if binds and len(sizes) > len(of.dims):  # of more axes than there are: these are one
        of_axes = itertools.chain((of.dims[0], of.dims[-1]), itertools.repeat("1"))
        binds.insert(0, (binds[0][0] | dict(zip(sizes, of_axes, strict=False)), binds[0][1]))
    for bind, _ in binds:
        shapes = {name: name for name in parameters(function) if name in SHAPES}
        meant = {**{p.name: str(bind[p.name]) for p in taken}, **shapes}
        fixed = adopt.fixed(of, source, meant)
        counted = {} if _ONE_BLOCK.search(text) else meant  # which is for one row
        if not counted or not _SHAPE.search(text):  # what neither a size nor a shape counts is there once
            alone = adopt.alone(of, counted)
            fixed = [*([*needs, *alone] for needs in fixed if alone), *fixed]
        yield from ({"entry": name, "bind": meant, "needs": needs} for needs in fixed)


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
