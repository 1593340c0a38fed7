"""Memory in which a mistake shows: poisoned before every run, with guards on both sides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from rung.rungs.base import Device

BAND = 256  # bytes on each side that no kernel may touch
POISON = 0xFF  # NaN in every floating-point format, -1 in every signed integer


@dataclass
class _Block:
    raw: torch.Tensor  # (bytes,) bands and data
    start: int
    end: int
    head: torch.Tensor  # the bands as they were filled
    tail: torch.Tensor


STRICTEST = 32  # the alignment that the most demanding rung asks for: fragments straight from memory


@dataclass
class GuardedStorage:
    """Hands out tensors whose neighbourhood is watched.

    On the emulator a page without access follows the data, so that a read past the end faults too;
    on a GPU bands of a known pattern stand on both sides.
    """

    device: Device
    blocks: dict[str, _Block] = field(default_factory=dict)

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A poisoned tensor with guards."""
        return self._carve(name, shape, math.prod(shape) * dtype.itemsize, dtype)

    def empty_padded(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The same with eight unused elements after every row: a tensor that is not contiguous."""
        wide = (*shape[:-1], shape[-1] + 8)
        return self._carve(name, wide, math.prod(wide) * dtype.itemsize, dtype)[..., : shape[-1]]

    def _carve(self, name: str, shape: tuple[int, ...], size: int, dtype: torch.dtype) -> torch.Tensor:
        room = -(-size // STRICTEST) * STRICTEST  # what lies between the data and that boundary is watched as well
        if self.device == "cuda":
            raw = torch.empty(BAND + room + BAND, dtype=torch.uint8, device="cuda")
        else:
            from rung import emulator

            if emulator.available() is None:
                raw = emulator.guarded_empty(BAND + room)
            else:
                raw = torch.empty(BAND + room + BAND, dtype=torch.uint8)
        # Every tensor's bands hold a NaN of their own, so that what is read beside one and written beside
        # another leaves a trace.
        raw[1::2] = POISON
        raw[0::2] = 0x81 + len(self.blocks) % 0x7E
        end = BAND + size
        self.blocks[name] = _Block(raw, BAND, end, raw[:BAND].clone(), raw[end:].clone())
        self.poison(name)
        return raw[BAND:end].view(dtype).view(shape)

    def poison(self, name: str) -> None:
        """Make what the last run left in `name` unusable."""
        block = self.blocks[name]
        block.raw[block.start : block.end].fill_(POISON)

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
