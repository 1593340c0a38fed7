"""Names in a Triton kernel's text that do not belong to Triton's language: the interpreter would call any Python
function, numpy included, where a GPU's compiler refuses it.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

from rung.emulator import untouched

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
    for one in _called_by(kernel):
        if not isinstance(one.fn, FunctionType):
            return "an object in place of a function"
        if untouched.is_tritons(one.fn):
            continue
        if not untouched.usual_builtins(one.fn):
            return "other builtins"
        found, _ = _names(one.fn)
        if found:
            return found
        # This text is executed, whatever the interpreter was made to cache of it.
        type(one).rewritten_fn[one.fn] = _rewritten(one.fn)
    return ""


def waits(kernel: Any) -> bool:
    """Whether a kernel, or a function that it calls, may wait in a loop for another program."""
    functions = (one.fn for one in _called_by(kernel) if isinstance(one.fn, FunctionType))
    parsed = (_parsed(one) for one in functions if not untouched.is_tritons(one))
    return any(isinstance(node, ast.While) for found in parsed if found for node in found[0])


def _called_by(kernel: Any) -> Iterator[Any]:
    """A kernel, and the kernels that it calls, at any depth."""
    todo, done = [kernel], set()
    while todo:
        one = todo.pop()
        if id(one.fn) in done:
            continue
        done.add(id(one.fn))
        yield one
        if isinstance(one.fn, FunctionType) and not untouched.is_tritons(one.fn):
            todo += _names(one.fn)[1]


@cache
def _rewritten(function: FunctionType) -> Any:
    """The function as the interpreter executes it: of the text that was checked, with the defaults that it has."""
    from triton.runtime import interpreter

    tree = _tree(function)
    assert tree is not None
    plain_tree = copy.deepcopy(tree)
    plain_tree.decorator_list, nothing = [], ast.Constant(None)
    plain_tree.args.defaults = [nothing for _ in plain_tree.args.defaults]
    plain_tree.args.kw_defaults = [one and nothing for one in plain_tree.args.kw_defaults]
    module = interpreter.FunctionRewriter.ast_transformer.visit(ast.Module([plain_tree], []))
    ast.fix_missing_locations(module)
    ast.increment_lineno(module, function.__code__.co_firstlineno - 1)
    known = function.__globals__
    for name, value in vars(interpreter).items():
        known.setdefault(name, value)
    found: dict[str, Any] = {}
    exec(compile(module, function.__code__.co_filename, "exec"), known, found)
    made = found[plain_tree.name]
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return made


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
    outer = _tree(function)
    if outer is None:
        return None
    nodes = list(ast.walk(ast.Module([*outer.body], [])))
    local = {a.arg for a in ast.walk(outer.args) if isinstance(a, ast.arg)}
    return nodes, local | {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


@cache
def _tree(function: FunctionType) -> ast.FunctionDef | None:
    try:
        outer = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        return None
    return outer if isinstance(outer, ast.FunctionDef) else None


def _reached(function: FunctionType, name: str, chain: list[str], called: list[Any]) -> bool:
    """Whether Triton's compiler accepts the object of this dotted name."""
    if name in function.__globals__:  # the interpreter executes the text there, without closures
        value = function.__globals__[name]
    else:
        return name in KNOWN and hasattr(builtins, name) and not chain
    for index, part in enumerate(chain):
        if not isinstance(value, ModuleType):
            return plain(value, called) and all(one in _of_values() for one in chain[index:])
        if not _language(value) or part not in vars(value):
            return False
        value = vars(value)[part]
    if isinstance(value, ModuleType):
        return _language(value)
    if isinstance(value, type):
        return untouched.is_tritons(value) or value in (int, float, bool, tuple, list, str)
    return plain(value, called) or (isinstance(value, FunctionType) and untouched.is_tritons(value))


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
        return isinstance(value.fn, FunctionType) and untouched.is_tritons(value.fn)
    return type(value) in _PLAIN or (isinstance(value, tl.dtype) and untouched.is_tritons(type(value)))


def _language(module: ModuleType) -> bool:
    name = module.__name__
    return sys.modules.get(name) is module and (name == "triton" or f"{name}.".startswith("triton.language."))


@cache
def _of_values() -> frozenset[str]:
    """Attributes that the language gives to its values; not the array inside the interpreter's values."""
    import triton.language as tl
    from triton.language import core

    kinds = (tl.tensor, tl.dtype, tl.constexpr, core.pointer_type, core.block_type, core.tensor_descriptor_base)
    names = {name for kind in kinds for name in dir(kind) if not name.startswith("_")}
    names |= {"shape", "dtype", "type", "element_ty", "scalar", "strides", "block_shape", "nbytes", "value", "append"}
    return frozenset(names - {"handle"})
