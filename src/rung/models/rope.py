"""Rotary positions: frequencies as config.json gives them, and tables of cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gpuless.base.files import shown
from rung.errors import RungError
from rung.lazy import torch
from rung.models.fields import Fields


@dataclass(frozen=True)
class Rope:
    """Frequencies base^(-2i / HS): all divided by `factor` (linear), or only the slow ones, with a transition between
    wavelengths of `original` / `high` and `original` / `low` tokens (llama3)."""

    base: float = 1e4
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: float = 8192.0

    def angles(self, HS: int, context: int) -> np.ndarray:
        """The angle of each position and pair of channels (context, HS / 2), in float64."""
        frequencies = self.base ** -(np.arange(0, HS, 2) / HS)
        if self.kind == "linear":
            frequencies = frequencies / self.factor
        elif self.kind == "llama3":
            turns = self.original * frequencies / (2 * math.pi)  # in the original context
            fast = ((turns - self.low) / (self.high - self.low)).clip(0, 1)
            frequencies = frequencies * (fast + (1 - fast) / self.factor)
        return np.outer(np.arange(context), frequencies)

    def turns(self, HS: int, context: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of the angles, in float32."""
        angles = self.angles(HS, context)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@lru_cache(8)
def tables(rope: Rope, HS: int, context: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as tensors."""
    with torch.inference_mode(False):
        cosines, sines = (torch.from_numpy(table).to(device) for table in rope.turns(HS, context))
        return cosines, sines


def read_rope(fields: Mapping[str, Any], origin: str) -> Rope:
    """Base and scaling; new versions of transformers keep both in rope_parameters, over which rope_scaling has
    precedence."""
    both = [fields.get(name) or {} for name in ("rope_scaling", "rope_parameters")]
    for one in both:
        if not isinstance(one, dict):
            raise RungError(f"{origin} gives rope_scaling as {shown(one)}; it must be an object.")
    given = both[0] or both[1]
    theta = next((one["rope_theta"] for one in (*both, fields) if one.get("rope_theta") is not None), 1e4)
    f = Fields({**given, "rope_theta": theta}, origin)
    base = f.number("rope_theta", 1e4)
    if not 0 < base < math.inf:
        raise RungError(f"{origin} gives rope_theta as {shown(theta)}; it must be a number above 0.")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return Rope(base)
    if kind not in ("linear", "llama3"):
        raise RungError(f"{origin} scales rotary positions by {shown(kind)}; rung has default, linear and llama3.")
    original = fields.get("original_max_position_embeddings", fields.get("max_position_embeddings", 8192))
    factor, low, high, original = (
        f.number(name, default)
        for name, default in (
            ("factor", 1.0), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0),
            ("original_max_position_embeddings", original),
        )
    )  # fmt: skip
    if factor <= 0 or high <= low:
        raise RungError(f"{origin} scales rotary positions by factors that are not positive and ascending.")
    return Rope(base, kind, factor, low, high, original)
