"""Attention of new tokens over cached keys and values that groups of query heads share."""

from __future__ import annotations

from collections.abc import Mapping

from gpuless.base.expressions import Number
from rung.arrays import Array, arange, copy_of, hide, namespace, repeated, softmax, transpose
from rung.inputs import (
    BELOW,
    all_alike,
    climbing,
    full,
    keys_far_apart,
    left_behind,
    one_far_above,
    one_feature,
    rows_alike,
    times,
    uneven,
)
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes
from rung.precision import float32_products


def heads_of(queries: Array, v: Values) -> Array:
    """The view (B, NH, T, HS) of queries (B, T, NH * HS)."""
    B, T = queries.shape[:2]
    return queries.reshape(B, T, int(v["NH"]), int(v["HS"])).swapaxes(1, 2)


def merged(o: Array) -> Array:
    """(B, NH, T, HS) -> (B, T, NH * HS)"""
    return o.swapaxes(1, 2).reshape(o.shape[0], o.shape[2], -1)


def shared(kept: Array, NH: int) -> Array:
    """(B, NKV, S, HS) -> (B, NH, S, HS): neighbouring query heads share a head."""
    return repeated(kept, NH // kept.shape[1], 1)


def seen(past: Array, T: int, S: int, window: int) -> Array:
    """The mask of each query's keys: (B, 1, T, S)."""
    query = past[:, None, None, None] + arange(T, past)[:, None]
    key = arange(S, past)
    return (key <= query) & (key > query - window)


def attended(
    q: Array, k: Array, v: Array, past: Array, scale: float, window: int
) -> Array:
    NH, T, S = q.shape[1], q.shape[2], k.shape[2]
    scores = hide(q @ transpose(shared(k, NH)) * scale, ~seen(past, T, S, window))
    return merged(softmax(scores) @ shared(v, NH))


def reference(t: Tensors, v: Values) -> Tensors:
    return {"out": attended(t["q"], t["k"], t["v"], t["past"], v["scale"], int(v["window"]))}


def cost(v: Values, size: int) -> Cost:
    keys = min(v["S"], v["window"])
    hidden = v["T"] * (v["T"] - 1) / 2 if keys == v["S"] else 0  # masked among the new tokens
    read = min(v["S"], keys + v["T"] - 1)
    return Cost(
        flops=4 * v["B"] * v["NH"] * v["HS"] * (v["T"] * keys - hidden),
        bytes=2 * v["B"] * v["HS"] * (v["NKV"] * read + v["NH"] * v["T"]) * size,
    )


def torch_masked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: torch.Tensor, scale: float, window: int, dtype: str
) -> Array:
    with float32_products(dtype):
        return attended(q, k, v, past, scale, window)


def sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: torch.Tensor, scale: float, window: int
) -> Array:
    mask = seen(past, q.shape[2], k.shape[2], window)
    return merged(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True))


def queries_of_either_sign(q: Array, v: Mapping[str, Number]) -> Array:
    """With `keys_far_apart`, scores of hundreds in one sequence, of thousands in the next, of one sign for a query."""
    NH = int(v["NH"])
    turn = arange(q.shape[1], q)[:, None] + arange(NH, q)
    changed = copy_of(q.reshape(*q.shape[:2], NH, -1))
    changed[..., -1] = namespace(q).where(turn % 2 == 0, 1, -1) / float(v["scale"]) * 2.0
    return changed.reshape(q.shape)


