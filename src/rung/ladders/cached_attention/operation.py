"""Attention of new tokens over cached keys and values; each sequence has its own past length."""

from __future__ import annotations

from collections.abc import Mapping

from gpuless.base.expressions import Number
from rung.arrays import Array, arange, copy_of, hide, namespace, softmax, transpose
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
    scores_alike,
    times,
    uneven,
)
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes
from rung.precision import float32_products


def queries(qkv: Array, v: Values) -> Array:
    """The view (B, NH, T, HS) of the queries inside qkv (B, T, 3 C)."""
    B, T, NH, HS = (int(v[n]) for n in ("B", "T", "NH", "HS"))
    return qkv.reshape(B, T, 3, NH, HS)[:, :, 0].swapaxes(1, 2)


def merged(o: Array) -> Array:
    """(B, NH, T, HS) -> (B, T, C)"""
    return o.swapaxes(1, 2).reshape(o.shape[0], o.shape[2], -1)


def seen(past: Array, T: int, S: int, window: int, first: int) -> Array:
    """The mask of each query's keys: (B, 1, T, S)."""
    query = past[:, None, None, None] + arange(T, past)[:, None]
    key = arange(S, past)
    return (key <= query) & ((key > query - window) | (key < first))


def reference(t: Tensors, v: Values) -> Tensors:
    T, S, window, first = (int(v[n]) for n in ("T", "S", "window", "globals"))
    scores = t["q"] @ transpose(t["k"]) * v["scale"]
    return {"out": merged(softmax(hide(scores, ~seen(t["past"], T, S, window, first))) @ t["v"])}


def cost(v: Values, size: int) -> Cost:
    keys = min(v["S"], v["window"] + v["globals"])
    hidden = v["T"] * (v["T"] - 1) / 2 if keys == v["S"] else 0  # masked among the new tokens
    read = min(v["S"], keys + v["T"] - 1)
    return Cost(
        flops=4 * v["B"] * v["C"] * (v["T"] * keys - hidden), bytes=2 * v["B"] * v["C"] * (read + v["T"]) * size
    )


def torch_masked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: torch.Tensor, scale: float, window: int, globals: int,
    dtype: str, T: int, S: int,
) -> Array:  # fmt: skip
    with float32_products(dtype):
        scores = q @ k.transpose(2, 3) * scale
        scores.masked_fill_(~seen(past, T, S, window, globals), -torch.inf)
        return merged(scores.softmax(3) @ v)


def sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past: torch.Tensor, scale: float, window: int, globals: int,
    T: int, S: int,
) -> Array:  # fmt: skip
    mask = seen(past, T, S, window, globals)
    backends = torch.nn.attention.SDPBackend
    with torch.nn.attention.sdpa_kernel([backends.EFFICIENT_ATTENTION, backends.MATH]):
        return merged(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale))


def queries_of_either_sign(qkv: Array, v: Mapping[str, Number]) -> Array:
    """With `keys_far_apart`, scores of hundreds in one sequence, of thousands in the next, of one sign for a query."""
    turn = arange(qkv.shape[1], qkv)[:, None] + arange(int(v["NH"]), qkv)
    heads = copy_of(qkv.reshape(*qkv.shape[:2], 3, int(v["NH"]), -1))
    heads[:, :, 0, :, -1] = namespace(qkv).where(turn % 2 == 0, 1, -1) / float(v["scale"]) * 2.0
    return heads.reshape(qkv.shape)


