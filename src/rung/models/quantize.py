"""Weights in 8 bits: one scale per row, so that a row's largest weight becomes 127."""

from __future__ import annotations

import torch

from rung.models.gpt2.weights import Linear


def to_int8(weight: torch.Tensor) -> Linear:
    """An (OC, C) matrix as int8 with a float32 scale for each row."""
    weight = weight.float()
    scale = weight.abs().amax(dim=1).clamp_min(1e-12) / 127  # (OC)
    quanta = (weight / scale[:, None]).round_().to(torch.int8)
    return Linear(quanta.contiguous(), scale=scale)


def to_float(linear: Linear, dtype: torch.dtype) -> torch.Tensor:
    """The matrix that a Linear represents, without scale."""
    if linear.scale is None:
        return linear.weight.to(dtype)
    return (linear.weight.float() * linear.scale[:, None]).to(dtype)