OPERATION = Operation(
    name="grouped_cached_attention",
    summary="out = softmax(q k^T scale, over the cached keys up to the query's own) v; NH / NKV query heads share keys",
    story="Each cached key is read once for all queries of its group: the more of them, the more work per byte.",
    dims=("B", "T", "NH", "NKV", "HS", "S"),
    scalars={"scale": "1 / sqrt(HS)", "window": "S"},
    rules=("NH % NKV == 0", "T <= S"),
    operands=(
        Operand("queries", ("B", "T", "NH * HS")),
        Operand("q", ("B", "NH", "T", "HS"), view_of="queries", view=heads_of),
        # The cache: S tokens, including the new ones; the memory after them is not read.
        Operand("k", ("B", "NKV", "S", "HS")),
        Operand("v", ("B", "NKV", "S", "HS")),
        Operand("past", ("B",), dtype="i32", make=full),  # tokens before the new ones
        Operand("out", ("B", "T", "NH * HS"), role="out"),
    ),
    reference=reference,
    cost=cost,
    reduction="HS * S",  # two nested sums
    cases=(
        Case("one key", dict(B=1, T=1, NH=2, NKV=1, HS=64, S=1)),
        Case("odd", dict(B=3, T=1, NH=6, NKV=2, HS=64, S=7), change={"past": uneven}),
        Case("several new tokens", dict(B=2, T=5, NH=3, NKV=1, HS=64, S=33),
             change={"past": uneven, "k": left_behind, "v": left_behind}),
        Case("no past", dict(B=1, T=9, NH=2, NKV=1, HS=64, S=9)),
        Case("prime", dict(B=1, T=1, NH=3, NKV=1, HS=48, S=67)),
        Case("2^8 + 1 keys", dict(B=1, T=1, NH=4, NKV=2, HS=64, S=257, scale=0.2)),
        Case("heads of 128", dict(B=1, T=2, NH=4, NKV=2, HS=128, S=35, scale=0.05)),
        Case("a group of 16", dict(B=1, T=1, NH=16, NKV=1, HS=64, S=40)),
        Case("no groups", dict(B=2, T=1, NH=2, NKV=2, HS=64, S=21), change={"past": uneven}),
        Case("heads of 80", dict(B=1, T=1, NH=4, NKV=2, HS=80, S=40)),
        Case("heads of 1", dict(B=1, T=2, NH=2, NKV=1, HS=1, S=5)),
        Case("a head of 160", dict(B=1, T=1, NH=1, NKV=1, HS=160, S=9)),
        Case("heads of 25", dict(B=2, T=1, NH=4, NKV=2, HS=25, S=19, scale=0.41), change={"past": uneven}),
        Case("a window", dict(B=3, T=2, NH=3, NKV=1, HS=64, S=67, window=13), change={"past": uneven}),
        Case("a window of one", dict(B=1, T=3, NH=2, NKV=1, HS=64, S=17, window=1)),
        Case("large values", dict(B=1, T=1, NH=2, NKV=1, HS=64, S=18), magnitude=4.0),
        Case("climbing scores", dict(B=2, T=1, NH=4, NKV=2, HS=64, S=67, scale=1.3), change={"k": climbing}),
        Case("scores far below and above zero", dict(B=2, T=2, NH=2, NKV=1, HS=64, S=131, scale=1.0),
             change={"queries": all_alike(1.7), "k": one_far_above}),
        Case("scores far apart", dict(B=2, T=2, NH=2, NKV=1, HS=64, S=131, scale=1.0),
             change={"queries": queries_of_either_sign, "k": keys_far_apart}),
        Case("up to the format's end", dict(B=1, T=1, NH=4, NKV=2, HS=64, S=23, scale=8e-6),
             change={"k": times(15000.0), "v": times(15000.0)}),
        Case("one key far above many", dict(B=2, T=2, NH=2, NKV=1, HS=64, S=300, scale=1.0), where="alone",
             change={"queries": all_alike(1.7), "k": one_far_above}),
        Case("a context of 1024", dict(B=1, T=2, NH=4, NKV=1, HS=64, S=1024), where="alone"),
        Case("seventy sequences", dict(B=70, T=1, NH=2, NKV=1, HS=32, S=75), where="file", change={"past": uneven}),
        Case("many new tokens", dict(B=3, T=12, NH=3, NKV=1, HS=64, S=40), where="file", change={"past": uneven}),
        Case("Llama-3.2-1B", dict(B=4, T=1, NH=32, NKV=8, HS=64, S=1024), where="cuda", change={"past": uneven}),
        Case("Qwen3-0.6B", dict(B=3, T=3, NH=16, NKV=8, HS=128, S=700), where="cuda", change={"past": uneven}),
        Case("SmolLM2-135M", dict(B=2, T=1, NH=9, NKV=3, HS=64, S=2000), where="cuda", change={"past": uneven}),
        Case("a window of 500", dict(B=2, T=2, NH=32, NKV=8, HS=128, S=2000, window=500), where="cuda",
             change={"past": uneven}),
        *sizes(
            dict(B=67, T=1, NH=4, NKV=2, HS=32, S=5),
            dict(B=1, T=1, NH=32, NKV=8, HS=64, S=5),
            dict(B=1, T=1, NH=40, NKV=8, HS=128, S=5),
            dict(B=1, T=40, NH=2, NKV=1, HS=32, S=45),
        ),
    ),
    edges={
        "rows of zeros": {"queries": rows_alike(0.0), "k": rows_alike(0.0)},
        "scores far below zero": {"queries": one_feature(-BELOW), "k": one_feature(BELOW)},
    },
    shapes={
        "b1s1024": dict(B=1, T=1, NH=32, NKV=8, HS=64, S=1024),
        "b1s8192": dict(B=1, T=1, NH=32, NKV=8, HS=64, S=8192),
        "b64s1024": dict(B=64, T=1, NH=32, NKV=8, HS=64, S=1024),
        "b64s1024h128": dict(B=64, T=1, NH=16, NKV=8, HS=128, S=1024),
    },
    libraries=(
        # In 16 bits its scores are rounded before the softmax, which exceeds the bound.
        Library("torch", torch_masked, ("f32",), note="Two products, a mask and a softmax in torch."),
        # In 16 bits torch's kernel reads cache rows that the mask hides, where a mask has several rows.
        Library("sdpa", sdpa, needs=("T == 1",), note="torch's scaled_dot_product_attention, masked, with enable_gqa."),
    ),
    races=(
        Race("b1s1024", ("f32", "bf16")),
        Race("b1s8192", ("bf16",)),
        Race("b64s1024", ("f32", "bf16")),
        Race("b64s1024h128", ("bf16",)),
    ),
    roles=(Role("grouped_cached_attention"),),
)  # fmt: skip
