"""Runs Triton kernels on the CPU, in Triton's own interpreter, with its known mistakes fixed."""

from __future__ import annotations

import ast
import ctypes
import importlib
import inspect
import os
import sys
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rung.emulator import libdevice, module, triton_builder
from rung.emulator.programs import Parameters
from rung.errors import RungError, first_line

# The attributes of a module or class of Triton's, by name.
Attributes = list[tuple[Any, dict[str, Any]]]
_MISSING = object()
_OUTPUT = sys.stdout
_inside = False


@contextmanager
def enabled() -> Iterator[None]:
    """Kernels decorated inside are interpreted, not compiled, whenever they are launched."""
    for name in ("triton.language", *libdevice.PLACES):  # kernels decorated there are to be compiled
        importlib.import_module(name)
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        triton_builder.mend()
        _mend_launches()
        _mend_tuning()
        _multiply_on_one_thread()
        with suppress(ImportError):
            # Triton imports this at a kernel's first call, and then asserts that it is still interpreting.
            importlib.import_module("triton.experimental.gluon")
        _interpreted_library()
        with _interpreting():
            yield
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before


@contextmanager
def _interpreting() -> Iterator[None]:
    """Inside, Triton's language is the interpreter's; afterwards it is the compiler's again, also after an exception.

    The interpreter patches the language when a kernel is launched, and again when a kernel calls a function; it reverts
    only the former.
    """
    global _inside
    if _inside:
        yield
        return
    before, _inside = _attributes(), True
    try:
        for owner, name, value in _interpreted_library():
            setattr(owner, name, value)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # a GPU gives no warnings
            yield
    finally:
        _restore(before)
        _inside = False


def _attributes() -> Attributes:
    """Everything that the interpreter may patch: the language's modules, and the classes of its core."""
    import triton
    from triton.language import core

    modules = [m for name, m in sys.modules.items() if f"{name}.".startswith("triton.language.")]
    classes = [c for c in vars(core).values() if isinstance(c, type) and c.__module__ == core.__name__]
    return [(owner, dict(vars(owner))) for owner in (triton, *modules, *classes)]


def _restore(before: Attributes) -> None:
    for owner, attributes in before:
        for name, value in attributes.items():
            if vars(owner).get(name, _MISSING) is not value:
                setattr(owner, name, value)
        if isinstance(owner, type):  # new attributes of a module are submodules and the interpreter's own helpers
            for name in vars(owner).keys() - attributes.keys():
                delattr(owner, name)


@cache
def _interpreted_library() -> list[tuple[Any, str, Any]]:
    """Triton's own library (`tl.max`, `tl.sum`, `tl.cdiv` ...), to be interpreted: owner, name and value.

    It is written in Triton, and was imported to be compiled; an interpreted kernel could not call it. So its modules
    are executed once more, and the new values are kept next to the old ones.
    """
    import triton
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    before = _attributes()
    try:
        for name in ("standard", "random"):
            module = importlib.import_module(f"triton.language.{name}")
            if not any(isinstance(value, JITFunction) for value in vars(module).values()):
                continue  # the user's environment sets all of Triton to be interpreted
            module = importlib.reload(module)
            for owner in (tl, triton):
                for attribute, value in vars(module).items():
                    if not attribute.startswith("__") and isinstance(vars(owner).get(attribute), JITFunction):
                        setattr(owner, attribute, value)
        found = [
            (owner, name, value)
            for owner, attributes in before
            for name, value in vars(owner).items()
            if not name.startswith("__") and attributes.get(name, _MISSING) is not value
        ]
        return [*found, *libdevice.interpreted()]
    finally:
        _restore(before)