OPERATION = Operation(
    name="cached_attention",
    summary="out = softmax(q k^T scale, over the cached keys up to the query's own) v, for every head",
    story="One query reads every cached key: the more warps share the keys, the faster it is.",
    dims=("B", "T", "S", "C", "NH"),
    derived={"HS": "C // NH"},
    scalars={"scale": "1 / sqrt(C // NH)", "window": "S", "globals": 0},
    rules=("C % NH == 0", "T <= S"),
    operands=(
        Operand("qkv", ("B", "T", "3 * C")),
        Operand("q", ("B", "NH", "T", "HS"), view_of="qkv", view=queries),
        # The cache: S tokens, including the new ones; the memory after them is not read.
        Operand("k", ("B", "NH", "S", "HS")),
        Operand("v", ("B", "NH", "S", "HS")),
        Operand("past", ("B",), dtype="i32", make=full),  # tokens before the new ones
        Operand("out", ("B", "T", "C"), role="out"),
    ),
    reference=reference,
    cost=cost,
    reduction="HS * S",  # two nested sums
    cases=(
        Case("one key", dict(B=1, T=1, S=1, C=32, NH=1)),
        Case("odd", dict(B=3, T=1, S=7, C=64, NH=2), change={"past": uneven}),
        Case("several new tokens", dict(B=2, T=5, S=33, C=32, NH=1),
             change={"past": uneven, "k": left_behind, "v": left_behind}),
        Case("no past", dict(B=1, T=9, S=9, C=32, NH=1)),
        Case("prime", dict(B=1, T=1, S=67, C=48, NH=1)),
        Case("2^8 + 1 keys", dict(B=1, T=1, S=257, C=128, NH=2, scale=0.2)),
        Case("heads of 128", dict(B=1, T=2, S=35, C=128, NH=1, scale=0.05)),
        Case("heads of 80", dict(B=1, T=1, S=40, C=160, NH=2)),
        Case("heads of 1", dict(B=1, T=2, S=5, C=2, NH=2)),
        Case("a head of 160", dict(B=1, T=1, S=9, C=160, NH=1)),
        Case("heads of 25", dict(B=2, T=1, S=19, C=50, NH=2, scale=0.41), change={"past": uneven}),
        Case("a window", dict(B=3, T=2, S=67, C=32, NH=1, window=13), change={"past": uneven}),
        Case("a window of one", dict(B=1, T=3, S=17, C=32, NH=1, window=1)),
        Case("a window and the first tokens", dict(B=3, T=3, S=70, C=32, NH=1, window=11, globals=5),
             change={"past": uneven}),
        Case("more first tokens than there are", dict(B=2, T=1, S=21, C=32, NH=1, window=4, globals=30),
             change={"past": uneven}),
        Case("large values", dict(B=1, T=1, S=18, C=32, NH=1), magnitude=4.0),
        Case("scores beyond exp", dict(B=1, T=2, S=37, C=32, NH=1, scale=1.0), magnitude=4.0),
        Case("climbing scores", dict(B=2, T=1, S=67, C=64, NH=2, scale=1.3), change={"k": climbing}),
        Case("scores far below and above zero", dict(B=2, T=2, S=131, C=32, NH=1, scale=1.0),
             change={"qkv": all_alike(2.5), "k": one_far_above}),
        Case("scores far apart", dict(B=2, T=2, S=131, C=32, NH=1, scale=1.0),
             change={"qkv": queries_of_either_sign, "k": keys_far_apart}),
        Case("up to the format's end", dict(B=1, T=1, S=23, C=64, NH=2, scale=8e-6),
             change={"k": times(15000.0), "v": times(15000.0)}),
        Case("gpt2-xl's heads, nine batches", dict(B=9, T=1, S=6, C=1600, NH=25), where="alone",
             change={"past": uneven}),
        Case("one key far above many", dict(B=2, T=2, S=300, C=32, NH=1, scale=1.0), where="alone",
             change={"qkv": all_alike(2.5), "k": one_far_above}),
        Case("gpt2's context", dict(B=1, T=2, S=1024, C=64, NH=1), where="alone"),
        Case("a wide window in a long text", dict(B=2, T=1, S=1024, C=64, NH=1, window=530, globals=150), where="alone",
             change={"past": uneven}),
        Case("at -100000", dict(B=1, T=2, S=37, C=32, NH=1, scale=1.0), where="file", dtypes=("f32",),
             change={"qkv": scores_alike(-1e5), "k": one_feature(-1e5)}),
        Case("seventy sequences", dict(B=70, T=1, S=75, C=32, NH=1), where="file", change={"past": uneven}),
        Case("twelve heads", dict(B=2, T=1, S=9, C=768, NH=12), where="file", change={"past": uneven}),
        Case("many new tokens", dict(B=3, T=12, S=40, C=32, NH=1), where="file", change={"past": uneven}),
        Case("gpt2", dict(B=4, T=1, S=1024, C=768, NH=12), where="cuda", change={"past": uneven}),
        Case("gpt2-xl", dict(B=1, T=3, S=1024, C=1600, NH=25), where="cuda"),
        *sizes(
            dict(B=67, T=1, S=5, C=64, NH=2),
            dict(B=1, T=1, S=5, C=1024, NH=16),
            dict(B=1, T=1, S=5, C=1280, NH=20),
            dict(B=1, T=40, S=45, C=32, NH=1),
        ),
    ),
    edges={
        "rows of zeros": {"qkv": rows_alike(0.0), "k": rows_alike(0.0)},
        "scores far below zero": {"qkv": scores_alike(BELOW), "k": one_feature(BELOW)},
    },
    shapes={
        "b1s1024": dict(B=1, T=1, S=1024, C=768, NH=12),
        "b1s128": dict(B=1, T=1, S=128, C=768, NH=12),
        "b64s1024": dict(B=64, T=1, S=1024, C=768, NH=12),
    },
    libraries=(
        # In 16 bits its scores are rounded before the softmax, which exceeds the bound.
        Library("torch", torch_masked, ("f32",), note="Two products, a mask and a softmax in torch."),
        Library("sdpa", sdpa, note="torch's scaled_dot_product_attention under a mask.", serves={"library": 1}),
    ),
    races=(Race("b1s1024", ("f32", "bf16")), Race("b1s128", ("f32", "bf16")), Race("b64s1024", ("f32", "bf16"))),
    roles=(Role("cached_attention"),),
)  # fmt: skip
