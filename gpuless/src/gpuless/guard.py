"""Memory of a kernel's tensors: between pages that fault when touched, and known to the machine, which refuses every
other access."""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuless.base.errors import UserError
from gpuless.machine import Region


@dataclass(frozen=True)
class Guarded:
    """A mapping: guard, data, guard."""

    mapped: int
    length: int
    start: int
    size: int


@dataclass(frozen=True)
class Data:
    """A tensor's place in it. `constant` memory is never written by a kernel, and may be read before the launch ahead
    has ended."""

    start: int
    end: int
    written: bool = True
    constant: bool = False


Bytes = np.ndarray[Any, np.dtype[np.uint8]]
PROT_NONE, PROT_READ_WRITE = 0, 3
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE = 1, 2, 0x10, 0x20, 0x4000
GUARD = 1 << 16
PAGE = 4096
ALIGNED = 16  # bytes; the data ends at a guard, or as near to it as this allows
_alive: dict[int, Guarded] = {}  # by the address of the data
_data: dict[int, Data] = {}


def guarded_empty(nbytes: int, near: int = 0, *, filled: bool = True) -> Bytes:
    """`nbytes` bytes of 0xff (or of zeros, which take no memory before they are written), from a multiple of 16 up
    to a page that faults (at most 15 bytes before it). Whole pages are mapped at the address `near` if that is free."""
    if nbytes <= 0:
        return np.empty(0, np.uint8)
    room = -(-nbytes // PAGE) * PAGE
    mapped, length = _map(-1, room, nbytes, near)
    made = _array(Guarded(mapped, length, mapped + GUARD + (room - nbytes) // ALIGNED * ALIGNED, nbytes))
    if filled:
        made.fill(0xFF)
    return made


def guarded_file(file: int, nbytes: int, near: int = 0) -> Bytes:
    """The same over a file of whole pages that another process maps as well; a shorter file is repeated."""
    mapped, length = _map(file, nbytes, nbytes, near)
    return _array(Guarded(mapped, length, mapped + GUARD, nbytes))


def _map(file: int, room: int, nbytes: int, near: int) -> tuple[int, int]:
    libc, length, wanted = _libc(), room + 2 * GUARD, near - GUARD if near else None
    mapped = libc.mmap(wanted, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if mapped == ctypes.c_void_p(-1).value:
        raise UserError(f"No memory for a guarded tensor of {nbytes} bytes: use a smaller case.")
    how = MAP_FIXED | (MAP_SHARED if file >= 0 else MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
    piece = min(room, os.fstat(file).st_size) if file >= 0 else room
    for start in range(mapped + GUARD, mapped + GUARD + room, piece):
        size = min(piece, mapped + GUARD + room - start)
        if libc.mmap(start, size, PROT_READ_WRITE, how, file, 0) != start:
            libc.munmap(mapped, length)
            raise UserError(f"A tensor of {nbytes} bytes cannot be mapped: use a smaller case.")
    return mapped, length


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return libc


def _array(guarded: Guarded) -> Bytes:
    _alive[guarded.start] = guarded
    _data[guarded.start] = Data(guarded.start, guarded.start + guarded.size)
    buffer = (ctypes.c_uint8 * guarded.size).from_address(guarded.start)
    weakref.finalize(buffer, _release, guarded.start)
    return np.ctypeslib.as_array(buffer)


def mark_data(raw: Any, start: int, end: int, *, written: bool = True, constant: bool = False) -> None:
    """Of this guarded memory, kernels may only touch the bytes from `start` to `end`, and only read them unless they
    are `written`."""
    guarded = _alive.get(address_of(raw))
    if guarded is not None:
        first = guarded.start + start
        _data[guarded.start] = Data(first, first + end - start, written, constant)


def _release(start: int) -> None:
    guarded = _alive.pop(start)
    _data.pop(start, None)
    _libc().munmap(guarded.mapped, guarded.length)


def touched(raw: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The pages of guarded memory over a file that some process has touched."""
    guarded = _alive[address_of(raw)]
    pages = np.zeros(-(-guarded.size // PAGE), np.uint8)
    if _libc().mincore(guarded.start, guarded.size, pages.ctypes.data):
        raise UserError("The system does not tell which pages of memory were touched.")
    return np.flatnonzero(pages & 1)


def data_at(address: int) -> Data | None:
    """The tensor whose mapping contains an address."""
    mapping = mapping_of(address)
    return _data.get(mapping.start) if mapping else None


def alive() -> list[Data]:
    """All guarded tensors."""
    return [*_data.values()]


def mapping_of(address: int) -> Guarded | None:
    """The guarded mapping, guards included, that contains `address`."""
    for guarded in _alive.values():
        if guarded.mapped <= address < guarded.mapped + guarded.length:
            return guarded
    return None


def address_of(array: Any) -> int:
    """Where an array's elements begin: of a torch tensor, a numpy array, or what has the array interface."""
    if hasattr(array, "data_ptr"):
        if array.device.type != "cpu":
            raise UserError(f"The machine takes memory of the CPU, and a tensor on {array.device} was given.")
        return int(array.data_ptr())
    return int(array.__array_interface__["data"][0])


def _extent(array: Any) -> tuple[int, int]:
    """The address and the bytes of the storage that an array is a view of."""
    if hasattr(array, "untyped_storage"):
        storage = array.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    base = array
    while isinstance(getattr(base, "base", None), np.ndarray):
        base = base.base
    return int(base.__array_interface__["data"][0]), int(base.nbytes)


def regions_of(tensors: Iterable[tuple[str, Any]]) -> list[Region]:
    """The memory that a launch on these may touch: the data of guarded memory, else the array's storage."""
    found, guarded = {}, False
    for name, tensor in tensors:
        if tensor is None or not (extent := _extent(tensor))[1]:
            continue
        data = data_at(address_of(tensor))
        guarded |= data is not None
        place = data or Data(extent[0], extent[0] + extent[1])
        size = tensor.itemsize
        found[place.start] = Region(place.start, place.end, name, size, place.written, place.constant)
    for place in alive() if guarded else ():  # behind pointers that lie in memory
        found.setdefault(place.start, Region(place.start, place.end, "", 1, place.written, place.constant))
    return [*found.values()]
