"""What the exercises compute: the ladders' operations, and some of the course's own; their sizes and their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpuless.base.expressions import evaluate_int
from rung.arrays import Array, softmax
from rung.dtypes import Dtype, element_name
from rung.learn.running import Arrays
from rung.operation import Case, Cost, Operand, Operation, Values
from rung.rungs import operations

MOST_WORK = 1e6  # of a case that is tried at first
FIRST = 8  # cases that are tried at first
Reference = Callable[[Mapping[str, Array], Values], Mapping[str, Array]]


def _histogram(t: Mapping[str, Array], v: Values) -> Mapping[str, Array]:
    return {"out": np.bincount(t["codes"].astype(int), minlength=int(v["BINS"])).astype(float)}


def _stencil(t: Mapping[str, Array], v: Values) -> Mapping[str, Array]:
    around = np.pad(t["x"], 3)
    return {"out": np.asarray(sum(around[i : i + int(v["N"])] for i in range(7)) / 7)}


def _convolution(t: Mapping[str, Array], v: Values) -> Mapping[str, Array]:
    """Cross-correlation with zeros around, as neural networks have it."""
    H, W, around = int(v["H"]), int(v["W"]), np.pad(t["x"], 1)
    return {"out": sum(t["weight"][i, j] * around[i : i + H, j : j + W] for i in range(3) for j in range(3))}


def _softmax_backward(t: Mapping[str, Array], v: Values) -> Mapping[str, Array]:
    y = softmax(t["x"])
    return {"out": y * (t["dy"] - (y * t["dy"]).sum(-1, keepdims=True))}


def _own(
    name: str,
    summary: str,
    dims: tuple[str, ...],
    operands: tuple[Operand, ...],
    reference: Reference,
    cases: tuple[Values | Case, ...],
    reduction: str = "1",
) -> Operation:
    def cost(v: Values, size: int) -> Cost:
        return Cost(0.0, float(sum(size * math.prod(o.size(v)) for o in operands)))

    def named(values: Values) -> Case:
        return Case(" ".join(f"{d}={v}" for d, v in values.items()), values)

    every = tuple(c if isinstance(c, Case) else named(c) for c in cases)
    return Operation(name, summary, dims, operands, reference, cost, every, {}, reduction=reduction)


def _apart(x: Array, _: object) -> Array:
    """Every second row far above zero, the others far below."""
    return np.asarray(x + 200 * (-1.0) ** np.arange(x.shape[-2])[:, None])


_OWN = {
    operation.name: operation
    for operation in (
        _own(
            "histogram",
            "out[b] = how many of the N codes are b",
            ("N", "BINS"),
            (Operand("codes", ("N",), dtype="i32", below="BINS"), Operand("out", ("BINS",), role="out", dtype="i32")),
            _histogram,
            ({"N": 1, "BINS": 1}, {"N": 1031, "BINS": 17}, {"N": 4096, "BINS": 64}, {"N": 5000, "BINS": 256},
             {"N": 70001, "BINS": 5}, {"N": 3000, "BINS": 1000}),
        ),
        _own(
            "stencil",
            "out[i] = the mean of x[i - 3] to x[i + 3], where x is 0 outside",
            ("N",),
            (Operand("x", ("N",)), Operand("out", ("N",), role="out")),
            _stencil,
            ({"N": 1}, {"N": 5}, {"N": 128}, {"N": 131}, {"N": 1031}, {"N": 4096}),
        ),
        _own(
            "convolution",
            "out[h][w] = the sum of weight[i][j] x[h + i - 1][w + j - 1] over 3 x 3, where x is 0 outside",
            ("H", "W"),
            (Operand("x", ("H", "W")), Operand("weight", (3, 3)), Operand("out", ("H", "W"), role="out")),
            _convolution,
            ({"H": 1, "W": 1}, {"H": 5, "W": 67}, {"H": 33, "W": 20}, {"H": 32, "W": 32}, {"H": 40, "W": 70}),
            "9",
        ),
        _own(
            "scan",
            "out[b][n] = x[b][0] + ... + x[b][n]",
            ("B", "N"),
            (Operand("x", ("B", "N")), Operand("out", ("B", "N"), role="out")),
            lambda t, _: {"out": np.cumsum(t["x"], -1)},
            ({"B": 1, "N": 1}, {"B": 3, "N": 33}, {"B": 2, "N": 128}, {"B": 5, "N": 97}, {"B": 4, "N": 127},
             {"B": 2, "N": 500}, {"B": 1, "N": 1031}),
            "N",
        ),
        _own(
            "argmax",
            "out[b] = the first index n at which x[b][n] is largest",
            ("B", "N"),
            (Operand("x", ("B", "N")), Operand("out", ("B",), role="out", dtype="i32")),
            lambda t, _: {"out": np.argmax(t["x"], -1).astype(float)},
            ({"B": 1, "N": 1}, {"B": 9, "N": 100}, {"B": 5, "N": 31}, {"B": 4, "N": 257}, {"B": 2, "N": 2051},
             Case("ties", {"B": 16, "N": 300}, change={"x": lambda x, _: x.round()}),
             Case("all below zero", {"B": 3, "N": 70}, change={"x": lambda x, _: x - 100})),
            "N",
        ),
        _own(
            "softmax_backward",
            "out = y (dy - sum of y dy), where y = softmax(x), row by row",
            ("B", "N"),
            (Operand("x", ("B", "N")), Operand("dy", ("B", "N")), Operand("out", ("B", "N"), role="out")),
            _softmax_backward,
            ({"B": 1, "N": 1}, {"B": 3, "N": 33}, {"B": 2, "N": 128}, {"B": 5, "N": 97}, {"B": 2, "N": 2051},
             Case("rows far apart", {"B": 3, "N": 70}, change={"x": _apart})),
            "N",
        ),
    )
}  # fmt: skip


FURTHER = {  # for mistakes that the others do not find: powers that overflow or vanish, an eps or a scale in the text,
    # a grid of as many blocks as there are channels, arrays for rows of some length,
    # tiles that overlap
    "gelu": (Case("more than 16 bits count", dict(B=2, T=7, C=5001)),),
    "softmax": (
        Case("scores beyond exp", dict(B=1, NH=1, T=3, S=70, causal=0, scale=1.0), magnitude=100.0),
        Case("single scores far below zero", dict(B=1, NH=1, T=9, S=1, causal=0, scale=1.0), magnitude=200.0),
        Case("masked scores far above others", dict(B=1, NH=1, T=9, S=9, causal=1, scale=1.0), magnitude=200.0),
        Case("rows far apart", dict(B=2, NH=1, T=3, S=40, causal=0, scale=1.0), change={"x": _apart}),
        Case("all far below zero", dict(B=1, NH=1, T=9, S=9, causal=1, scale=1.0), change={"x": lambda x, _: x - 1e5}),
        Case("long rows", dict(B=1, NH=2, T=2, S=2051)),
    ),
    "residual": (Case("many short rows", dict(B=2, T=300, C=3)), Case("many short texts", dict(B=30, T=2, C=3))),
    "reduce": (Case("many rows for each block", dict(B=400, N=8)), Case("more rows for each block", dict(B=600, N=8))),
    "layernorm": (
        Case("another eps", dict(B=1, T=6, C=129, eps=2e-2), magnitude=0.1),
        Case("long rows", dict(B=2, T=2, C=2051)),
        Case("far from zero", dict(B=1, T=3, C=65), change={"x": lambda x, _: x + 40}),
    ),
    "rmsnorm": (
        Case("another eps", dict(B=2, T=3, C=129, eps=2e-2), magnitude=0.1),
        Case("long rows", dict(B=2, T=2, C=2051)),
    ),
    "matmul": (Case("three tiles each way", dict(B=3, T=23, C=35, OC=70)),),
    "matmul_gelu": (Case("three tiles each way", dict(B=3, T=23, C=35, OC=70)),),
    "attention": (
        Case("scores beyond exp", dict(B=1, T=40, C=64, NH=1, scale=1.0), magnitude=5.0),
        Case("two texts, every key", dict(B=2, T=41, C=32, NH=1, causal=0)),
        Case("many keys", dict(B=1, T=131, C=32, NH=1)),
        Case("single scores far from zero", dict(B=9, T=1, C=64, NH=2, scale=1.0), magnitude=5.0),
    ),
    "cached_attention": (
        Case("two texts of unequal length", dict(B=2, T=3, S=37, C=64, NH=2)),
        Case("scores beyond exp", dict(B=8, T=3, S=60, C=64, NH=2, scale=1.0), magnitude=12.0),
        Case("many keys", dict(B=1, T=1, S=1031, C=64, NH=2)),
        Case("single scores far from zero", dict(B=9, T=1, S=1, C=64, NH=2, scale=1.0), magnitude=5.0),
    ),
}


def operation(name: str) -> Operation:
    return _OWN.get(name) or operations.operation(name)


def shipped(name: str) -> bool:
    """Whether `rung check` knows the operation, too."""
    return name not in _OWN


def reference(of: Operation, given: Arrays, values: Values) -> Arrays:
    """The outputs in float64, with the inputs as the reference takes them: views of operands that are given, too."""
    return dict(of.reference(in_float64(of, given, values), values))


def in_float64(of: Operation, given: Arrays, values: Values) -> Arrays:
    unread = ("k", "v") if "past" in given else ()  # behind a text's last token
    exact = {n: np.nan_to_num(a) if n in unread else a for n, a in given.items()}
    exact = {name: array.astype(np.float64) for name, array in exact.items()}
    for operand in of.operands:
        if operand.view and operand.view_of in exact and operand.name not in exact:
            exact[operand.name] = operand.view(exact[operand.view_of], values)
    return exact


def inputs(of: Operation, values: Values, dtype: Dtype, seed: int, case: Case | None = None) -> Arrays:
    """Random operands, rounded to the dtype."""
    random, magnitude = np.random.default_rng(seed), case.magnitude if case else 1.0
    found: Arrays = {}
    for operand in of.operands:
        if operand.role == "out" or operand.copy_of:
            continue
        kind, size = element_name(operand.dtype, dtype), operand.size(values)
        if operand.name == "past":  # as many tokens as the cache has room for before the new ones, or fewer
            room = int(values["S"]) - int(values["T"])
            found["past"] = np.maximum(room - 5 * np.arange(size[0]), 0).astype(kind)
        elif kind.startswith("int"):
            most = evaluate_int(operand.below or 1, values, operand.name)
            found[operand.name] = random.integers(0, most, size).astype(kind)
        else:
            drawn = random.standard_normal(size) * magnitude + 0.1
            change: Any = case.change.get(operand.name) if case else None
            found[operand.name] = (change(drawn, values) if change else drawn).astype(kind)
    if "past" in found:  # what lies behind a text's last token is not to be read
        for name in ("k", "v"):
            for b, past in enumerate(found["past"]):
                found[name][b, :, past + int(values["T"]) :] = np.nan
    return found


def cases(of: Operation, dtype: Dtype, most: int = FIRST) -> list[Case]:
    """The first cases, and of the others those of a size that the machine runs at once; one has two texts."""

    def fits(case: Case) -> bool:
        cost = of.cost(of.complete(case.values), dtype.size)
        return cost.flops + cost.bytes <= MOST_WORK

    own = of.name in _OWN
    usual = [
        case for case in of.cases
        if dtype.name in case.dtypes and case.where == "any" and (own or not case.change) and fits(case)
    ][:most]  # fmt: skip
    if "B" in of.dims and "T" in of.dims and not any(c.values["B"] > 1 < c.values["T"] for c in usual):
        usual += [_with_two_texts(case) for case in usual if case.values["T"] > 2][:1]
    usual += [case for case in FURTHER.get(of.name, ()) if case not in usual]
    return sorted(usual, key=lambda case: all(case.values.get(d) == 1 for d in of.dims))  # that of one number last


def _with_two_texts(case: Case) -> Case:
    return replace(case, name=f"{case.name}, two texts", values={**case.values, "B": 2})
