"""torch, imported at its first use: importing it takes seconds, and listing a ladder does not need it."""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["F", "begin_context", "compiled", "driver", "has_gpu", "only_this_thread", "torch"]


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


def driver() -> ctypes.CDLL | None:
    """The GPUs' driver, without which torch finds none."""
    try:
        return ctypes.CDLL("libcuda.so.1")  # releases the interpreter's lock during a call
    except OSError:
        return None


def has_gpu() -> bool:
    """Whether torch finds a GPU; it is not imported where there is no driver."""
    return driver() is not None and torch.cuda.is_available()


def _retain_context() -> None:
    library = driver()
    if library is None:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if library.cuInit(0) == 0 and library.cuDeviceGet(ctypes.byref(device), 0) == 0:
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def only_this_thread() -> None:
    """In a copy of a process, which has no other threads: torch would wait for them."""
    if sys.modules.get("torch"):
        torch.set_num_threads(1)
