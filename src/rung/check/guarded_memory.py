"""Memory that reveals mistakes: poisoned before every run, guarded to the byte on both sides."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import math
import mmap
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

import gpuless
from rung.arrays import Array, address_of, bits_of, dtype_of, empty, is_equal, kind_of, namespace, split, to_numpy
from rung.lazy import torch
from rung.operation import Operand
from rung.rungs.base import Device

BAND = 4096  # bytes at least on each side that no kernel may touch
PAGE = 4096
STRICTEST = 32  # the largest alignment that any rung requires: WMMA fragments loaded from memory

# What an output holds before a run. fmaxf and == can hide NaN, so the pattern changes from run to run: NaN, the largest
# number of each format, negative zero, and plausible results of an earlier run, small integers.
POISONS: tuple[bytes, ...] = (b"\xff", b"\xff\x7b", b"\x00\x80", b"\x9a\x40", b"\xff\xfb", b"\x01\x00\x00\x00")

_made = itertools.count()  # scratch memory is filled once, with a different pattern in each storage
_placed = itertools.count()

Raw = Callable[[str, int], Array]  # this many bytes for this name, up to the end of a page


@dataclass
class Block:
    """One tensor's memory: a band, the data, a band."""

    raw: Array  # (bytes,)
    start: int
    end: int

    @property
    def data(self) -> Array:
        return self.raw[self.start : self.end]


