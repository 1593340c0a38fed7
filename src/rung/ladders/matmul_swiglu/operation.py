"""The first half of Llama's MLP: one product whose weights have gate and up rows in turn, and SwiGLU of each pair."""

from __future__ import annotations

from rung.arrays import silu
from rung.inputs import rows_alike, times
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes
from rung.precision import float32_products


def reference(t: Tensors, v: Values) -> Tensors:
    both = t["x"] @ t["weight"].T
    return {"out": silu(both[..., 0::2]) * both[..., 1::2]}


def cost(v: Values, size: int) -> Cost:
    rows, columns, depth = v["B"] * v["T"], v["OC"], v["C"]
    moved = rows * depth + 2 * columns * depth + rows * columns
    return Cost(flops=4.0 * rows * columns * depth + 5.0 * rows * columns, bytes=float(size * moved))


def torch_separate(x: torch.Tensor, weight: torch.Tensor, dtype: str) -> torch.Tensor:
    with float32_products(dtype):
        both = F.linear(x, weight)
        return F.silu(both[..., 0::2]) * both[..., 1::2]


OPERATION = Operation(
    name="matmul_swiglu",
    summary="out = silu(x · gateᵀ) * (x · upᵀ), where rows 2 i and 2 i + 1 of weight are row i of gate and of up",
    story="Interleaved weights bring a gate and its factor into one thread, and half of the product is never written.",
    dims=("B", "T", "C", "OC"),
    operands=(
        Operand("x", ("B", "T", "C")),
        Operand("weight", ("2 * OC", "C"), constant=True),
        Operand("out", ("B", "T", "OC"), role="out"),
    ),
    reference=reference,
    cost=cost,
    reduction="C",
    cases=(
        Case("odd", dict(B=1, T=7, C=37, OC=13)),
        Case("one channel", dict(B=1, T=5, C=1, OC=3)),
        Case("one column", dict(B=1, T=9, C=3, OC=1)),
        Case("one row", dict(B=1, T=1, C=2, OC=9)),
        Case("aligned", dict(B=2, T=33, C=72, OC=136)),
        Case("large values", dict(B=1, T=17, C=33, OC=31), magnitude=4.0),
        Case("gates far below zero", dict(B=1, T=17, C=40, OC=24), change={"x": times(4.0), "weight": times(4.0)}),
        Case("small weights", dict(B=1, T=17, C=40, OC=24), change={"weight": times(0.05)}),
        Case("square", dict(B=1, T=45, C=45, OC=45)),
        Case("three batches", dict(B=3, T=65, C=16, OC=176)),
        Case("odd rows of whole depth", dict(B=1, T=19, C=16, OC=37)),
        Case("a long depth", dict(B=1, T=2, C=2048, OC=12)),
        Case("300 rows", dict(B=3, T=100, C=8, OC=16), where="alone"),
        Case("decode", dict(B=1, T=1, C=576, OC=1536), where="cuda"),
        Case("primes", dict(B=3, T=67, C=251, OC=509), where="cuda"),
        Case("one above a power of two", dict(B=1, T=129, C=1025, OC=257), where="cuda"),
        Case("SmolLM2-135M", dict(B=4, T=64, C=576, OC=1536), where="cuda"),
        Case("Llama-3.2-1B", dict(B=1, T=65, C=2048, OC=8192), where="cuda"),
        *sizes(
            dict(B=67, T=3, C=16, OC=24),
            dict(B=1, T=1031, C=8, OC=8),
            dict(B=1, T=2, C=1024, OC=8),
            dict(B=1, T=2, C=16, OC=3072),
        ),
    ),
    edges={"rows of zeros": {"x": rows_alike(0.0)}},
    shapes={
        "decode": dict(B=1, T=1, C=2048, OC=8192),
        "b4t64": dict(B=4, T=64, C=2048, OC=8192),
        "b8t1024": dict(B=8, T=1024, C=2048, OC=8192),
    },
    libraries=(Library("torch", torch_separate, note="F.linear, then F.silu and a product."),),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "bf16"))),
    roles=(Role("matmul_swiglu", ("matmul", "swiglu"), sizes={"OC": "F"}),),
)
