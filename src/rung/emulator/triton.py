"""Runs Triton kernels on the CPU, in Triton's own interpreter, with its known mistakes fixed."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rung.emulator import closed, kernel_names, module
from rung.emulator.faults import EmulatorFault
from rung.emulator.programs import Programs

# The attributes of a module or class of Triton's, by name.
Attributes = list[tuple[Any, dict[str, Any]]]
_MISSING = object()
_inside = False
_programs: Programs | None = None  # of the running launch, with the race check


@contextmanager
def enabled() -> Iterator[None]:
    """Kernels decorated inside are interpreted, not compiled, whenever they are launched."""
    importlib.import_module("triton.language")  # kernels decorated there are to be compiled
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        _mend_bf16()
        _mend_launches()
        _watch_programs()
        _multiply_on_one_thread()
        with suppress(ImportError):
            # Triton imports this at a kernel's first call, and then asserts that it is still interpreting.
            importlib.import_module("triton.experimental.gluon")
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
        return [
            (owner, name, value)
            for owner, attributes in before
            for name, value in vars(owner).items()
            if not name.startswith("__") and attributes.get(name, _MISSING) is not value
        ]
    finally:
        _restore(before)


def _mend_launches() -> None:
    """Every launch of an interpreted kernel leaves Triton's language as it found it.

    And a call of a function inside, such as tl.sum, patches only what can be patched, instead of visiting every member.
    """
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpretedFunction

    if getattr(InterpretedFunction, "mended_by_rung", False):
        return
    launch, patch = InterpretedFunction.run, interpreter._patch_attr
    builtin: dict[Any, list[str]] = {}

    def patch_builtin(owner: Any, builder: Any, scope: Any) -> None:
        if owner not in builtin:
            builtin[owner] = [name for name, value in inspect.getmembers(owner) if tl.core.is_builtin(value)]
        for name in builtin[owner]:
            if tl.core.is_builtin(value := getattr(owner, name)):
                patch(owner, name, value, builder, scope)

    def run(self: Any, *args: Any, **named: Any) -> Any:
        global _programs
        if named.get("warmup"):
            return None
        if closed.watching():
            args, named = _judged(self, args, named)
        if not module.launching():
            return None
        _programs = Programs() if module.ambient().check_races else None
        try:
            with closed.opened(), _interpreting():
                found = launch(self, *args, **named)
            if _programs is not None:
                _programs.judge(self.fn.__name__)
            return found
        except interpreter.InterpreterError as error:
            if isinstance(error.__cause__, EmulatorFault):
                raise error.__cause__ from None
            raise
        finally:
            _programs = None

    InterpretedFunction.run, interpreter._patch_builtin = run, patch_builtin
    InterpretedFunction.mended_by_rung = True


def _judged(kernel: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A launch's arguments, with operands hidden from the rung's own Python; other kinds of arguments are recorded."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    launched = [kernel]
    tensors = []
    for value in [*args, *(v for n, v in named.items() if n not in ("grid", "warmup"))]:
        inner = value.base if type(value) is TensorDescriptor else value
        if type(inner) in (torch.Tensor, torch.nn.Parameter):
            tensors.append(inner)
        elif not kernel_names.plain(value, launched):
            closed.note(f"an argument of type {type(value).__name__}")
    closed.judge_memory(tensors)
    for one in launched:
        if found := kernel_names.foreign(one):
            closed.note(f"{found} in a kernel")
    if kernel.pre_run_hooks:
        closed.note("hooks of a kernel")
    grid = named.get("grid")
    if callable(grid):

        def chosen(meta: Any) -> Any:
            with closed.shut_again():
                return grid(meta)

        named = {**named, "grid": chosen}
    return args, named


@cache
def _watch_programs() -> None:
    """Records loads and stores by program, for the race check."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    load, store, atomic = builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw
    swap = builder.create_atomic_cas

    def number(self: Any) -> int:
        (x, y, z), (width, height, _) = self.grid_idx, self.grid_dim
        return int(x + width * (y + height * z))

    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        if _programs is not None:
            _programs.note(False, ptrs.get_element_ty().primitive_bitwidth // 8, ptrs.data, mask.data, number(self))
        return load(self, ptrs, mask, *rest, **named)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        if _programs is not None:
            _programs.note(True, ptrs.get_element_ty().primitive_bitwidth // 8, ptrs.data, mask.data, number(self))
        return store(self, ptrs, value, mask, *rest, **named)

    def create_atomic_rmw(self: Any, *rest: Any) -> Any:
        if _programs is not None:
            _programs.atomics = True
        return atomic(self, *rest)

    def create_atomic_cas(self: Any, *rest: Any) -> Any:
        if _programs is not None:
            _programs.atomics = True
        return swap(self, *rest)

    builder.create_masked_load, builder.create_masked_store = create_masked_load, create_masked_store
    builder.create_atomic_rmw, builder.create_atomic_cas = create_atomic_rmw, create_atomic_cas


@cache
def _multiply_on_one_thread() -> None:
    """numpy's BLAS would share each tile's product among all cores, whose threads then spin until the next one."""
    for path in (Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*"):
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_"):
            with suppress(AttributeError):
                getattr(ctypes.CDLL(str(path)), name)(1)


def _mend_bf16() -> None:
    """The interpreter keeps bfloat16 as raw 16-bit integers, and is wrong with them in three places.

    A dot product multiplies the integers themselves; widened to float32 first, the products are exact and
    the sum is what the tensor cores' float32 accumulator would hold. A cast from float32 truncates the low bits,
    where the GPU rounds to nearest even, and a cast to float32 is wrong for subnormal numbers.
    """
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    if getattr(builder, "mended_by_rung", False):
        return
    dot, cast = builder.create_dot, builder.cast_impl

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any, **named: Any) -> Any:
        return dot(self, _widened(a), _widened(b), d, *rest, **named)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        import triton.language as tl

        if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16:
            return interpreter.TensorHandle(_rounded(source.data), target.scalar)
        if source.dtype.scalar == tl.bfloat16 and target.scalar == tl.float32:
            return _widened(source)
        return cast(self, source, target)

    builder.create_dot, builder.cast_impl = create_dot, cast_impl
    builder.mended_by_rung = True


def _rounded(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 to the bits of bfloat16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, nearest).astype(np.uint16)


def _widened(handle: Any) -> Any:
    import triton.language as tl
    from triton.runtime import interpreter

    if handle.dtype.scalar != tl.bfloat16 or handle.data.dtype.kind == "f":
        return handle
    bits = handle.data.view(np.uint16).astype(np.uint32) << 16
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)
