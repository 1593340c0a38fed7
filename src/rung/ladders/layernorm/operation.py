"""Layer normalisation: each token's vector with mean 0 and variance 1, then a weight and a bias."""

from __future__ import annotations

from rung.arrays import Array, Generator, arange, namespace, normal, variance
from rung.inputs import ROW_SCALES, around, raised_from, rows_alike, rows_scaled, times
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes


def reference(t: Tensors, v: Values) -> Tensors:
    x = t["x"] + t["residual"] if "residual" in t else t["x"]
    mean, rstd = x.mean(-1), (variance(x) + v["eps"]) ** -0.5
    out = (x - mean[..., None]) * rstd[..., None] * t["weight"] + t["bias"]
    return {"out": out, "sum": x, "mean": mean, "rstd": rstd}


def cost(v: Values, size: int) -> Cost:
    elements = v["B"] * v["T"] * v["C"]
    return Cost(flops=7 * elements, bytes=(2 * elements + 2 * v["C"]) * size)


def off_centre(v: Values, generator: Generator) -> Array:
    """Rows whose mean is not zero, with outliers in a few columns, as in GPT-2's residual stream."""
    B, T, C = int(v["B"]), int(v["T"]), int(v["C"])
    x = normal(generator, B, T, C)
    column_scale = namespace(x).where(arange(C, x) % 53 == 1, 12.0, 1.0)
    return x * column_scale + 3.0 * normal(generator, B, T, 1)


def torch_layernorm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, C: int, eps: float, **_: object
) -> torch.Tensor:
    return F.layer_norm(x, (C,), weight, bias, eps)


OPERATION = Operation(
    name="layernorm",
    summary="out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, over the last dimension",
    story="Two reductions over a row: from one thread per row to a row that never leaves the registers.",
    dims=("B", "T", "C"),
    scalars={"eps": 1e-5},
    operands=(
        Operand("x", ("B", "T", "C"), make=off_centre),
        Operand("residual", ("B", "T", "C"), optional=True),
        Operand("weight", ("C",), constant=True, neutral=1.0),
        Operand("bias", ("C",), constant=True, neutral=0.0),
        Operand("out", ("B", "T", "C"), role="out"),
        Operand("sum", ("B", "T", "C"), role="out", optional=True),
        Operand("mean", ("B", "T"), role="out", dtype="f32", sums=True, optional=True),
        Operand("rstd", ("B", "T"), role="out", dtype="f32", sums=True, optional=True),
    ),
    reference=reference,
    cost=cost,
    reduction="C",
    cases=(
        Case("one", dict(B=1, T=1, C=1)),
        Case("odd", dict(B=2, T=3, C=7)),
        Case("prime", dict(B=1, T=3, C=67)),
        Case("2^7 - 1", dict(B=2, T=1, C=127)),
        Case("2^7 + 1", dict(B=1, T=2, C=129)),
        Case("large values", dict(B=1, T=3, C=64), magnitude=100.0),
        Case("gpt2", dict(B=1, T=3, C=768)),
        Case("small and large variances", dict(B=2, T=5, C=96), change={"x": rows_scaled(*ROW_SCALES)}),
        Case("another eps", dict(B=1, T=6, C=129, eps=2e-2), change={"x": rows_scaled(0.02, 0.1, 1.0)}),
        Case("up to the format's end", dict(B=1, T=5, C=192), change={"x": times(1500.0)}),
        Case("rows far from zero", dict(B=1, T=3, C=192), change={"x": around(60.0, 1.0)}),
        Case("three batches", dict(B=3, T=31, C=768, eps=3e-4), change={"x": rows_scaled(0.02, 0.1, 1.0)}),
        Case("gpt2-xl, a row", dict(B=1, T=2, C=1600, eps=2e-3), change={"x": rows_scaled(0.05, 0.3)}),
        Case("a tiny eps", dict(B=1, T=3, C=64, eps=1e-9), change={"x": rows_scaled(3e-4, 1e-3)}),
        Case("more than 2048 columns", dict(B=1, T=2, C=2503), change={"x": raised_from(1024, 4.0)}),
        Case("two columns", dict(B=1, T=9, C=2)),
        Case("300 rows", dict(B=3, T=100, C=8), where="alone"),
        Case("more than 2^16 rows", dict(B=33, T=2000, C=16), where="cuda"),
        Case("gpt2, a batch", dict(B=3, T=129, C=768), where="cuda"),
        Case("gpt2-medium", dict(B=1, T=65, C=1024), where="cuda"),
        Case("gpt2-large", dict(B=1, T=65, C=1280), where="cuda"),
        Case("gpt2-xl", dict(B=2, T=65, C=1600), where="cuda"),
        *sizes(dict(B=67, T=65, C=8), dict(B=2, T=1031, C=8), dict(B=1, T=2, C=1024), dict(B=1, T=2, C=1280)),
    ),
    edges={"constant rows": {"x": rows_alike(0.0, 0.5, -2.0), "residual": rows_alike(0.0)}},
    shapes={
        "b1t1": dict(B=1, T=1, C=768),
        "b4t64": dict(B=4, T=64, C=768),
        "b8t1024": dict(B=8, T=1024, C=768),
        "b64t1024": dict(B=64, T=1024, C=768),
    },
    libraries=(Library("torch", torch_layernorm, serves={"library": 1, "emulated": 1, "any": 1}),),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "f16", "bf16")), Race("b64t1024", ("f32", "bf16"))),
    roles=(Role("layernorm"), Role("residual_layernorm", ("residual", "layernorm"), "residual")),
    words=("layer_norm", "ln_fwd", "layernorm_forward"),
)
