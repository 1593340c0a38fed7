"""What binding the model's tensors to rungs takes: their dims, and where they start in memory."""

from __future__ import annotations

import torch

from rung.expressions import Number

ALIGNMENT = 32  # bytes; WMMA asks for the most


def dims_of(x: torch.Tensor) -> dict[str, Number]:
    """(B, T, C) by name."""
    B, T, C = x.shape
    return {"B": B, "T": T, "C": C}


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where it starts at an address that kernels do not read from.

    One that still lies in its file starts anywhere, as does a layer of odd width; kernels read 16 bytes at a time.
    """
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
