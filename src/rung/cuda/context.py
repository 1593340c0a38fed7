"""Creates the GPU's context on a thread while torch is being imported; both take a few tenths of a second."""

from __future__ import annotations

import ctypes
import threading


def begin() -> threading.Thread:
    """Start creating the primary context of the first GPU. Without a driver this does nothing; torch reports the reason
    later."""
    thread = threading.Thread(target=_retain, name="rung-context", daemon=True)
    thread.start()
    return thread


def _retain() -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")  # releases the interpreter's lock during a call
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
