"""Attention scores to probabilities: each row is scaled, masked and normalised."""

from __future__ import annotations

import math

from rung.arrays import arange, hide, softmax
from rung.inputs import around, leading, row_scores, rows_alike, rows_far_apart, times
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes


def hidden(T: int, S: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """The causal mask of forbidden columns: the last row sees all S columns, each row above it one fewer."""
    return torch.ones(T, S, dtype=torch.bool, device=device).triu(1 + S - T)  # (T, S)


def reference(t: Tensors, v: Values) -> Tensors:
    scores = t["x"] * v["scale"]
    if v["causal"]:
        T, S = int(v["T"]), int(v["S"])
        scores = hide(scores, arange(S, scores) > arange(T, scores)[:, None] + S - T)
    return {"out": softmax(scores)}


def cost(v: Values, size: int) -> Cost:
    T, S = v["T"], v["S"]
    visible = T * S - T * (T - 1) // 2 if v["causal"] else T * S
    heads = v["B"] * v["NH"]
    return Cost(flops=5 * heads * visible, bytes=heads * (visible + T * S) * size)


def torch_softmax(x: torch.Tensor, *, T: int, S: int, causal: int, scale: float, **_: object) -> torch.Tensor:
    scaled = x * scale
    if causal:
        scaled = scaled.masked_fill(hidden(T, S, x.device), -torch.inf)
    return torch.softmax(scaled, -1)


OPERATION = Operation(
    name="softmax",
    summary="out = exp(scale x) / sum(exp(scale x)) over the visible columns of each row, 0 over the others",
    story="A maximum, a sum and a quotient over a row: from three passes to one.",
    dims=("B", "NH", "T", "S"),
    scalars={"causal": 1, "scale": 0.125},
    alone={"causal": 0, "scale": 1.0},
    rules=("not causal or T <= S",),
    operands=(Operand("x", ("B", "NH", "T", "S")), Operand("out", ("B", "NH", "T", "S"), role="out")),
    reference=reference,
    cost=cost,
    reduction="S",
    cases=(
        Case("one", dict(B=1, NH=1, T=1, S=1)),
        Case("odd", dict(B=2, NH=1, T=3, S=3)),
        Case("prime", dict(B=1, NH=1, T=7, S=7)),
        Case("2^3 + 1", dict(B=1, NH=1, T=9, S=9)),
        Case("behind a prefix", dict(B=1, NH=2, T=2, S=67)),
        Case("2^7 + 1, one query", dict(B=1, NH=2, T=1, S=129)),
        Case("large values", dict(B=1, NH=1, T=3, S=127), magnitude=100.0),
        Case("plain rows", dict(B=1, NH=1, T=3, S=257, causal=0, scale=1.0)),
        Case("gpt2, one query", dict(B=1, NH=1, T=1, S=1024)),
        Case("far below zero", dict(B=1, NH=1, T=3, S=130, causal=0, scale=1.0), change={"x": around(-220.0, 1.0)}),
        Case(  # in float32 a factor of log2(e) before the difference would exceed the bound
            "below a mask of -10000",
            dict(B=1, NH=1, T=3, S=130, causal=0, scale=1.0),
            dtypes=("f16", "bf16"),
            change={"x": around(-12000.0, 1.0)},
        ),
        Case(  # all equal, so that the factor's rounding error is the same in each and in the sum
            "at -100000",
            dict(B=1, NH=1, T=3, S=130, causal=0, scale=1.0),
            where="file",
            dtypes=("f32",),
            change={"x": around(-1e5, 0.0)},
        ),
        Case("three batches of heads", dict(B=3, NH=2, T=111, S=111)),
        Case("more than 2048 columns", dict(B=1, NH=1, T=2, S=2503)),
        Case(
            "scores beyond exp", dict(B=1, NH=2, T=5, S=70, scale=0.3), change={"x": row_scores(373.0, climbing=False)}
        ),
        Case("scores far apart", dict(B=1, NH=2, T=5, S=70, scale=0.3), change={"x": rows_far_apart}),
        Case(
            "climbing and falling scores",
            dict(B=1, NH=1, T=4, S=300, causal=0, scale=0.3),
            change={"x": row_scores(373.0, climbing=True)},
        ),
        Case("up to the format's end", dict(B=2, NH=1, T=3, S=67, scale=5e-4), change={"x": times(15000.0)}),
        Case(
            "scores that climb over many columns",
            dict(B=1, NH=1, T=2, S=2503, causal=0, scale=0.3),
            where="alone",
            change={"x": row_scores(373.0, climbing=True)},
        ),
        Case(
            "scores of some hundreds",
            dict(B=1, NH=1, T=3, S=130, causal=0, scale=1.0),
            where="alone",
            dtypes=("f16", "bf16"),
            change={"x": row_scores(600.0, climbing=False)},
        ),
        Case("the vocabulary's columns", dict(B=1, NH=1, T=1, S=50257, causal=0, scale=1.0), where="alone"),
        Case("more than 2^16 rows", dict(B=11, NH=12, T=500, S=9, causal=0), where="cuda"),
        Case("gpt2", dict(B=2, NH=12, T=129, S=129), where="cuda"),
        Case("gpt2, full context", dict(B=1, NH=12, T=1024, S=1024), where="cuda"),
        Case("vocabulary", dict(B=1, NH=1, T=67, S=50257, causal=0, scale=1.0), where="cuda"),
        *sizes(dict(B=67, NH=2, T=2, S=5), dict(B=2, NH=25, T=3, S=9), dict(B=1, NH=1, T=520, S=530)),
    ),
    edges={
        "rows of equals": {"x": rows_alike(0.0, -3.0)},
        "ties": {"x": lambda x, _: x.round()},
        "leading -inf": {"x": leading(-math.inf)},
        "below any mask": {"x": rows_alike(-1e30)},
    },
    shapes={
        "b4t64": dict(B=4, NH=12, T=64, S=64),
        "b8t1024": dict(B=8, NH=12, T=1024, S=1024),
        "rows1024": dict(B=1, NH=1, T=8192, S=1024, causal=0, scale=1.0),
        "vocabulary": dict(B=1, NH=1, T=8192, S=50257, causal=0, scale=1.0),
    },
    libraries=(
        Library(
            "torch",
            torch_softmax,
            note="scaling and masking are separate kernels",
            # In 16 bits the scaled scores are rounded, unless the scale is a power of two.
            needs=("sizeof_real == 4 or scale == 0.125 or scale == 1",),
        ),
    ),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "bf16")), Race("vocabulary", ("f32",))),
    roles=(Role("softmax"),),
)
