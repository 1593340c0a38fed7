"""What a function of a Python file needs of the file. Of a script, its tests, benchmarks and plots are not executed."""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterator
from types import CodeType

SETTINGS = "triton"  # calls of its functions at the top of a file are settings, and stay
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF")


def reached_from(tree: ast.Module, entry: str) -> ast.Module:
    """The statements, in their order and with their lines, that bind a name which `entry` reads, and what they read."""
    codes = [compile(ast.Module([s], []), "", "exec", dont_inherit=True) for s in tree.body]  # annotations are code
    imported = {n for c, s in zip(codes, tree.body, strict=True) if _imports(s) for n in _stored(c)}
    bound = [
        {*_stored(c), *(n for n in _changed(s) if n not in imported)} for c, s in zip(codes, tree.body, strict=True)
    ]
    last = max((i for i, names in enumerate(bound) if entry in names), default=0)
    before = set().union(*bound[: last + 1])  # a script gives these names new values, for its own use
    bound[last + 1 :] = [
        names - before for names in bound[last + 1 :]
    ]  # a script gives names that it has used new values
    kept = {i for i, s in enumerate(tree.body) if _is_setting(s)}
    wanted = {entry}.union(*(_loaded(codes[i]) for i in kept))
    while more := {i for i in range(len(codes)) if i not in kept and bound[i] & wanted}:
        kept |= more
        wanted = wanted.union(*(_loaded(codes[i]) for i in more))
    return ast.Module([tree.body[i] for i in sorted(kept)], [])


def text_of(source: str, chosen: ast.Module) -> str:
    """The text of the chosen statements, at the lines that they have in the file."""
    lines = source.split("\n")
    kept = [""] * len(lines)
    for statement in chosen.body:
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
        kept[first - 1 : statement.end_lineno] = lines[first - 1 : statement.end_lineno]
    return "\n".join(kept)


def _stored(code: CodeType) -> Iterator[str]:
    return (i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_NAME", "STORE_GLOBAL", "IMPORT_NAME"))


def _loaded(code: CodeType) -> set[str]:
    inner = [_loaded(c) for c in code.co_consts if isinstance(c, CodeType)]
    return {i.argval for i in dis.get_instructions(code) if i.opname in _READS}.union(*inner)


def _imports(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _is_setting(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and _root(call.func) == SETTINGS


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Names of things that the statement changes: `kernels[1] = ...`, `configs.append(...)`."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield _root(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield _root(node.value.func) if isinstance(node.value.func, ast.Attribute) else ""


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
