"""torch, imported at its first use: importing it takes seconds, and listing a ladder does not need it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

__all__ = ["F", "begin_context", "compiled", "has_driver", "inference", "torch"]


P = ParamSpec("P")
R = TypeVar("R")


class _Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    torch = _Lazy("torch")
    F = _Lazy("torch.nn.functional")


def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """torch.compile, separately for every shape. By default the ninth shape would be computed operator by operator."""
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(function, dynamic=False, fullgraph=True)  # one graph, or an error


def inference(function: Callable[P, R]) -> Callable[P, R]:
    """torch.inference_mode around a function, entered where torch is there."""

    @functools.wraps(function)
    def called(*given: P.args, **named: P.kwargs) -> R:
        with torch.inference_mode() if "torch" in sys.modules else contextlib.nullcontext():
            return function(*given, **named)

    return called


def begin_context() -> threading.Thread:
    """Start creating the primary context of the first GPU while torch is being imported; both take a few tenths of a
    second. Without a driver this does nothing; torch reports the reason
    later."""
    thread = threading.Thread(target=_retain_context, name="rung-context", daemon=True)
    thread.start()
    return thread


def has_driver() -> bool:
    """Whether a driver for GPUs is installed, without which torch finds none."""
    return _driver() is not None


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _retain_context() -> None:
    driver = _driver()  # which releases the interpreter's lock during a call
    if driver is None:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
