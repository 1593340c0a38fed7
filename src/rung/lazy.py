"""torch, imported at its first use: importing it takes seconds, and listing a ladder does not need it."""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["F", "begin_context", "compiled", "torch"]


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


def begin_context() -> threading.Thread:
    """Start creating the primary context of the first GPU while torch is being imported; both take a few tenths of a
    second. Without a driver this does nothing; torch reports the reason
    later."""
    thread = threading.Thread(target=_retain_context, name="rung-context", daemon=True)
    thread.start()
    return thread


def _retain_context() -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")  # releases the interpreter's lock during a call
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
