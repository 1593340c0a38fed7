"""Memory in which a mistake shows: poisoned before every run, watched to the byte on both sides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rung.rungs.base import Device

BAND = 4096  # bytes at least on each side that no kernel may touch
PAGE = 4096
STRICTEST = 32  # the alignment that the most demanding rung asks for: fragments straight from memory

# What an output holds before a run. NaN alone is swallowed by fmaxf and by ==, so the pattern changes from run to
# run: NaN, the largest number of each format, minus zero, and numbers such as an earlier run may have left.
POISONS: tuple[bytes, ...] = (b"\xff", b"\xff\x7b", b"\x00\x80", b"\x9a\x40", b"\xff\xfb")

_made = itertools.count()  # scratch memory is painted once, and so otherwise in each storage

Raw = Callable[[str, int], torch.Tensor]  # so many bytes for this name, up to the end of a page


@dataclass
class Block:
    """One tensor's memory: a band, the data, a band."""

    raw: torch.Tensor  # (bytes,)
    start: int
    end: int
    head: torch.Tensor  # the bands as they were filled
    tail: torch.Tensor


class GuardedStorage:
    """Hands out tensors whose neighbourhood is watched.

    Bands with a pattern of their own stand on both sides, and the pattern changes from run to run: what a kernel
    reads there changes as well, and what it writes there is seen. On the emulator pages without access lie before and
    behind them, and where the operands need no alignment the data itself ends where that page begins.
    """

    def __init__(self, device: Device, *, alignment: int = STRICTEST, raw: Raw | None = None) -> None:
        self.device, self.alignment = device, alignment
        self._raw = raw or (_on_gpu if device == "cuda" else _on_cpu)
        self.blocks: dict[str, Block] = {}
        self._turn = 0
        self._first = next(_made)

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A poisoned tensor with guards."""
        size = math.prod(shape) * dtype.itemsize
        multiple = max(self.alignment, dtype.itemsize)
        room = -(-size // multiple) * multiple  # what lies between the data and that boundary is watched as well
        behind = BAND if self.device == "cuda" else 0  # on a CPU a page that faults stands there
        raw = self._raw(name, -(-(BAND + room + behind) // PAGE) * PAGE)
        start = len(raw) - behind - room
        empty = raw[:0]
        self.blocks[name] = Block(raw, start, start + size, empty, empty)
        self._paint(len(self.blocks), self.blocks[name])
        self.poison(name, self._first)
        return raw[start : start + size].view(dtype).view(shape)

    def _paint(self, number: int, block: Block) -> None:
        # Every tensor's bands are its own, so that what is read beside one and written beside another leaves a trace.
        pattern = bytearray(POISONS[self._turn % len(POISONS)])
        if pattern == b"\xff":
            pattern = bytearray((0x81 + number % 0x7E, 0xFF))  # a NaN with a payload
        block.head, block.tail = block.raw[: block.start], block.raw[block.end :]
        fill(block.head, bytes(pattern))
        fill(block.tail, bytes(pattern))
        block.head, block.tail = block.head.clone(), block.tail.clone()

    def repaint(self, turn: int) -> None:
        """Other bands for another run."""
        self._turn = turn
        for number, block in enumerate(self.blocks.values()):
            self._paint(number, block)

    def poison(self, name: str, number: int = 0) -> None:
        """Make what the last run left in `name` unusable."""
        block = self.blocks[name]
        fill(block.raw[block.start : block.end], POISONS[number % len(POISONS)])

    def still_poisoned(self, name: str, number: int, width: int) -> int:
        """How many elements of so many bytes are as `poison` left them."""
        data = self.blocks[name].raw[self.blocks[name].start : self.blocks[name].end]
        untouched = torch.empty_like(data)
        fill(untouched, POISONS[number % len(POISONS)])
        return int((data.view(-1, width) == untouched.view(-1, width)).all(1).sum())

    def damaged(self) -> str | None:
        """Which tensor was written beside, if any."""
        for name, block in self.blocks.items():
            if not torch.equal(block.raw[: block.start], block.head):
                return f"wrote before the start of {name}"
            if not torch.equal(block.raw[block.end :], block.tail):
                return f"wrote past the end of {name}"
        return None

    def snapshot(self, name: str) -> torch.Tensor:
        """The bytes of `name` as they are now."""
        block = self.blocks[name]
        return block.raw[block.start : block.end].clone()

    def changed(self, name: str, before: torch.Tensor) -> bool:
        """Whether the bytes of `name` differ from a snapshot."""
        block = self.blocks[name]
        return not torch.equal(block.raw[block.start : block.end], before)


def _on_gpu(_: str, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def _on_cpu(_: str, size: int) -> torch.Tensor:
    from rung import emulator

    if emulator.available() is None:
        return emulator.guarded_empty(size)
    return torch.empty(size, dtype=torch.uint8)


def fill(raw: torch.Tensor, pattern: bytes) -> None:
    """Repeat a pattern of bytes over raw memory."""
    for i, byte in enumerate(pattern):
        raw[i :: len(pattern)] = byte
