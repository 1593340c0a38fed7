"""Binding the model's tensors to rungs: their dims and alignment."""

from __future__ import annotations

import torch

from rung.expressions import Number

ALIGNMENT = 32  # bytes; WMMA needs the most


def dims_of(x: torch.Tensor) -> dict[str, Number]:
    """(B, T, C) by name."""
    B, T, C = x.shape
    return {"B": B, "T": T, "C": C}


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy if it is misaligned for the kernels, which read 16 bytes at a time. A tensor in a mapped
    file, or a layer of odd width, may start at any address.
    """
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
