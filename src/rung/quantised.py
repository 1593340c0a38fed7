"""Keys and values in eight bits: integers, and a scale for each head and position."""

from __future__ import annotations

from rung.arrays import Array, namespace, to_float64
from rung.operation import Tensors

CACHES = ("k_cache", "v_cache")
EIGHT_BIT_CACHES = ("k_cache_q", "v_cache_q", "k_cache_s", "v_cache_s")


def widened(t: Tensors) -> list[Array]:
    """The numbers that the integers and scales stand for."""
    return [t[f"{name}_q"] * t[f"{name}_s"][..., None] for name in CACHES]


def with_new(found: Tensors, t: Tensors, new: Array) -> Tensors:
    """The caches after a step that has written the positions `new`: their largest number is 127 units, and their
    integers are not rounded."""
    caches = {}
    for name in CACHES:
        xp = namespace(new)
        units = xp.where(new, xp.amax(abs(found[name]), axis=-1) / 127, t[f"{name}_s"])
        whole = found[name] / xp.where(units == 0, 1.0, units)[..., None]
        caches[f"{name}_s"] = units
        caches[f"{name}_q"] = xp.where(new[..., None], whole, to_float64(t[f"{name}_q"]))
    return caches
