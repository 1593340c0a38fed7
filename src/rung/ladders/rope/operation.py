"""Rotary positions: each pair of a head's channels is turned by an angle that grows with the token's position."""

from __future__ import annotations

import numpy as np

from rung.arrays import Array, turned
from rung.inputs import F16_TOP, F32_TOP, spread
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes


def reference(t: Tensors, v: Values) -> Tensors:
    return {"out": turned(t["x"], t["cosines"][:, None], t["sines"][:, None], v["interleaved"])}


def cost(v: Values, size: int) -> Cost:
    elements = v["B"] * v["T"] * v["NH"] * v["HS"]
    return Cost(flops=3 * elements, bytes=2 * elements * size + 4 * v["T"] * v["HS"])


def angles(v: Values) -> Array:
    """(T, HS / 2): Llama 3's unscaled frequencies, from a position beyond the first."""
    return np.outer(7 + np.arange(v["T"]), 500000.0 ** -(np.arange(0, v["HS"], 2) / v["HS"]))


def torch_rope(
    x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, *, interleaved: int, **_: object
) -> Array:
    return turned(x.float(), cosines[:, None], sines[:, None], interleaved).to(x.dtype)


OPERATION = Operation(
    name="rope",
    summary="out = x with each pair of a head's channels turned by its position's angle",
    story="No reduction and two small tables that all heads share: copy speed, if a pair meets in one thread.",
    dims=("B", "T", "NH", "HS"),
    scalars={"interleaved": 0},  # 0: channel i is paired with i + HS / 2; 1: with its neighbour
    rules=("HS % 2 == 0",),
    operands=(
        Operand("x", ("B", "T", "NH", "HS")),
        Operand("cosines", ("T", "HS // 2"), dtype="f32", constant=True, make=lambda v, _: np.cos(angles(v))),
        Operand("sines", ("T", "HS // 2"), dtype="f32", constant=True, make=lambda v, _: np.sin(angles(v))),
        Operand("out", ("B", "T", "NH", "HS"), role="out"),
    ),
    reference=reference,
    cost=cost,
    cases=(
        Case("one pair", dict(B=1, T=1, NH=1, HS=2)),
        Case("one neighbouring pair", dict(B=1, T=1, NH=1, HS=2, interleaved=1)),
        Case("odd", dict(B=2, T=3, NH=5, HS=6)),
        Case("odd, neighbours", dict(B=2, T=3, NH=5, HS=6, interleaved=1)),
        Case("heads of 64", dict(B=2, T=5, NH=33, HS=64)),
        Case("heads of 64, neighbours", dict(B=2, T=5, NH=9, HS=64, interleaved=1)),
        Case("heads of 128", dict(B=1, T=3, NH=16, HS=128)),
        Case("heads of 128, neighbours", dict(B=1, T=3, NH=3, HS=128, interleaved=1)),
        Case("heads of 80", dict(B=1, T=7, NH=3, HS=80)),
        Case("heads of 8", dict(B=1, T=67, NH=2, HS=8)),
        Case("heads of 16", dict(B=1, T=33, NH=3, HS=16)),
        Case("heads of 34, neighbours", dict(B=1, T=5, NH=3, HS=34, interleaved=1)),
        Case("heads of 258", dict(B=1, T=2, NH=1, HS=258)),
        Case("large values", dict(B=1, T=5, NH=2, HS=64), magnitude=100.0),
        Case("up to float16's end", dict(B=1, T=5, NH=3, HS=64), change={"x": spread(F16_TOP - 1)}),
        Case("up to float32's end", dict(B=1, T=5, NH=3, HS=64), dtypes=("f32", "bf16"), change={"x": spread(F32_TOP)}),
        Case("three batches", dict(B=3, T=11, NH=4, HS=64)),
        Case("300 rows", dict(B=3, T=100, NH=1, HS=4), where="alone"),
        Case("Llama-3.2-1B", dict(B=2, T=129, NH=32, HS=64), where="cuda"),
        Case("Qwen3-0.6B", dict(B=3, T=65, NH=16, HS=128), where="cuda"),
        *sizes(
            dict(B=67, T=2, NH=3, HS=8),
            dict(B=1, T=1031, NH=1, HS=8),
            dict(B=1, T=2, NH=40, HS=128),
            dict(B=1, T=2, NH=1, HS=256),
        ),
    ),
    shapes={
        "b1t1": dict(B=1, T=1, NH=32, HS=64),
        "b4t64": dict(B=4, T=64, NH=32, HS=64),
        "b8t1024": dict(B=8, T=1024, NH=32, HS=64),
    },
    libraries=(Library("torch", torch_rope, note="In float32, as written: nine kernels."),),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "bf16"))),
    roles=(Role("rope"),),
    words=("rotary", "rope_embedding", "rotary_embedding"),
)
