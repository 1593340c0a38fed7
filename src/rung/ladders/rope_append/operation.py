"""From the QKV product to attention: q and k normalised per head (or not) and turned, k and v stored in the cache."""

from __future__ import annotations

import numpy as np

from rung.arrays import Array, arange, copy_of, kind_of, rms_factor, split, to_kind
from rung.arrays import turned as rotated
from rung.inputs import ROW_SCALES, full, rows_alike, rows_scaled, times, uneven
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Tensors, Values, sizes


def normed(x: Array, weight: Array | None, eps: float) -> Array:
    return x if weight is None else x * rms_factor(x, eps) * weight


def turned(
    qkv: Array, q_weight: Array | None, k_weight: Array | None, cosines: Array,
    sines: Array, past: Array, NH: int, NKV: int, HS: int, interleaved: float, eps: float,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """q (B, T, NH, HS), k and v (B, T, NKV, HS), and the position of each token (B, T)."""
    B, T = qkv.shape[:2]
    q, k, v = split(qkv.reshape(B, T, NH + 2 * NKV, HS), 2, NH, NKV, NKV)
    at = past[:, None] + arange(T, qkv)
    cos, sin = cosines[at][:, :, None], sines[at][:, :, None]  # (B, T, 1, HS / 2)
    q = rotated(normed(q, q_weight, eps), cos, sin, interleaved)
    return q, rotated(normed(k, k_weight, eps), cos, sin, interleaved), v, at


def stored(cache: Array, new: Array, at: Array) -> Array:
    """The cache (B, NKV, S, HS) with the tokens `new` (B, T, NKV, HS) at their positions."""
    cache[arange(len(cache), cache)[:, None], :, at] = to_kind(new, kind_of(cache))
    return cache


def reference(t: Tensors, v: Values) -> Tensors:
    NH, NKV, HS = (int(v[n]) for n in ("NH", "NKV", "HS"))
    tables = (t["cosines"], t["sines"], t["past"])
    q, k, values, at = turned(
        t["qkv"], t.get("q_weight"), t.get("k_weight"), *tables, NH, NKV, HS, v["interleaved"], v["eps"]
    )
    k_cache, v_cache = (stored(copy_of(t[n]), new, at) for n, new in (("k_cache", k), ("v_cache", values)))
    return {"q": q, "k_cache": k_cache, "v_cache": v_cache}


def cost(v: Values, size: int) -> Cost:
    tokens, heads = v["B"] * v["T"], v["NH"] + 2 * v["NKV"]
    turned_ones = tokens * (v["NH"] + v["NKV"]) * v["HS"]
    return Cost(flops=3 * turned_ones, bytes=2 * tokens * heads * v["HS"] * size + 4 * v["T"] * v["HS"])


def angles(v: Values) -> Array:
    """(S, HS / 2): Llama 3's unscaled frequencies."""
    return np.outer(np.arange(v["S"]), 500000.0 ** -(np.arange(0, v["HS"], 2) / v["HS"]))


def torch_separate(
    qkv: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, past: torch.Tensor, k_cache: torch.Tensor,
    v_cache: torch.Tensor, NH: int, NKV: int, HS: int, interleaved: int, eps: float,
    q_weight: torch.Tensor | None = None, k_weight: torch.Tensor | None = None,
) -> Tensors:  # fmt: skip
    q_w, k_w = (None if w is None else w.float() for w in (q_weight, k_weight))
    q, k, v, at = turned(qkv.float(), q_w, k_w, cosines, sines, past, NH, NKV, HS, interleaved, eps)
    stored(k_cache, k, at)
    stored(v_cache, v, at)
    return {"q": q.to(qkv.dtype)}


OPERATION = Operation(
    name="rope_append",
    summary="q and k of qkv turned by their positions' angles, after RMSNorm per head if weights are given; k and v "
    "go into the cache",
    story="The QKV product's output is read once, and each head is written where attention reads it.",
    dims=("B", "T", "NH", "NKV", "HS", "S"),
    scalars={"interleaved": 0, "eps": 1e-6},
    rules=("HS % 2 == 0", "T <= S"),
    operands=(
        Operand("qkv", ("B", "T", "(NH + 2 * NKV) * HS")),
        Operand("q_weight", ("HS",), optional=True, nullable=True, constant=True),
        Operand("k_weight", ("HS",), optional=True, nullable=True, constant=True),
        Operand("cosines", ("S", "HS // 2"), dtype="f32", constant=True, make=lambda v, _: np.cos(angles(v))),
        Operand("sines", ("S", "HS // 2"), dtype="f32", constant=True, make=lambda v, _: np.sin(angles(v))),
        Operand("past", ("B",), dtype="i32", make=full),  # tokens before the new ones
        Operand("q", ("B", "T", "NH", "HS"), role="out"),
        Operand("k_cache", ("B", "NKV", "S", "HS"), role="inout"),
        Operand("v_cache", ("B", "NKV", "S", "HS"), role="inout"),
    ),
    reference=reference,
    cost=cost,
    reduction="HS",
    cases=(
        Case("one pair", dict(B=1, T=1, NH=1, NKV=1, HS=2, S=1)),
        Case("odd", dict(B=3, T=2, NH=6, NKV=3, HS=6, S=9), change={"past": uneven}),
        Case("odd, neighbours", dict(B=2, T=3, NH=5, NKV=1, HS=6, S=7, interleaved=1), change={"past": uneven}),
        Case("no past", dict(B=1, T=9, NH=2, NKV=2, HS=16, S=9)),
        Case("heads of 64", dict(B=2, T=2, NH=9, NKV=3, HS=64, S=20), change={"past": uneven}),
        Case("heads of 64, neighbours", dict(B=1, T=1, NH=4, NKV=2, HS=64, S=5, interleaved=1)),
        Case("heads of 128", dict(B=1, T=3, NH=4, NKV=2, HS=128, S=12)),
        Case("heads of 128, neighbours", dict(B=2, T=1, NH=2, NKV=1, HS=128, S=6, interleaved=1)),
        Case("heads of 80", dict(B=1, T=3, NH=3, NKV=1, HS=80, S=7)),
        Case("heads of 8", dict(B=2, T=33, NH=4, NKV=2, HS=8, S=40), change={"past": uneven}),
        Case("heads of 34, neighbours", dict(B=1, T=2, NH=3, NKV=1, HS=34, S=4, interleaved=1)),
        Case("heads of 258", dict(B=1, T=2, NH=1, NKV=1, HS=258, S=3)),
        Case("small and large heads", dict(B=2, T=4, NH=4, NKV=2, HS=32, S=6),
             change={"qkv": rows_scaled(*ROW_SCALES)}),
        Case("another eps", dict(B=1, T=4, NH=4, NKV=2, HS=64, S=6, eps=2e-2),
             change={"qkv": rows_scaled(0.02, 0.1, 1.0)}),
        Case("up to the format's end", dict(B=1, T=2, NH=3, NKV=1, HS=64, S=3), change={"qkv": times(10000.0)}),
        Case("300 tokens", dict(B=3, T=100, NH=1, NKV=1, HS=4, S=120), where="alone", change={"past": uneven}),
        Case("Llama-3.2-1B", dict(B=2, T=129, NH=32, NKV=8, HS=64, S=256), where="cuda", change={"past": uneven}),
        Case("Qwen3-0.6B", dict(B=3, T=65, NH=16, NKV=8, HS=128, S=128), where="cuda", change={"past": uneven}),
        *sizes(
            dict(B=67, T=1, NH=3, NKV=1, HS=8, S=3),
            dict(B=1, T=2, NH=32, NKV=8, HS=64, S=4),
            dict(B=1, T=600, NH=1, NKV=1, HS=8, S=601),
            dict(B=1, T=1, NH=1, NKV=1, HS=256, S=2),
        ),
    ),
    edges={"rows of zeros": {"qkv": rows_alike(0.0)}},
    shapes={
        "step": dict(B=1, T=1, NH=32, NKV=8, HS=64, S=1024),
        "b64": dict(B=64, T=1, NH=32, NKV=8, HS=64, S=1024),
        "b8t1024": dict(B=8, T=1024, NH=32, NKV=8, HS=64, S=1024),
    },
    libraries=(Library("torch", torch_separate, note="As written, in float32."),),
    races=(Race("step", ("bf16",)), Race("b64", ("f32", "bf16")), Race("b8t1024", ("f32", "bf16"))),
)  # fmt: skip
