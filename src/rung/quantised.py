"""Keys and values in eight bits: integers, and a scale for each head and position."""

from __future__ import annotations

from rung.lazy import torch
from rung.operation import Tensors

CACHES = ("k_cache", "v_cache")
EIGHT_BIT_CACHES = ("k_cache_q", "v_cache_q", "k_cache_s", "v_cache_s")


def widened(t: Tensors) -> list[torch.Tensor]:
    """The numbers that the integers and scales stand for."""
    return [t[f"{name}_q"] * t[f"{name}_s"][..., None] for name in CACHES]


def with_new(found: Tensors, t: Tensors, new: torch.Tensor) -> Tensors:
    """The caches after a step that has written the positions `new`: their largest number is 127 units, and their
    integers are not rounded."""
    caches = {}
    for name in CACHES:
        units = torch.where(new, found[name].abs().amax(-1) / 127, t[f"{name}_s"])
        whole = found[name] / torch.where(units == 0, 1.0, units)[..., None]
        caches[f"{name}_s"], caches[f"{name}_q"] = units, torch.where(new[..., None], whole, t[f"{name}_q"].double())
    return caches
