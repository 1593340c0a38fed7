"""out = layernorm(x) · weightᵀ + bias: the first product of attention and of the MLP in GPT-2."""

from __future__ import annotations

from rung.arrays import Array, Generator, gelu, normal, normalised
from rung.inputs import ROW_SCALES, raised_from, rows_alike, rows_scaled, times
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes
from rung.precision import float32_products

EVERY_DTYPE = ("f32", "tf32", "f16", "bf16")


def reference(t: Tensors, v: Values) -> Tensors:
    out = (normalised(t["x"], v["eps"]) * t["ln_weight"] + t["ln_bias"]) @ t["weight"].T
    if "bias" in t:
        out = out + t["bias"]
    return {"out": gelu(out) if v["gelu"] else out}


def cost(v: Values, size: int) -> Cost:
    rows, columns, depth = v["B"] * v["T"], v["OC"], v["C"]
    moved = rows * depth + columns * depth + columns + 2 * depth + rows * columns
    return Cost(flops=2.0 * rows * columns * depth + 7.0 * rows * depth, bytes=float(size * moved))


def off_centre(v: Values, generator: Generator) -> Array:
    """Rows whose mean exceeds their standard deviation, so that an inaccurate variance is noticed."""
    B, T, C = int(v["B"]), int(v["T"]), int(v["C"])
    return normal(generator, B, T, C) + 3.0 * normal(generator, B, T, 1)


def torch_separate(
    x: torch.Tensor,
    ln_weight: torch.Tensor,
    ln_bias: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    C: int,
    eps: float,
    gelu: int,
    dtype: str,
) -> torch.Tensor:
    with float32_products(dtype):
        out = F.linear(F.layer_norm(x, (C,), ln_weight, ln_bias, eps), weight, bias)
    return F.gelu(out, approximate="tanh") if gelu else out


OPERATION = Operation(
    name="layernorm_matmul",
    summary="out = layernorm(x) · weightᵀ + bias; with gelu = 1, GELU of that",
    story="A prologue instead of an epilogue: the left operand is computed while it is loaded.",
    dims=("B", "T", "C", "OC"),
    scalars={"eps": 1e-5, "gelu": 0},
    operands=(
        Operand("x", ("B", "T", "C"), make=off_centre),
        Operand("ln_weight", ("C",), constant=True),
        Operand("ln_bias", ("C",), constant=True),
        Operand("weight", ("OC", "C"), constant=True),
        Operand("bias", ("OC",), optional=True, nullable=True, constant=True),
        Operand("out", ("B", "T", "OC"), role="out"),
    ),
    reference=reference,
    cost=cost,
    reduction="C",
    cases=(
        Case("odd", {"B": 1, "T": 7, "C": 37, "OC": 13}),
        Case("one column", {"B": 1, "T": 9, "C": 3, "OC": 1}),
        Case("one row", {"B": 1, "T": 1, "C": 2, "OC": 9}),
        Case("two rows of whole chunks", {"B": 2, "T": 1, "C": 64, "OC": 24}),
        Case("five rows of whole chunks", {"B": 5, "T": 1, "C": 96, "OC": 45}),
        Case("sixteen rows, GELU", {"B": 16, "T": 1, "C": 544, "OC": 70, "gelu": 1}),
        Case("eleven rows of few numbers", {"B": 11, "T": 1, "C": 32, "OC": 37, "gelu": 1}),
        Case("aligned", {"B": 2, "T": 33, "C": 72, "OC": 136}),
        Case("large values", {"B": 1, "T": 17, "C": 33, "OC": 31}, magnitude=10.0),
        Case("small and large variances", {"B": 2, "T": 10, "C": 40, "OC": 24}, change={"x": rows_scaled(*ROW_SCALES)}),
        Case(
            "another eps", {"B": 1, "T": 9, "C": 48, "OC": 16, "eps": 2e-3}, change={"x": rows_scaled(0.01, 0.04, 1.0)}
        ),
        Case("up to the format's end", {"B": 1, "T": 9, "C": 40, "OC": 8}, change={"x": times(4000.0)}),
        Case("square", {"B": 1, "T": 45, "C": 45, "OC": 45}),
        Case("three batches", {"B": 3, "T": 65, "C": 16, "OC": 352}),
        Case("more than 2048 columns", {"B": 1, "T": 2, "C": 2504, "OC": 30}, change={"x": raised_from(1024, 4.0)}),
        Case("300 rows", {"B": 3, "T": 100, "C": 8, "OC": 16}, where="alone"),
        Case("eight rows, GPT-2", {"B": 8, "T": 1, "C": 768, "OC": 3072, "gelu": 1}, where="cuda"),
        Case("decode", {"B": 1, "T": 1, "C": 768, "OC": 2304}, where="cuda"),
        Case("primes", {"B": 3, "T": 67, "C": 251, "OC": 509}, where="cuda"),
        Case("one above a power of two", {"B": 1, "T": 129, "C": 1025, "OC": 257}, where="cuda"),
        Case("GPT-2", {"B": 4, "T": 64, "C": 768, "OC": 2304}, where="cuda"),
        Case("GPT-2 XL", {"B": 1, "T": 65, "C": 1600, "OC": 4800}, where="cuda"),
        *sizes(
            dict(B=67, T=3, C=16, OC=24),
            dict(B=1, T=1031, C=8, OC=8),
            dict(B=1, T=2, C=1024, OC=8),
            dict(B=1, T=2, C=1280, OC=8),
            dict(B=1, T=2, C=16, OC=3072),
        ),
    ),
    edges={"constant rows": {"x": rows_alike(0.0, 0.5, -2.0)}},
    shapes={
        "decode": {"B": 1, "T": 1, "C": 768, "OC": 2304},
        "eight rows": {"B": 8, "T": 1, "C": 768, "OC": 3072, "gelu": 1},
        "b4t64": {"B": 4, "T": 64, "C": 768, "OC": 2304},
        "4096": {"B": 4, "T": 1024, "C": 768, "OC": 2304},
        "b8t1024": {"B": 8, "T": 1024, "C": 768, "OC": 2304},
    },
    libraries=(Library("torch", torch_separate, EVERY_DTYPE, note="F.layer_norm, then F.linear."),),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "bf16"))),
    roles=(Role("layernorm_matmul", ("layernorm", "matmul"), sizes={"OC": "QKV"}),),
)
