"""out = x + gelu(layernorm(x) w1ᵀ + b1) w2ᵀ + b2: GPT-2's MLP from its layernorm through its residual."""

from __future__ import annotations

from rung.arrays import Array, Generator, gelu, normal, normalised
from rung.inputs import rows_alike
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Tensors, Values, sizes


def reference(t: Tensors, v: Values) -> Tensors:
    normed = normalised(t["x"], v["eps"]) * t["ln_weight"] + t["ln_bias"]
    return {"out": t["x"] + gelu(normed @ t["w1"].T + t["b1"]) @ t["w2"].T + t["b2"]}


def cost(v: Values, size: int) -> Cost:
    rows = v["B"] * v["T"]
    return Cost(flops=4.0 * rows * v["C"] * v["F"], bytes=float(size * (2 * v["C"] * v["F"] + 2 * rows * v["C"])))


def torch_mlp(
    x: torch.Tensor,
    ln_weight: torch.Tensor,
    ln_bias: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor,
    w2: torch.Tensor,
    b2: torch.Tensor,
    *,
    eps: float,
    **_: object,
) -> torch.Tensor:
    hidden = F.gelu(F.linear(F.layer_norm(x, x.shape[-1:], ln_weight, ln_bias, eps), w1, b1), approximate="tanh")
    return x + F.linear(hidden, w2, b2)


def small(rows: str, columns: str) -> Operand:
    """A matrix whose products with vectors of ones keep their size."""

    def make(v: Values, generator: Generator) -> Array:
        return normal(generator, int(v[rows]), int(v[columns])) / float(v[columns]) ** 0.5

    return Operand("w1" if rows == "F" else "w2", (rows, columns), constant=True, make=make)


OPERATION = Operation(
    name="mlp",
    summary="out = x + gelu(layernorm(x) · w1ᵀ + b1) · w2ᵀ + b2",
    story="From layernorm through residual: five kernels, or one.",
    dims=("B", "T", "C", "F"),
    scalars={"eps": 1e-5},
    operands=(
        Operand("x", ("B", "T", "C")),
        Operand("ln_weight", ("C",), constant=True),
        Operand("ln_bias", ("C",), constant=True),
        small("F", "C"),
        Operand("b1", ("F",), constant=True),
        small("C", "F"),
        Operand("b2", ("C",), constant=True),
        Operand("out", ("B", "T", "C"), role="out"),
    ),
    reference=reference,
    cost=cost,
    reduction="C * F",
    cases=(
        Case("odd", dict(B=1, T=7, C=33, F=129)),
        Case("one", dict(B=1, T=1, C=1, F=1)),
        Case("across tiles", dict(B=2, T=19, C=64, F=96)),
        Case("prime", dict(B=1, T=37, C=67, F=31)),
        Case("large values", dict(B=1, T=5, C=48, F=64), magnitude=20.0),
        Case("another eps", dict(B=1, T=6, C=40, F=24, eps=2e-2)),
        Case("gpt2", dict(B=1, T=2, C=768, F=64)),
        Case("gpt2, whole", dict(B=4, T=64, C=768, F=3072), where="cuda"),
        *sizes(dict(B=67, T=3, C=16, F=24), dict(B=1, T=2, C=1024, F=8), dict(B=1, T=2, C=1280, F=8)),
    ),
    edges={"constant rows": {"x": rows_alike(0.0, 0.5, -2.0)}},
    shapes={
        "b1t1": dict(B=1, T=1, C=768, F=3072),
        "b4t64": dict(B=4, T=64, C=768, F=3072),
        "b8t1024": dict(B=8, T=1024, C=768, F=3072),
    },
    libraries=(Library("torch", torch_mlp, ("f32",), note="F.layer_norm, two of F.linear, F.gelu and an addition."),),
    races=(Race("b4t64", ("f32",)),),
)
