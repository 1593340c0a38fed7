"""Refuses what does not fit into memory before it is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rung.errors import RungError

CACHES = ("k_cache", "v_cache")
EIGHT_BIT_CACHES = ("k_cache_q", "v_cache_q", "k_cache_s", "v_cache_s")
SPARE = 512 << 20  # for kernels, graphs and torch's libraries


def refuse(needed: int, what: str, remedy: str) -> None:
    """RungError if the GPU does not have `needed` bytes left."""
    if not torch.cuda.is_available():
        return
    free, _ = torch.cuda.mem_get_info()
    # torch keeps freed memory in its cache, where it is available to torch.
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if needed + SPARE > free:
        raise RungError(
            f"{what} needs {needed / 2**30:.2f} GiB, and the GPU has {max(0, free - SPARE) / 2**30:.2f} GiB left; "
            f"{remedy}."
        )


def sent(numbers: Sequence[Any] | np.ndarray, to: torch.Tensor) -> None:
    """Copies integers to the device in stream order, without waiting."""
    staged = torch.empty(to.shape, dtype=torch.int32, device="cpu", pin_memory=to.is_cuda)
    staged.numpy()[:] = numbers
    to.copy_(staged, non_blocking=True)


def to_host(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    """A copy that is complete when the event has occurred (without one: at once)."""
    if not tensor.is_cuda:
        return tensor.clone(), None
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ready.record()
    return copy, ready
