"""Tensors with a explicit dtype and device: torch's defaults are the caller's, who may change them at any time.

Native code and kernels write into tensors by address, so that one of another size or place corrupts memory. A test
finds each call of torch in this package that leaves its dtype or its device to a default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


def integers(numbers: Sequence[Any], device: torch.device | str = "cpu") -> torch.Tensor:
    """Integers of 64 bits."""
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def floats(numbers: Sequence[Any], device: torch.device | str = "cpu") -> torch.Tensor:
    """Floats of 32 bits."""
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def empty(*shape: int) -> torch.Tensor:
    """Floats of 32 bits on the host, not initialised."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


@contextmanager
def plain_torch(device: torch.device) -> Iterator[None]:
    """Inside the block neither the caller's autocast nor its default device counts, and no gradient is recorded."""
    with torch.autocast(device.type, enabled=False), torch.device("cpu"), torch.no_grad():
        yield