class GuardedStorage:
    """Allocates tensors with guard bands on both sides. Their pattern changes from run to run, so that values read from
    there change as well, and writes there are detected. On the emulator unmapped pages lie before and after them; if
    the operands need no alignment, the data ends directly at such a page, unless the placement differs. The race check
    detects every access to a byte outside the data.
    """

    def __init__(
        self,
        device: Device,
        *,
        alignment: int = STRICTEST,
        raw: Raw | None = None,
        placement: Placement | None = None,
        addresses: Addresses | None = None,
        poisoned: bool = True,
    ) -> None:
        self.device, self.alignment, self.poisoned = device, alignment, poisoned
        self.memory = "cuda" if device == "cuda" and raw is None else "cpu"  # addresses of the blocks
        self.placement = placement or Placement()
        self.addresses = addresses or Addresses(self.placement)
        self.raw = raw
        self.blocks: dict[str, Block] = {}
        self._first = next(_made)
        self._painted: Array | None = None  # the content of all bands, concatenated

    def empty(self, name: str, shape: tuple[int, ...], kind: str) -> Array:
        """A tensor with guards, poisoned unless the storage is not."""
        width = dtype_of(kind, np).itemsize
        size = math.prod(shape) * width
        multiple = max(self.alignment, width)
        padded = -(-size // multiple) * multiple  # the bytes between the data and that boundary are guarded as well
        behind = BAND if self.device == "cuda" else 0  # on a CPU there is an unmapped page
        only = self.placement.only
        odd = multiple if self.placement.kind == "odd" and only in ("", name) else 0
        room = -(-(BAND + padded + odd + behind) // PAGE) * PAGE
        start = BAND if self.placement.kind == "page" else room - behind - padded
        if odd and start // multiple % 2 == 0:
            start -= multiple
        if only and not odd:
            start -= start % STRICTEST
        raw = self._memory(name, room, start)
        self.blocks[name] = Block(raw, start, start + size)
        if self.device != "cuda":
            gpuless.mark_data(raw, start, start + size)
        self._painted = None
        if self.poisoned:
            self.poison(name, self._first)
        return bits_of(raw[start : start + size], kind).reshape(shape)

    def _memory(self, name: str, size: int, lead: int) -> Array:
        if self.raw is not None:
            return self.raw(name, size)
        if isinstance(self.addresses, Slab):
            return self.addresses(lead, size)
        if self.device == "cuda":
            return empty((size,), "uint8", "cuda")
        return _on_cpu(size, self.addresses.take(size, lead))

    def only_read(self, operands: Iterable[Operand]) -> None:
        """Nothing may write to these tensors, not even the values that they hold."""
        for operand in operands if self.device != "cuda" else ():
            block = self.blocks[operand.name]
            gpuless.mark_data(block.raw, block.start, block.end, written=False, constant=operand.constant)

    def _bands(self) -> list[Array]:
        return [band for b in self.blocks.values() for band in (b.raw[: b.start], b.raw[b.end :])]

    def repaint(self, turn: int = 0) -> None:
        """New bands for the next run."""
        bands = self._bands()
        pieces = []
        for index, band in enumerate(bands):
            # Every tensor has different bands, so that data copied from one band to another is detected: NaNs differ in
            # their payload.
            pattern = POISONS[turn % len(POISONS)]
            if pattern == b"\xff":
                pattern = bytes((0x81 + (index // 2 + 1) % 0x7E, 0xFF))
            pieces.append((pattern * (len(band) // len(pattern) + 1))[: len(band)])
        self._painted = painted = np.frombuffer(bytearray(b"".join(pieces)), np.uint8)
        if namespace(bands[0]) is np:
            for band, piece in zip(bands, _parts(painted, bands), strict=True):
                band[...] = piece
            return
        # All at once: with many processes on a GPU even a small query is slow.
        self._painted = torch.from_numpy(painted).pin_memory().to(bands[0].device, non_blocking=True)
        torch._foreach_copy_(bands, _parts(self._painted, bands))

    def poison(self, name: str, number: int = 0) -> None:
        """Poison `name`."""
        block = self.blocks[name]
        fill(block.data, POISONS[number % len(POISONS)])

    def still_poisoned(self, name: str, number: int, width: int) -> int:
        """How many elements of this size still hold the poison."""
        data = self.blocks[name].data
        untouched = namespace(data).empty_like(data)
        fill(untouched, POISONS[number % len(POISONS)])
        return int((data.reshape(-1, width) == untouched.reshape(-1, width)).all(1).sum())

    def damaged(self) -> str | None:
        """The tensor whose bands were written to, if any."""
        return self.touched((), empty((0,), "uint8"))

    def snapshot(self, names: Sequence[str]) -> Array:
        """A snapshot of these tensors' bytes."""
        return _joined([self.blocks[name].data for name in names]) if names else empty((0,), "uint8")

    def changed(self, names: Sequence[str], before: Array) -> list[Array]:
        """Whether a band was written to, and whether a named tensor differs from the snapshot: as device tensors,
        without synchronising."""
        beside = [] if self._painted is None else [(_joined(self._bands()) != self._painted).any()]
        return beside + ([(self.snapshot(names) != before).any()] if names else [])

    def touched(self, names: Sequence[str], before: Array) -> str | None:
        """The tensor whose bands were written to, or that differs from the snapshot."""
        flags = self.changed(names, before)  # in one query of a GPU
        if not flags or not namespace(flags[0]).stack(flags).any():
            return None
        bands = self._bands()
        if self._painted is not None:
            for index, (band, as_painted) in enumerate(zip(bands, _parts(self._painted, bands), strict=True)):
                if not is_equal(band, as_painted):
                    side = "past the end" if index % 2 else "before the start"
                    return f"wrote {side} of {list(self.blocks)[index // 2]}"
        parts = zip(names, _parts(before, [self.blocks[name].data for name in names]), strict=True)
        return f"changed its input {next(n for n, part in parts if not is_equal(self.blocks[n].data, part))}"


def _joined(arrays: Sequence[Array]) -> Array:
    return namespace(arrays[0]).concatenate(arrays)


def _parts(whole: Array, like: Sequence[Array]) -> list[Array]:
    """Parts of the lengths of other arrays."""
    return split(whole, 0, *map(len, like))


def _on_cpu(size: int, near: int) -> Array:
    return gpuless.guarded_empty(size, near) if gpuless.available() is None else empty((size,), "uint8")


def memory_file(size: int, pattern: bytes = b"") -> int:
    """A file in memory for two processes. It cannot be truncated: that would end either at its next access."""
    file = os.memfd_create("operand", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, len(pattern) or size)
    os.pwrite(file, pattern, 0)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return file


def mapped(file: int, size: int) -> Array:
    """The bytes of a file that other processes map, too."""
    return np.frombuffer(mmap.mmap(file, size), np.uint8)


def reserve(size: int, pattern: bytes) -> tuple[int, Array]:
    """A file, and memory over it that takes no room before it is touched; a pattern of whole pages is repeated."""
    file = memory_file(size, pattern)
    return file, gpuless.guarded_file(file, size)


def fill(raw: Array, pattern: bytes) -> None:
    """Repeat a pattern of bytes over raw memory."""
    if len(pattern) == 2 and address_of(raw) % 2 == 0:
        whole = len(raw) // 2 * 2
        bits_of(raw[:whole], "int16")[...] = int.from_bytes(pattern, "little", signed=True)
        raw[whole:] = pattern[0]
        return
    for i, byte in enumerate(pattern):
        raw[i :: len(pattern)] = byte


Kind = Literal["end", "page", "odd"]


@contextlib.contextmanager
def from_the_start() -> Iterator[None]:
    """Inside, patterns and addresses are those of a new process, whatever this one has judged before."""
    global _made, _placed
    before = _made, _placed
    _made, _placed = itertools.count(), itertools.count()
    try:
        yield
    finally:
        _made, _placed = before


@dataclass(frozen=True)
class Placement:
    """The data ends where its memory does, or begins at a multiple of a large power of two, or at an odd multiple of
    the rung's alignment; the next operand lies above the last one, or below."""

    kind: Kind = "end"
    below: bool = False
    only: str = ""  # the operand that this holds of; others begin at multiples of what the strictest kernel asks for


KINDS: tuple[Kind, ...] = ("end", "page", "odd")
ALL = tuple(Placement(kind, below) for kind in KINDS for below in (False, True))


class Addresses:
    """Addresses to ask the system for, on a CPU."""

    LARGE = 2 << 20  # alignment of data at a page's start
    FAR = 5 << 30  # bytes between operands then: addresses only, no memory

    def __init__(self, placement: Placement, start: int | None = None) -> None:
        self.placement, self._random = placement, random.Random(next(_placed))
        self._at = start if start is not None else self._random.randrange(1 << 44, 1 << 45, PAGE)

    def take(self, size: int, lead: int) -> int:
        """The start for memory of this many bytes, whose data begins `lead` bytes later."""
        gap = (32 + self._random.randrange(1, 64)) * PAGE  # including a guard of 16 pages on each side
        large = PAGE
        if self.placement.kind == "page":
            gap, large = gap + self.FAR, self.LARGE
        else:
            lead = 0
        if self.placement.below:
            found = (self._at - size - gap + lead) // large * large - lead
            self._at = found
        else:
            found = -(-(self._at + gap + lead) // large) * large - lead
            self._at = found + size
        return found


class Slab(Addresses):
    """Memory of a GPU from which operands are cut."""

    LARGE, FAR = 1 << 16, 0
    EACH = 8 << 16  # bytes at most that an operand's placement takes beyond its size

    def __init__(self, placement: Placement, sizes: int, count: int, device: str = "cuda") -> None:
        whole = sizes + count * self.EACH + 2 * self.LARGE
        self.device, self._whole = device, empty((whole,), "uint8", device)
        self._first = -address_of(self._whole) % self.LARGE
        super().__init__(placement, (whole - self._first) // PAGE * PAGE if placement.below else 0)

    def __call__(self, lead: int, size: int) -> Array:
        """Memory of this many bytes whose data begins `lead` bytes later; allocated elsewhere if there is no room."""
        start = self.take(size, lead) + self._first
        if start < 0 or start + size > len(self._whole):
            return empty((size,), "uint8", self.device)
        return self._whole[start : start + size]


CHUNK = 1 << 20  # bytes of memory at least that are allocated together


class Mirror:
    """Allocates host memory, each piece of which has a counterpart on the device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._chunks: list[tuple[Array, Array]] = []  # here, as the device's library has it, and there
        self._used: list[int] = []  # bytes of each

    def __call__(self, _: str, size: int) -> Array:
        if not self._chunks or self._used[-1] + size > len(self._chunks[-1][0]):
            shape = (max(size, CHUNK),)
            there = empty(shape, "uint8", self.device)
            here = empty(shape, "uint8") if self.device == "cpu" else torch.empty_like(there, device="cpu").pin_memory()
            self._chunks.append((here, there))
            self._used.append(0)
        start = self._used[-1]
        self._used[-1] += size
        return to_numpy(self._chunks[-1][0])[start : start + size]

    def there(self, array: Array) -> Array:
        """The counterpart of a contiguous array in this memory."""
        for here, copy in self._chunks:
            start = address_of(array) - address_of(here)
            if start >= 0 and start + array.nbytes <= len(here):
                return bits_of(copy[start : start + array.nbytes], kind_of(array)).reshape(array.shape)
        raise ValueError("this array is not in mirrored memory")

    def arrive(self) -> None:
        """Queue the copy to the device."""
        for (here, copy), used in zip(self._chunks, self._used, strict=True):
            _queue_copy(here[:used], copy[:used])

    def leave(self) -> None:
        """Queue the copy from the device."""
        for (here, copy), used in zip(self._chunks, self._used, strict=True):
            _queue_copy(copy[:used], here[:used])


def _queue_copy(given: Array, to: Array) -> None:
    if namespace(to) is np:
        to[...] = given
    else:
        to.copy_(given, non_blocking=True)