def _mend_launches() -> None:
    """Every launch of an interpreted kernel leaves Triton's language as it found it.

    And a function that is called inside, such as tl.sum, is prepared once in a launch; and that patches only what can
    be patched, instead of visiting every member.
    """
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpretedFunction

    if getattr(InterpretedFunction, "mended_by_rung", False):
        return
    launch, patch = InterpretedFunction.run, interpreter._patch_attr
    builtin: dict[Any, list[str]] = {}
    called = set[Any]()  # functions, in the running launch

    def patch_builtin(owner: Any, builder: Any, scope: Any) -> None:
        if owner not in builtin:
            builtin[owner] = [name for name, value in inspect.getmembers(owner) if tl.core.is_builtin(value)]
        for name in builtin[owner]:
            if tl.core.is_builtin(value := getattr(owner, name)):
                patch(owner, name, value, builder, scope)

    def call(self: Any, *args: Any, **named: Any) -> Any:
        if self.fn not in called:
            interpreter._patch_lang(self.fn)
            called.add(self.fn)
        return self.rewrite()(*args, **named)

    def run(self: Any, *args: Any, **named: Any) -> Any:
        if named.get("warmup"):
            return None
        if callable(grid := named.get("grid")):  # the rung's own Python; no such code runs within a launch
            named = {**named, "grid": grid(_named(self, args, named))}
        if not module.launching():
            return None
        called.clear()
        try:
            reordered = not _waits(self)
            parameters = Parameters(self.fn.__name__, self.fn.__code__.co_filename, _named(self, args, named))
            within = triton_builder.launched(self.fn.__name__, parameters, reordered=reordered)
            with module.a_launch(), _interpreting(), _printing(), within:
                return launch(self, *args, **named)
        except interpreter.InterpreterError as error:
            cause = error.__cause__ or error
            if isinstance(cause, RungError):
                raise cause from None
            where = f"kernel '{self.fn.__name__}'{_line(cause, self.fn.__code__.co_filename)}"
            raise RungError(f"{where}: {type(cause).__name__}: {first_line(cause)}") from error

    InterpretedFunction.run, InterpretedFunction.__call__, interpreter._patch_builtin = run, call, patch_builtin
    InterpretedFunction.mended_by_rung = True


@cache
def _mend_tuning() -> None:
    """An autotuned kernel has nothing to measure here: the first configuration that its pruning leaves is taken."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.interpreter import InterpretedFunction

    tuned = Autotuner.run

    def run(self: Any, *args: Any, **named: Any) -> Any:
        inner = self.fn
        while not isinstance(inner, InterpretedFunction) and hasattr(inner, "fn"):  # heuristics in between
            inner = inner.fn
        if not isinstance(inner, InterpretedFunction):
            return tuned(self, *args, **named)
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        config = self.prune_configs(named)[0]
        self.best_config, self.nargs = config, None
        return self.fn.run(*args, **{**named, **config.kwargs})

    Autotuner.run = run


def _line(error: BaseException, file: str) -> str:
    """The line of a kernel's file that raised an error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f", line {lines[-1]}" if lines else ""


@contextmanager
def _printing() -> Iterator[None]:
    """What kernels print goes to the process's own output."""
    before, sys.stdout = sys.stdout, _OUTPUT
    try:
        yield
    finally:
        sys.stdout = before


def _named(kernel: Any, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a kernel by name, as a grid may ask for them."""
    own = {name: value for name, value in named.items() if name in kernel.arg_names}
    bound = inspect.signature(kernel.fn).bind_partial(*args, **own)
    bound.apply_defaults()
    return dict(bound.arguments)


def _waits(kernel: Any) -> bool:
    """Whether a kernel, or a function that it calls, may wait in a loop for another program."""
    todo, done = [kernel.fn], set()
    while todo:
        function = todo.pop()
        code = getattr(function, "__code__", None)
        if code is None or code in done or function.__module__.startswith("triton."):
            continue
        done.add(code)
        if any(isinstance(node, ast.While) for node in ast.walk(_tree(function))):
            return True
        called = (function.__globals__.get(name) for name in code.co_names)
        todo += [one.fn for one in called if hasattr(one, "fn")]
    return False


@cache
def _tree(function: Any) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


@cache
def _multiply_on_one_thread() -> None:
    """numpy's BLAS would share each tile's product among all cores, whose threads then spin until the next one."""
    for path in (Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*"):
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_"):
            with suppress(AttributeError):
                getattr(ctypes.CDLL(str(path)), name)(1)
