"""Runs Triton kernels on the CPU, in Triton's own interpreter, with its known mistakes mended."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np


@contextmanager
def enabled() -> Iterator[None]:
    """Kernels decorated in here are interpreted, not compiled."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    np.seterr(over="ignore", divide="ignore", invalid="ignore")  # a GPU makes inf and NaN without a word
    try:
        _interpret_triton_itself()
        _mend_bf16()
        with suppress(ImportError):
            # Triton imports this at a kernel's first call, and then asserts that it is still interpreting.
            importlib.import_module("triton.experimental.gluon")
        yield
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before


def _interpret_triton_itself() -> None:
    """Triton's own library (`tl.max`, `tl.sum`, `tl.cdiv` ...) is written in Triton.

    Somebody else, transformers for one, may have imported it before, to be compiled; a kernel under the
    interpreter could then not call it. Its modules are executed once more, now to be interpreted.
    """
    import triton
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    for name in ("standard", "random"):
        module = importlib.import_module(f"triton.language.{name}")
        if not any(isinstance(value, JITFunction) for value in vars(module).values()):
            continue
        module = importlib.reload(module)
        for owner in (tl, triton):
            for attribute, value in vars(module).items():
                if not attribute.startswith("__") and isinstance(vars(owner).get(attribute), JITFunction):
                    setattr(owner, attribute, value)


def _mend_bf16() -> None:
    """The interpreter keeps bfloat16 as raw 16-bit integers, and is wrong with them in two places.

    A dot product multiplies the integers themselves; widened to float32 first, the products are exact and
    the sum is what the tensor cores' float32 accumulator would hold. And a cast from float32 cuts the low
    bits off, where the GPU rounds to nearest even.
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
        return cast(self, source, target)

    builder.create_dot, builder.cast_impl = create_dot, cast_impl
    builder.mended_by_rung = True


def _rounded(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 to the bits of bfloat16, to nearest even."""
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
