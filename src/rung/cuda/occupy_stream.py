"""Keeps a stream busy, so that work that does not wait for it is detected."""

from __future__ import annotations

import torch


def occupy_stream(cycles: int) -> None:
    """Occupy the current stream for this many cycles of the GPU's clock."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
