"""What the exercises compute: the ladders' operations with references in numpy, and three of the course's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuless.base.expressions import evaluate_int
from rung.dtypes import Dtype
from rung.learn.running import Arrays, kind_of
from rung.operation import Case, Cost, Operand, Operation, Values
from rung.rungs import catalogue

Reference = Callable[[Arrays, Values], Arrays]
MOST_WORK = 1e6  # of a case that is tried at first
FIRST = 8  # cases that are tried at first
Double = NDArray[np.float64]


def _gelu(x: Double) -> Double:
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _product(t: Arrays) -> Double:
    weight = t["weight"] if "weight" in t else t["weight_t"].T
    return np.asarray(t["x"] @ weight.T + t.get("bias", 0.0))


def _layernorm(t: Arrays, v: Values) -> Arrays:
    total = t["x"] + t["residual"] if "residual" in t else t["x"]
    mean, rstd = total.mean(-1), 1 / np.sqrt(total.var(-1) + v["eps"])
    out = (total - mean[..., None]) * rstd[..., None] * t["weight"] + t["bias"]
    return {"out": out, "sum": total, "mean": mean, "rstd": rstd}


def _softmax_of(scores: Double) -> Double:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _softmax(t: Arrays, v: Values) -> Arrays:
    T, S = int(v["T"]), int(v["S"])
    scores = t["x"] * v["scale"]
    if v["causal"]:
        scores = np.where(np.arange(S) > np.arange(T)[:, None] + S - T, -np.inf, scores)
    return {"out": _softmax_of(scores)}


def _attention(t: Arrays, v: Values) -> Arrays:
    B, T, NH, HS = (int(v[n]) for n in ("B", "T", "NH", "HS"))
    q, k, values = t["qkv"].reshape(B, T, 3, NH, HS).transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(2, 3) * v["scale"]
    if v["causal"]:
        scores = np.where(np.triu(np.ones((T, T), bool), 1), -np.inf, scores)
    return {"out": (_softmax_of(scores) @ values).swapaxes(1, 2).reshape(B, T, NH * HS)}


def _cached_attention(t: Arrays, v: Values) -> Arrays:
    query = t["past"].astype(int)[:, None, None, None] + np.arange(int(v["T"]))[:, None]
    key = np.arange(int(v["S"]))
    seen = (key <= query) & ((key > query - v["window"]) | (key < v["globals"]))
    scores = np.where(seen, t["q"] @ t["k"].swapaxes(2, 3) * v["scale"], -np.inf)
    return {"out": (_softmax_of(scores) @ t["v"]).swapaxes(1, 2).reshape(int(v["B"]), int(v["T"]), -1)}


def _histogram(t: Arrays, v: Values) -> Arrays:
    return {"out": np.bincount(t["codes"].astype(int), minlength=int(v["BINS"])).astype(float)}


def _stencil(t: Arrays, v: Values) -> Arrays:
    around = np.pad(t["x"], 3)
    return {"out": np.asarray(sum(around[i : i + int(v["N"])] for i in range(7)) / 7)}


REFERENCES: dict[str, Reference] = {
    "residual": lambda t, _: {"out": t["a"] + t["b"]},
    "gelu": lambda t, _: {"out": _gelu(t["x"])},
    "copy": lambda t, _: {"out": t["x"]},
    "reduce": lambda t, _: {"out": t["x"].sum(-1)},
    "layernorm": _layernorm,
    "transpose": lambda t, _: {"out": t["x"].T},
    "matmul": lambda t, _: {"out": _product(t)},
    "matmul_gelu": lambda t, _: {"out": _gelu(_product(t))},
    "softmax": _softmax,
    "attention": _attention,
    "cached_attention": _cached_attention,
    "histogram": _histogram,
    "stencil": _stencil,
    "scan": lambda t, _: {"out": np.cumsum(t["x"], -1)},
}


def _own(
    name: str, summary: str, dims: tuple[str, ...], operands: tuple[Operand, ...], cases: tuple[Values, ...]
) -> Operation:
    def refuse(*_: Any) -> Any:
        raise NotImplementedError  # the reference above is used

    def cost(v: Values, size: int) -> Cost:
        return Cost(0.0, size * math.prod(float(v[d]) for d in dims))

    of = tuple(Case(" ".join(f"{d}={v}" for d, v in values.items()), values) for values in cases)
    return Operation(name, summary, dims, operands, refuse, cost, of, {}, reduction=dims[-1])


_OWN = {
    operation.name: operation
    for operation in (
        _own(
            "histogram",
            "out[b] = how many of the N codes are b",
            ("N", "BINS"),
            (Operand("codes", ("N",), dtype="i32", below="BINS"), Operand("out", ("BINS",), role="out", dtype="i32")),
            ({"N": 1, "BINS": 1}, {"N": 1031, "BINS": 17}, {"N": 4096, "BINS": 64}, {"N": 5000, "BINS": 256}),
        ),
        _own(
            "stencil",
            "out[i] = the mean of x[i - 3] to x[i + 3], where what lies outside counts as 0",
            ("N",),
            (Operand("x", ("N",)), Operand("out", ("N",), role="out")),
            ({"N": 1}, {"N": 5}, {"N": 128}, {"N": 131}, {"N": 1031}, {"N": 4096}),
        ),
        _own(
            "scan",
            "out[b][n] = x[b][0] + ... + x[b][n]",
            ("B", "N"),
            (Operand("x", ("B", "N")), Operand("out", ("B", "N"), role="out")),
            ({"B": 1, "N": 1}, {"B": 3, "N": 33}, {"B": 2, "N": 128}, {"B": 5, "N": 97}, {"B": 4, "N": 127}),
        ),
    )
}


FURTHER = {  # for mistakes that the others do not find: powers that overflow or vanish, an eps in the text
    "softmax": (
        Case("scores beyond exp", dict(B=1, NH=1, T=3, S=70, causal=0, scale=1.0), magnitude=100.0),
        Case("single scores far below zero", dict(B=1, NH=1, T=9, S=1, causal=0, scale=1.0), magnitude=200.0),
    ),
    "layernorm": (Case("another eps", dict(B=1, T=6, C=129, eps=2e-2), magnitude=0.1),),
    "attention": (Case("scores beyond exp", dict(B=1, T=9, C=32, NH=1, scale=1.0), magnitude=5.0),),
}


def operation(name: str) -> Operation:
    return _OWN.get(name) or catalogue.operation(name)


def shipped(name: str) -> bool:
    """Whether `rung check` knows the operation, too."""
    return name not in _OWN


def inputs(of: Operation, values: Values, dtype: Dtype, seed: int, magnitude: float = 1.0) -> Arrays:
    """Random operands, rounded to the dtype."""
    random = np.random.default_rng(seed)
    found: Arrays = {}
    for operand in of.operands:
        if operand.role == "out" or operand.copy_of:
            continue
        kind, size = kind_of(operand.dtype, dtype), operand.size(values)
        if operand.name == "past":  # as many tokens as the cache has room for before the new ones
            found["past"] = np.full(size, int(values["S"]) - int(values["T"]), kind)
        elif kind.startswith("int"):
            found[operand.name] = random.integers(
                0, evaluate_int(operand.below or 1, values, operand.name), size
            ).astype(kind)
        else:
            found[operand.name] = (random.standard_normal(size) * magnitude + 0.1).astype(kind)
    return found


def cases(of: Operation, dtype: Dtype, most: int = FIRST) -> list[Case]:
    """The first cases, and of the others those of a size that the machine runs at once."""
    fitting = [
        case
        for case in of.cases
        if dtype.name in case.dtypes and case.where == "any" and not case.change
        and (cost := of.cost(of.complete(case.values), dtype.size)).flops + cost.bytes <= MOST_WORK
    ]  # fmt: skip
    first = [*fitting[:most], *FURTHER.get(of.name, ())]
    return sorted(first, key=lambda case: all(case.values.get(d) == 1 for d in of.dims))  # that of one number last
