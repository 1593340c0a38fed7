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
        _mend_bf16_dot()
        with suppress(ImportError):
            # Triton imports this at a kernel's first call, and then asserts that it is still interpreting.
            importlib.import_module("triton.experimental.gluon")
        yield
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before


def _mend_bf16_dot() -> None:
    """The interpreter keeps bfloat16 as raw 16-bit integers and multiplies just those in a dot product.

    Widened to float32 first, the products are exact and the sum is what the tensor cores' float32
    accumulator would hold.
    """
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    original = builder.create_dot
    if getattr(original, "mended_by_rung", False):
        return

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any, **named: Any) -> Any:
        return original(self, _widened(a), _widened(b), d, *rest, **named)

    create_dot.mended_by_rung = True  # type: ignore[attr-defined]
    builder.create_dot = create_dot


def _widened(handle: Any) -> Any:
    import triton.language as tl
    from triton.runtime import interpreter

    if handle.dtype.scalar != tl.bfloat16 or handle.data.dtype.kind == "f":
        return handle
    bits = handle.data.view(np.uint16).astype(np.uint32) << 16
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)
