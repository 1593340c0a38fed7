"""Operands in the host's memory, of which a GPU's kernels get a copy: a run of a small case takes two copies and one
query, and everything else is done on the CPU, without waiting for other processes.
"""

from __future__ import annotations

import torch

CHUNK = 1 << 20  # bytes of memory at least that are allocated together


class Mirror:
    """Allocates host memory, each piece of which has a counterpart on the device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._chunks: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._used: list[int] = []  # bytes of each

    def __call__(self, _: str, size: int) -> torch.Tensor:
        if not self._chunks or self._used[-1] + size > len(self._chunks[-1][0]):
            size_of_chunk = max(size, CHUNK)
            here = torch.empty(size_of_chunk, dtype=torch.uint8, pin_memory=self.device == "cuda")
            self._chunks.append((here, torch.empty(size_of_chunk, dtype=torch.uint8, device=self.device)))
            self._used.append(0)
        start = self._used[-1]
        self._used[-1] += size
        return self._chunks[-1][0][start : start + size]

    def there(self, tensor: torch.Tensor) -> torch.Tensor:
        """The counterpart of a contiguous tensor in this memory."""
        size = tensor.numel() * tensor.itemsize
        for here, copy in self._chunks:
            start = tensor.data_ptr() - here.data_ptr()
            if start >= 0 and start + size <= len(here):
                return copy[start : start + size].view(tensor.dtype).view(tensor.shape)
        raise ValueError("this tensor is not in mirrored memory")

    def arrive(self) -> None:
        """Queue the copy to the device."""
        for (here, copy), used in zip(self._chunks, self._used, strict=True):
            copy[:used].copy_(here[:used], non_blocking=True)

    def leave(self) -> None:
        """Queue the copy from the device."""
        for (here, copy), used in zip(self._chunks, self._used, strict=True):
            here[:used].copy_(copy[:used], non_blocking=True)
