"""One new token per text, from the QKV product to attention's output: norms, rotation, the cache, attention."""

from __future__ import annotations

import numpy as np

from rung.arrays import (
    Array,
    Generator,
    arange,
    copy_of,
    hide,
    integers,
    kind_of,
    repeated,
    rms_factor,
    softmax,
    split,
    to_kind,
    transpose,
)
from rung.arrays import turned as rotated
from rung.inputs import ROW_SCALES, full, rows_alike, rows_scaled, times, uneven
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes
from rung.quantised import CACHES, widened, with_new


def turned(
    x: Array, weight: Array | None, cos: Array, sin: Array, v: Values
) -> Array:
    """x (B, heads, HS), normalised if there is a weight, and turned; pairs are of both halves, or neighbours."""
    if weight is not None:
        x = x * rms_factor(x, v["eps"]) * weight
    return rotated(x, cos, sin, v["interleaved"])


def new_heads(t: Tensors, v: Values) -> tuple[Array, Array, Array]:
    """q (B, NH, HS), k and v (B, NKV, HS) of the new tokens."""
    NH, NKV, HS, B = (int(v[n]) for n in ("NH", "NKV", "HS", "B"))
    q, k, value = split(t["qkv"].reshape(B, NH + 2 * NKV, HS), 1, NH, NKV, NKV)
    cos, sin = (t[n][t["past"]][:, None] for n in ("cosines", "sines"))  # (B, 1, HS / 2)
    return turned(q, t.get("q_weight"), cos, sin, v), turned(k, t.get("k_weight"), cos, sin, v), value


def stored(cache: Array, new: Array, past: Array) -> Array:
    """The cache (B, NKV, S, HS) with one more token per text."""
    cache[arange(len(cache), cache), :, past] = to_kind(new, kind_of(cache))
    return cache


def kept(t: Tensors) -> list[Array]:
    """Keys and values of earlier tokens."""
    if "k_cache" in t:
        return [copy_of(t[n]) for n in CACHES]
    return widened(t)


def new_scales(t: Tensors, v: Values) -> Array:
    """The positions at which scales are written: (B, 1, S)."""
    return (arange(int(v["S"]), t["past"]) == t["past"][:, None])[:, None]


def in_eight_bits(name: str) -> list[Operand]:
    """Integers, and a scale for each head and position."""

    def scales(v: Values, generator: Generator) -> Array:
        # Numbers up to 127 have a standard deviation of 73, and those of the caches one of about 1.
        return 2.0 ** -to_kind(integers(generator, 6, 8, *(int(v[n]) for n in ("B", "NKV", "S"))), "float32")

    def whole(v: Values, generator: Generator) -> Array:
        return integers(generator, -127, 128, *(int(v[n]) for n in ("B", "NKV", "S", "HS")), kind="int8")

    return [
        Operand(f"{name}_q", ("B", "NKV", "S", "HS"), role="inout", dtype="i8", optional=True, instead=name, make=whole,
                changed=lambda t, v: new_scales(t, v)[..., None], rounded=True),
        Operand(f"{name}_s", ("B", "NKV", "S"), role="inout", dtype="f32", optional=True, make=scales,
                changed=new_scales),
    ]  # fmt: skip


def reference(t: Tensors, v: Values) -> Tensors:
    q, k, value = new_heads(t, v)
    keys, values = (stored(x, new, t["past"]) for x, new in zip(kept(t), (k, value), strict=True))
    shared = int(v["NH"]) // int(v["NKV"])
    scores = (q[:, :, None] @ transpose(repeated(keys, shared, 1)))[:, :, 0] * v["scale"]  # (B, NH, S)
    at, past = arange(scores.shape[-1], scores), t["past"][:, None, None]
    p = softmax(hide(scores, (at > past) | (at <= past - v["window"])))
    out = p[:, :, None] @ repeated(values, shared, 1)
    found = {"out": out[:, :, 0].reshape(len(q), -1), "k_cache": keys, "v_cache": values}
    return found | with_new(found, t, new_scales(t, v)) if "k_cache_q" in t else found


def cost(v: Values, size: int) -> Cost:
    keys = min(v["S"], v["window"])
    moved = 2 * v["NKV"] * (keys + 1) + 2 * v["NH"]
    return Cost(flops=4 * v["B"] * v["NH"] * v["HS"] * keys, bytes=v["B"] * v["HS"] * (moved * size + 4))


def angles(v: Values) -> Array:
    """(S, HS / 2): Llama 3's unscaled frequencies."""
    return np.outer(np.arange(v["S"]), 500000.0 ** -(np.arange(0, v["HS"], 2) / v["HS"]))


def torch_separate(
    qkv: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, past: torch.Tensor, k_cache: torch.Tensor,
    v_cache: torch.Tensor, B: int, NH: int, NKV: int, HS: int, interleaved: int, eps: float, scale: float, window: int,
    q_weight: torch.Tensor | None = None, k_weight: torch.Tensor | None = None,
) -> Tensors:  # fmt: skip
    weights = {n: w.float() for n, w in (("q_weight", q_weight), ("k_weight", k_weight)) if w is not None}
    given = {"qkv": qkv.float(), "cosines": cosines, "sines": sines, "past": past, **weights}
    q, k, value = new_heads(given, {"B": B, "NH": NH, "NKV": NKV, "HS": HS, "interleaved": interleaved, "eps": eps})
    stored(k_cache, k, past)
    stored(v_cache, value, past)
    at = torch.arange(k_cache.shape[2], device=past.device)
    mask = (at <= past[:, None]) & (at > past[:, None] - window)
    y = F.scaled_dot_product_attention(
        q[:, :, None].to(qkv.dtype), k_cache, v_cache, attn_mask=mask[:, None, None], scale=scale, enable_gqa=True
    )
    return {"out": y[:, :, 0].flatten(1)}


