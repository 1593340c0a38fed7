"""Causal self-attention in which groups of query heads share the heads of keys and values, with or without a window."""

from __future__ import annotations

from collections.abc import Mapping

from gpuless.base.expressions import Number
from rung.arrays import Array, arange, copy_of, from_numbers, hide, namespace, repeated, softmax, transpose
from rung.inputs import BELOW, FAR, all_alike, levels, one_feature, rows_alike, times
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes
from rung.precision import float32_products

QUERIES_AT_ONCE = 1024  # bounds the reference's memory at T in the thousands


def heads_of(queries: Array, v: Values) -> Array:
    """The view (B, NH, T, HS) of queries (B, T, NH * HS)."""
    B, T = queries.shape[:2]
    return queries.reshape(B, T, int(v["NH"]), int(v["HS"])).swapaxes(1, 2)


def merged(o: Array) -> Array:
    """(B, NH, T, HS) -> (B, T, NH * HS)"""
    return o.swapaxes(1, 2).reshape(o.shape[0], o.shape[2], -1)


def newest(cache: Array, v: Values) -> Array:
    """The view (B, NKV, T, HS) of the first T tokens of a cache (B, NKV, S, HS)."""
    return cache[:, :, : int(v["T"])]


def shared(kept: Array, NH: int) -> Array:
    """(B, NKV, T, HS) -> (B, NH, T, HS): neighbouring query heads share a head."""
    return repeated(kept, NH // kept.shape[1], 1)


def seen(T: int, window: int, start: int, end: int, like: Array) -> Array:
    """The mask of the keys of queries start ... end - 1: (end - start, T)."""
    key = arange(T, like)
    query = key[start:end, None]
    return (key <= query) & (key > query - window)


def reference(t: Tensors, v: Values) -> Tensors:
    q, T, window = t["q"], int(v["T"]), int(v["window"])
    k, values = (shared(t[name], q.shape[1]) for name in ("k", "v"))
    o = []
    for start in range(0, T, QUERIES_AT_ONCE):
        end = min(T, start + QUERIES_AT_ONCE)
        scores = q[:, :, start:end] @ transpose(k) * v["scale"]
        o.append(softmax(hide(scores, ~seen(T, window, start, end, q))) @ values)
    return {"out": merged(namespace(q).concatenate(o, axis=2))}


def cost(v: Values, size: int) -> Cost:
    T, full = v["T"], min(v["T"], v["window"])
    scores = full * (full + 1) / 2 + (T - full) * full
    heads = 2 * v["NH"] + 2 * v["NKV"]
    return Cost(flops=4 * v["B"] * v["NH"] * v["HS"] * scores, bytes=v["B"] * T * heads * v["HS"] * size)


def torch_masked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int, dtype: str
) -> Array:
    NH, T = q.shape[1:3]
    with float32_products(dtype):
        scores = q @ shared(k, NH).transpose(2, 3) * scale
        scores.masked_fill_(~seen(T, window, 0, T, q), -torch.inf)
        return merged(scores.softmax(3) @ shared(v, NH))


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int) -> Array:
    T, causal = q.shape[2], window >= q.shape[2]
    mask = None if causal else seen(T, window, 0, T, q)
    return merged(
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True)
    )


def climbing(k: Array, v: Mapping[str, Number]) -> Array:
    """Keys that grow towards the end, so that the running maximum changes in every tile."""
    return k * namespace(k).linspace(0.1, 6.0, k.shape[2], device=k.device)[:, None]


def last_far_above(k: Array, v: Mapping[str, Number]) -> Array:
    """Keys with scores far below zero, except one far above: a head's last, and the next head's first."""
    side = namespace(k).full_like(k, -1.7)
    side[:, 0::2, int(v["T"]) - 1] = 1.7
    side[:, 1::2, 0] = 1.7
    return side + 0.1 * k


def queries_of_either_sign(q: Array, v: Mapping[str, Number]) -> Array:
    """With `keys_far_apart`, scores of hundreds in one head, of thousands in the next, of one sign for a query."""
    NH = int(v["NH"])
    turn = arange(q.shape[1], q)[:, None] + arange(NH, q)
    changed = copy_of(q.reshape(*q.shape[:2], NH, -1))
    changed[..., -1] = namespace(q).where(turn % 2 == 0, 1, -1) / float(v["scale"]) * 2.0
    return changed.reshape(q.shape)


def keys_far_apart(k: Array, v: Mapping[str, Number]) -> Array:
    apart = namespace(k).zeros_like(k)
    size = from_numbers(FAR, k)[arange(k.shape[1], k) % len(FAR)] / 2.0
    apart[..., -1] = size[:, None] * levels(k.shape[2], k)
    return apart


def left_behind(kept: Array, v: Mapping[str, Number]) -> Array:
    """Large values after the text's tokens, as in a cache that was used before."""
    xp, behind = namespace(kept), arange(kept.shape[2], kept)[:, None] >= v["T"]
    return xp.where(behind, 3e4 * xp.sign(kept), kept)


NOT_TF32 = ("f32", "f16", "bf16")

