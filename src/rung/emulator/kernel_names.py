"""Names in a Triton kernel's text that do not belong to Triton's language: the interpreter would call any Python
function, numpy included, where a GPU's compiler refuses it.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

KNOWN = {"len", "list", "range", "float", "int", "bool", "tuple", "str", "isinstance", "hasattr", "print", "min", "max"}
KNOWN |= {"abs", "zip", "enumerate", "slice", "AssertionError", "ValueError"}
_REFUSED = (
    *(ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.Lambda, ast.ClassDef, ast.Try, ast.With, ast.Await),
    *(ast.Yield, ast.YieldFrom, ast.AsyncWith, ast.AsyncFor, ast.Delete, ast.FunctionDef, ast.AsyncFunctionDef),
)
_PLAIN = (int, float, bool, str, type(None))


def foreign(kernel: Any) -> str:
    """The first name in a kernel, or in a function that it calls, that a GPU's compiler would refuse; None if there is
    none."""
    todo, done = [kernel], set()
    while todo:
        one = todo.pop()
        if id(one.fn) in done:
            continue
        done.add(id(one.fn))
        if not isinstance(one.fn, FunctionType):
            return "an object in place of a function"
        if _of_triton(one.fn):
            continue
        found, called = _names(one.fn)
        if found:
            return found
        todo += called
        # This text is executed, whatever the interpreter was made to cache of it.
        type(one).rewritten_fn[one.fn] = _rewritten(one.fn)
    return ""


@cache
def _rewritten(function: FunctionType) -> Any:
    from triton.runtime.interpreter import FunctionRewriter

    return FunctionRewriter(function).rewrite_ast()


def _names(function: FunctionType) -> tuple[str, list[Any]]:
    """Foreign names in one function's text, and the kernels that it calls."""
    parsed = _parsed(function)
    if parsed is None:
        return f"{function.__name__}, which has no text", []
    nodes, local = parsed
    called: list[Any] = []
    given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for value in given:
        if not plain(value, called):
            return f"{type(value).__name__}, as a default of {function.__name__}", []
    inner: set[int] = set()  # parts of a dotted name that is checked as a whole
    for node in nodes:
        if isinstance(node, _REFUSED):
            return type(node).__name__.lower(), []
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            chain, root = [node.attr], node.value
            while isinstance(root, ast.Attribute):
                inner.add(id(root))
                chain.append(root.attr)
                root = root.value
            chain.reverse()
            if isinstance(root, ast.Name) and root.id not in local:
                inner.add(id(root))
                if not _reached(function, root.id, chain, called):
                    return ".".join([root.id, *chain]), []
            elif bad := [part for part in chain if part not in _of_values()]:
                return f"the attribute {bad[0]} of a value", []
        free = node.id if isinstance(node, ast.Name) and id(node) not in inner else ""
        if free and free not in local and not _reached(function, free, [], called):
            return free, []
    return "", called


@cache
def _parsed(function: FunctionType) -> tuple[list[ast.AST], set[str]] | None:
    """The nodes of a function's body, and its own names."""
    try:
        outer = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        return None
    if not isinstance(outer, ast.FunctionDef):
        return None
    nodes = list(ast.walk(ast.Module([*outer.body], [])))
    local = {a.arg for a in ast.walk(outer.args) if isinstance(a, ast.arg)}
    return nodes, local | {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _reached(function: FunctionType, name: str, chain: list[str], called: list[Any]) -> bool:
    """Whether Triton's compiler accepts the object of this dotted name."""
    closure = inspect.getclosurevars(function).nonlocals
    if name in closure:
        value = closure[name]
    elif name in function.__globals__:
        value = function.__globals__[name]
    else:
        return name in KNOWN and hasattr(builtins, name) and not chain
    for index, part in enumerate(chain):
        if not isinstance(value, ModuleType):
            return plain(value, called) and all(one in _of_values() for one in chain[index:])
        if not _language(value.__name__) or part not in vars(value):
            return False
        value = vars(value)[part]
    if isinstance(value, ModuleType):
        return _language(value.__name__)
    if isinstance(value, type):
        return _language(value.__module__) or value in (int, float, bool, tuple, list, str)
    return plain(value, called) or (isinstance(value, FunctionType) and _of_triton(value))


def plain(value: Any, called: list[Any]) -> bool:
    """A number, a text, a format, Triton's own constant, or a kernel, which is added to `called`."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    if type(value) is tuple:
        return all(plain(one, called) for one in value)
    if type(value) is tl.constexpr:
        return plain(value.value, called)
    if type(value) is InterpretedFunction:
        called.append(value)
        return True
    if isinstance(value, JITFunction):
        return isinstance(value.fn, FunctionType) and _of_triton(value.fn)
    return type(value) in _PLAIN or isinstance(value, tl.dtype)


def _language(module: str) -> bool:
    return module == "triton" or f"{module}.".startswith("triton.language.")


def _of_triton(function: FunctionType) -> bool:
    return Path(function.__code__.co_filename).is_relative_to(_folder())


@cache
def _folder() -> Path:
    import triton

    return Path(triton.__file__).parent


@cache
def _of_values() -> frozenset[str]:
    """Attributes that the language gives to its values; not the array inside the interpreter's values."""
    import triton.language as tl
    from triton.language import core

    kinds = (tl.tensor, tl.dtype, tl.constexpr, core.pointer_type, core.block_type, core.tensor_descriptor_base)
    names = {name for kind in kinds for name in dir(kind) if not name.startswith("_")}
    names |= {"shape", "dtype", "type", "element_ty", "scalar", "strides", "block_shape", "nbytes", "value", "append"}
    return frozenset(names - {"handle"})