OPERATION = Operation(
    name="rope_cached_attention",
    summary="q and k of qkv normalised per head if weights are given, and turned; k and v go into the cache; out = "
    "softmax(q k^T scale, over the cached keys) v",
    story="Between the QKV product and attention's projection lies one launch, and the new key never waits for memory.",
    dims=("B", "NH", "NKV", "HS", "S"),
    scalars={"interleaved": 0, "eps": 1e-6, "scale": "1 / sqrt(HS)", "window": "S"},
    rules=("NH % NKV == 0", "HS % 2 == 0"),
    operands=(
        Operand("qkv", ("B", "(NH + 2 * NKV) * HS")),
        Operand("q_weight", ("HS",), optional=True, nullable=True, constant=True),
        Operand("k_weight", ("HS",), optional=True, nullable=True, constant=True),
        Operand("cosines", ("S", "HS // 2"), dtype="f32", constant=True, make=lambda v, _: np.cos(angles(v))),
        Operand("sines", ("S", "HS // 2"), dtype="f32", constant=True, make=lambda v, _: np.sin(angles(v))),
        Operand("past", ("B",), dtype="i32", constant=True, make=full),  # tokens before the new one
        *(Operand(n, ("B", "NKV", "S", "HS"), role="inout", optional=True, counted=True) for n in CACHES),
        *(operand for n in CACHES for operand in in_eight_bits(n)),
        Operand("out", ("B", "NH * HS"), role="out"),
    ),
    reference=reference,
    cost=cost,
    reduction="HS * S",  # two nested sums
    cases=(
        Case("the first token", dict(B=1, NH=2, NKV=1, HS=64, S=1)),
        Case("odd", dict(B=3, NH=6, NKV=3, HS=6, S=9), change={"past": uneven}),
        Case("neighbours", dict(B=2, NH=5, NKV=1, HS=16, S=7, interleaved=1), change={"past": uneven}),
        Case("heads of 64", dict(B=2, NH=9, NKV=3, HS=64, S=40), change={"past": uneven}),
        Case("heads of 128", dict(B=1, NH=4, NKV=2, HS=128, S=35, scale=0.05)),
        Case("heads of 80", dict(B=1, NH=3, NKV=1, HS=80, S=17)),
        Case("2^8 + 1 keys", dict(B=1, NH=4, NKV=2, HS=64, S=257, scale=0.2)),
        Case("a group of 8", dict(B=1, NH=8, NKV=1, HS=32, S=40)),
        Case("no groups", dict(B=2, NH=2, NKV=2, HS=64, S=21, scale=0.41), change={"past": uneven}),
        Case("a window", dict(B=3, NH=3, NKV=1, HS=64, S=67, window=13), change={"past": uneven}),
        Case("a window of one", dict(B=1, NH=2, NKV=1, HS=64, S=17, window=1)),
        Case("small and large heads", dict(B=2, NH=4, NKV=2, HS=32, S=16), change={"qkv": rows_scaled(*ROW_SCALES)}),
        Case("another eps", dict(B=4, NH=4, NKV=2, HS=64, S=6, eps=2e-2), change={"qkv": rows_scaled(0.02, 0.1, 1.0)}),
        Case("large values", dict(B=1, NH=2, NKV=1, HS=64, S=18), magnitude=4.0, dtypes=("f32", "bf16")),
        # The new key is rounded to the cache's format, which scores of 4 times 4 show beyond f16's bounds.
        Case("large values in f16", dict(B=1, NH=2, NKV=1, HS=64, S=18), magnitude=2.0, dtypes=("f16",)),
        Case("up to the format's end", dict(B=1, NH=4, NKV=2, HS=64, S=23, scale=8e-6),
             change={"v_cache": times(15000.0)}),
        Case("a context of 1024", dict(B=1, NH=4, NKV=1, HS=64, S=1024), where="alone"),
        Case("seventy texts", dict(B=70, NH=2, NKV=1, HS=32, S=25), where="alone", change={"past": uneven}),
        Case("Llama-3.2-1B", dict(B=4, NH=32, NKV=8, HS=64, S=1024), where="cuda", change={"past": uneven}),
        Case("Qwen3-0.6B", dict(B=64, NH=16, NKV=8, HS=128, S=300), where="cuda", change={"past": uneven}),
        Case("SmolLM2-135M", dict(B=1, NH=9, NKV=3, HS=64, S=2000), where="cuda"),
        *sizes(
            dict(B=67, NH=4, NKV=2, HS=32, S=3),
            dict(B=1, NH=32, NKV=8, HS=64, S=5),
            dict(B=1, NH=4, NKV=1, HS=128, S=300),
        ),
    ),
    edges={"rows of zeros": {"qkv": rows_alike(0.0)}},
    shapes={
        "smollm2": dict(B=1, NH=9, NKV=3, HS=64, S=256),
        "b1s1024": dict(B=1, NH=32, NKV=8, HS=64, S=1024),
        "b1s8192": dict(B=1, NH=32, NKV=8, HS=64, S=8192),
        "b64s256h128": dict(B=64, NH=16, NKV=8, HS=128, S=256),
    },
    libraries=(
        # In 16 bits its queries are rounded before the product.
        Library("torch", torch_separate, ("f32",), note="As written, then scaled_dot_product_attention."),
    ),
    races=(Race("smollm2", ("bf16",)), Race("b1s1024", ("f32", "bf16")), Race("b64s256h128", ("bf16",))),
    roles=(
        Role("rope_cached_attention", swaps=False),
        Role("eight_bit_rope_cached_attention", operand="k_cache_q", swaps=False),
    ),
)  # fmt: skip