OPERATION = Operation(
    name="grouped_attention",
    summary="out = softmax(q k^T scale, over the keys up to the query's own) v; NH / NKV query heads share keys",
    story="Groups of queries share keys and values: less memory to read, and a smaller cache.",
    dims=("B", "T", "NH", "NKV", "HS"),
    derived={"S": "T"},  # the cache's capacity
    scalars={"scale": "1 / sqrt(HS)", "window": "T"},
    rules=("NH % NKV == 0", "T <= S"),
    operands=(
        Operand("queries", ("B", "T", "NH * HS")),
        Operand("q", ("B", "NH", "T", "HS"), view_of="queries", view=heads_of),
        Operand("k_cache", ("B", "NKV", "S", "HS")),
        Operand("v_cache", ("B", "NKV", "S", "HS")),
        Operand("k", ("B", "NKV", "T", "HS"), view_of="k_cache", view=newest),
        Operand("v", ("B", "NKV", "T", "HS"), view_of="v_cache", view=newest),
        Operand("out", ("B", "T", "NH * HS"), role="out", apart=1),  # means of few keys are larger than those of many
    ),
    reference=reference,
    cost=cost,
    reduction="HS * T",  # two nested sums
    cases=(
        Case("odd", dict(B=2, T=7, NH=6, NKV=2, HS=32, S=9), change={"k_cache": left_behind, "v_cache": left_behind}),
        Case("one token", dict(B=1, T=1, NH=3, NKV=1, HS=64), dtypes=NOT_TF32),
        Case("2^5 + 1, heads of 64", dict(B=1, T=33, NH=4, NKV=2, HS=64, scale=0.2)),
        Case("heads of 128", dict(B=1, T=35, NH=2, NKV=1, HS=128, scale=0.05)),
        Case("a group of 8", dict(B=1, T=18, NH=8, NKV=1, HS=64)),
        Case("no groups", dict(B=2, T=19, NH=2, NKV=2, HS=64, S=24)),
        Case("prime", dict(B=1, T=67, NH=3, NKV=1, HS=64)),
        Case("2^7 + 2", dict(B=1, T=130, NH=2, NKV=1, HS=64)),
        Case("a window", dict(B=1, T=67, NH=3, NKV=1, HS=64, window=13)),
        Case("a window of one", dict(B=1, T=9, NH=2, NKV=1, HS=64, window=1)),
        Case("a window across tiles", dict(B=1, T=150, NH=2, NKV=1, HS=64, window=65)),
        Case("a window, heads of 128", dict(B=1, T=70, NH=2, NKV=1, HS=128, window=20)),
        Case("heads of 80", dict(B=1, T=9, NH=2, NKV=1, HS=80, scale=0.17)),
        Case("heads of 96", dict(B=1, T=11, NH=4, NKV=2, HS=96)),
        Case("heads of 25", dict(B=1, T=9, NH=4, NKV=2, HS=25)),
        Case("heads of 1", dict(B=1, T=5, NH=2, NKV=1, HS=1), dtypes=NOT_TF32),
        Case("heads of 16", dict(B=3, T=31, NH=5, NKV=1, HS=16)),
        # Not in tf32: with 10 bits of mantissa, scores of 16 and more give probabilities errors of several per cent.
        Case("large values", dict(B=1, T=18, NH=2, NKV=1, HS=64), magnitude=4.0, dtypes=NOT_TF32),
        Case("climbing scores", dict(B=1, T=67, NH=2, NKV=1, HS=64, scale=1.3), dtypes=NOT_TF32,
             change={"k_cache": climbing}),
        Case("scores far below and above zero", dict(B=2, T=70, NH=4, NKV=2, HS=64, scale=1.0), dtypes=NOT_TF32,
             change={"queries": all_alike(1.7), "k_cache": last_far_above}),
        Case("scores far apart", dict(B=1, T=37, NH=4, NKV=2, HS=64, scale=1.0),
             change={"queries": queries_of_either_sign, "k_cache": keys_far_apart}),
        Case("up to the format's end", dict(B=1, T=23, NH=2, NKV=1, HS=64, scale=8e-6),
             change={"k_cache": times(15000.0), "v_cache": times(15000.0)}),
        Case("two batches of several tiles", dict(B=2, T=140, NH=2, NKV=1, HS=64, S=150), where="file"),
        Case("heads of 128, several tiles", dict(B=1, T=130, NH=2, NKV=1, HS=128), where="alone"),
        Case("300 tokens in a window", dict(B=1, T=300, NH=2, NKV=1, HS=64, window=130), where="alone"),
        Case("SmolLM2-135M", dict(B=2, T=199, NH=9, NKV=3, HS=64, S=256), where="cuda"),
        Case("Llama-3.2-1B", dict(B=2, T=1024, NH=32, NKV=8, HS=64, S=1100), where="cuda"),
        Case("Qwen3-0.6B", dict(B=1, T=1000, NH=16, NKV=8, HS=128), where="cuda"),
        Case("a window of 500", dict(B=1, T=2000, NH=16, NKV=8, HS=128, window=500), where="cuda"),
        *sizes(
            dict(B=67, T=3, NH=2, NKV=1, HS=64),
            dict(B=1, T=2, NH=32, NKV=8, HS=64),
            dict(B=1, T=2, NH=40, NKV=8, HS=128),
        ),
    ),
    edges={
        "rows of zeros": {"queries": rows_alike(0.0), "k_cache": rows_alike(0.0)},
        "scores far below zero": {"queries": one_feature(-BELOW), "k_cache": one_feature(BELOW)},
    },
    shapes={
        "b4t64": dict(B=4, T=64, NH=32, NKV=8, HS=64),
        "b8t1024": dict(B=8, T=1024, NH=32, NKV=8, HS=64),
        "b8t1024h128": dict(B=8, T=1024, NH=16, NKV=8, HS=128),
    },
    libraries=(
        # In 16 bits its scores are rounded before the softmax, which exceeds the bound.
        Library("torch", torch_masked, ("f32",), note="Two products, a mask and a softmax in torch."),
        Library("sdpa", sdpa, note="torch's scaled_dot_product_attention with enable_gqa."),
    ),
    races=(
        Race("b4t64", ("f32", "bf16"), patience=0.2),
        Race("b8t1024", ("f32", "bf16"), patience=0.2),
        Race("b8t1024h128", ("bf16",), patience=0.2),
    ),
    roles=(Role("grouped_attention"),),
)  # fmt: skip
