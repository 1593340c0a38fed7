"""The placement of operands in memory, on which no result may depend: their order, distance and alignment. It changes
from one binding to the next.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Literal

import torch

PAGE = 4096
Kind = Literal["end", "page", "odd"]
_made = itertools.count()


@dataclass(frozen=True)
class Placement:
    """The data ends where its memory does, or begins at a multiple of a large power of two, or at an odd multiple of
    the rung's alignment; the next operand lies above the last one, or below."""

    kind: Kind = "end"
    below: bool = False


KINDS: tuple[Kind, ...] = ("end", "page", "odd")
ALL = tuple(Placement(kind, below) for kind in KINDS for below in (False, True))


class Addresses:
    """Addresses to ask the system for, on a CPU."""

    LARGE = 2 << 20  # alignment of data at a page's start
    FAR = 5 << 30  # bytes between operands then: addresses only, no memory

    def __init__(self, placement: Placement, start: int | None = None) -> None:
        self.placement, self._random = placement, random.Random(next(_made))
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
        self._whole = torch.empty(whole, dtype=torch.uint8, device=device)
        self._first = -self._whole.data_ptr() % self.LARGE
        super().__init__(placement, (whole - self._first) // PAGE * PAGE if placement.below else 0)

    def __call__(self, lead: int, size: int) -> torch.Tensor:
        """Memory of this many bytes whose data begins `lead` bytes later; allocated elsewhere if there is no room."""
        start = self.take(size, lead) + self._first
        if start < 0 or start + size > len(self._whole):
            return torch.empty(size, dtype=torch.uint8, device=self._whole.device)
        return self._whole[start : start + size]
