"""Memory between pages that fault when touched, so that an access beside a tensor is seen."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from pathlib import Path

import torch

from rung.emulator import native
from rung.errors import RungError


@dataclass(frozen=True)
class Guarded:
    """A mapping: guard, data, guard."""

    mapped: int
    length: int
    start: int
    size: int


_alive: dict[int, Guarded] = {}  # by the address of the data


def guarded_empty(nbytes: int) -> torch.Tensor:
    """`nbytes` bytes of 0xff, from a multiple of 16 up to a page that faults (at most 15 bytes before it)."""
    if nbytes <= 0:
        return torch.empty(0, dtype=torch.uint8)
    mapped, length = ctypes.c_void_p(), ctypes.c_ulonglong()
    runtime = native.runtime()
    start = runtime.rung_guarded(nbytes, ctypes.byref(mapped), ctypes.byref(length))
    if not start or not mapped.value:
        raise RungError(f"No memory for a guarded tensor of {nbytes} bytes: use a smaller case.")
    return _tensor(Guarded(mapped.value, length.value, start, nbytes))


PROT_NONE, PROT_READ_WRITE = 0, 3
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE = 1, 2, 0x10, 0x20, 0x4000
GUARD = 1 << 16


def guarded_file(path: str, nbytes: int) -> torch.Tensor:
    """The same over a file of whole pages that another process maps as well."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    length = nbytes + 2 * GUARD
    mapped = libc.mmap(None, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    with Path(path).open("r+b") as file:
        start = mapped + GUARD
        found = libc.mmap(start, nbytes, PROT_READ_WRITE, MAP_SHARED | MAP_FIXED, file.fileno(), 0)
    if found != start:
        raise RungError(f"{path} cannot be mapped: use a smaller case.")
    return _tensor(Guarded(mapped, length, start, nbytes))


def _tensor(guarded: Guarded) -> torch.Tensor:
    _alive[guarded.start] = guarded
    buffer = (ctypes.c_uint8 * guarded.size).from_address(guarded.start)
    weakref.finalize(buffer, _release, guarded.start)
    return torch.frombuffer(buffer, dtype=torch.uint8)


def _release(start: int) -> None:
    guarded = _alive.pop(start)
    native.runtime().rung_unmap(guarded.mapped, guarded.length)


def mapping_of(address: int) -> Guarded | None:
    """The guarded mapping, guards included, in which `address` lies."""
    for guarded in _alive.values():
        if guarded.mapped <= address < guarded.mapped + guarded.length:
            return guarded
    return None
