"""Memory between pages that fault when touched, so that an access outside a tensor is detected."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass

from rung.emulator import native
from rung.errors import RungError
from rung.lazy import torch


@dataclass(frozen=True)
class Guarded:
    """A mapping: guard, data, guard."""

    mapped: int
    length: int
    start: int
    size: int


_alive: dict[int, Guarded] = {}  # by the address of the data
_data: dict[int, tuple[int, int, bool]] = {}  # ... the operand's place in it, and whether it may be written


def guarded_empty(nbytes: int, near: int = 0) -> torch.Tensor:
    """`nbytes` bytes of 0xff, from a multiple of 16 up to a page that faults (at most 15 bytes before it). Whole pages
    are mapped at the address `near` if that is free."""
    if nbytes <= 0:
        return torch.empty(0, dtype=torch.uint8)
    mapped, length = ctypes.c_void_p(), ctypes.c_ulonglong()
    runtime = native.runtime()
    start = runtime.rung_guarded(nbytes, near, ctypes.byref(mapped), ctypes.byref(length))
    if not start or not mapped.value:
        raise RungError(f"No memory for a guarded tensor of {nbytes} bytes: use a smaller case.")
    return _tensor(Guarded(mapped.value, length.value, start, nbytes))


PROT_NONE, PROT_READ_WRITE = 0, 3
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE = 1, 2, 0x10, 0x20, 0x4000
GUARD = 1 << 16
PAGE = 4096


def guarded_file(file: int, nbytes: int, near: int = 0) -> torch.Tensor:
    """The same over a file of whole pages that another process maps as well."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    length = nbytes + 2 * GUARD
    wanted = near - GUARD if near else None
    mapped = libc.mmap(wanted, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    start = mapped + GUARD
    found = libc.mmap(start, nbytes, PROT_READ_WRITE, MAP_SHARED | MAP_FIXED, file, 0)
    if found != start:
        raise RungError(f"a tensor of {nbytes} bytes cannot be mapped: use a smaller case.")
    return _tensor(Guarded(mapped, length, start, nbytes))


def _tensor(guarded: Guarded) -> torch.Tensor:
    _alive[guarded.start] = guarded
    buffer = (ctypes.c_uint8 * guarded.size).from_address(guarded.start)
    weakref.finalize(buffer, _release, guarded.start)
    return torch.frombuffer(buffer, dtype=torch.uint8)


def mark_data(raw: torch.Tensor, start: int, end: int, *, written: bool = True, constant: bool = False) -> None:
    """Of this guarded memory, kernels may only touch the bytes from `start` to `end`, and only read them unless they
    are `written`. When accesses are checked one by one, this catches those that no guard page can. `constant` memory is
    never written by a kernel, and may be read before the launch ahead has ended."""
    guarded = _alive.get(raw.data_ptr())
    if guarded is not None:
        first = guarded.start + start
        _data[guarded.start] = (first, first + end - start, written)
        lowest = guarded.start // PAGE * PAGE
        above, kind = guarded.start + guarded.size, 2 if constant else int(not written)
        native.runtime().rung_tensor(lowest, first, first + end - start, above, kind)


def _release(start: int) -> None:
    guarded = _alive.pop(start)
    _data.pop(start, None)
    lowest = guarded.start // PAGE * PAGE
    native.runtime().rung_tensor(lowest, 0, 0, guarded.start + guarded.size, 0)
    native.runtime().rung_unmap(guarded.mapped, guarded.length)


def operand_at(address: int) -> tuple[int, int, bool] | None:
    """Start and end of the operand whose memory contains an address, and whether it may be written."""
    mapping = mapping_of(address)
    return _data.get(mapping.start) if mapping else None


def mapping_of(address: int) -> Guarded | None:
    """The guarded mapping, guards included, that contains `address`."""
    for guarded in _alive.values():
        if guarded.mapped <= address < guarded.mapped + guarded.length:
            return guarded
    return None
