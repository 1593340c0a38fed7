"""The runtime's C interface, as runtime/launch.h declares it."""

from __future__ import annotations

import ctypes
import functools

from rung.emulator import toolchain

TEXT = 1536


class Index(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class Launch(ctypes.Structure):
    _fields_ = (
        ("module", ctypes.c_void_p),
        ("entry", ctypes.c_void_p),
        ("args", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", Index),
        ("block", Index),
        ("cluster", Index),
        ("dynamic_bytes", ctypes.c_uint),
        ("cooperative", ctypes.c_int),
        ("dependent", ctypes.c_int),
        ("order", ctypes.c_int),
        ("seed", ctypes.c_uint),
        ("poison", ctypes.c_int),
        ("races", ctypes.c_int),
        ("seconds", ctypes.c_double),
        ("next", ctypes.c_void_p),
        ("others_go_on", ctypes.c_void_p),
    )


class Report(ctypes.Structure):
    _fields_ = (
        ("fault", ctypes.c_int),
        ("address", ctypes.c_ulonglong),
        ("counter", ctypes.c_ulonglong),
        ("other_counter", ctypes.c_ulonglong),
        ("waits", ctypes.c_ulonglong),
        ("block", Index),
        ("thread", Index),
        ("unwatched", ctypes.c_uint),
        ("text", ctypes.c_char * TEXT),
    )


@functools.cache
def runtime() -> ctypes.CDLL:
    """The runtime, loaded so that kernels' libraries find it."""
    library = ctypes.CDLL(str(toolchain.runtime_library()), mode=ctypes.RTLD_GLOBAL)
    library.rung_launch.argtypes = (ctypes.POINTER(Launch), ctypes.POINTER(Report))
    library.rung_launch.restype = ctypes.c_int
    library.rung_symbol.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_ulonglong))
    library.rung_symbol.restype = ctypes.c_void_p
    library.rung_guarded.argtypes = (
        ctypes.c_ulonglong,
        ctypes.c_ulonglong,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_ulonglong),
    )
    library.rung_guarded.restype = ctypes.c_void_p
    library.rung_atomics_ran.restype = ctypes.c_ulong
    library.rung_switches.restype = ctypes.c_ulong
    library.rung_unmap.argtypes = (ctypes.c_void_p, ctypes.c_ulonglong)
    library.rung_unmap.restype = None
    library.rung_tensor.argtypes = (*(ctypes.c_ulonglong,) * 4, ctypes.c_int)
    library.rung_tensor.restype = None
    library.rung_unknown_launch_ahead.restype = None
    return library
