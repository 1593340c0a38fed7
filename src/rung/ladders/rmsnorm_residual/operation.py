"""The residual stream's sum and its RMSNorm in one pass: the end of one block and the beginning of the next."""

from __future__ import annotations

from rung.arrays import rms_factor
from rung.inputs import ROW_SCALES, raised_from, rows_alike, rows_scaled, times
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes


def reference(t: Tensors, v: Values) -> Tensors:
    x = t["x"] + t["residual"]
    return {"out": x * rms_factor(x, v["eps"]) * t["weight"], "sum": x}


def cost(v: Values, size: int) -> Cost:
    elements = v["B"] * v["T"] * v["C"]
    return Cost(flops=5 * elements, bytes=(4 * elements + v["C"]) * size)


def torch_separate(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, C: int, eps: float, **_: object
) -> Tensors:
    total = x + residual
    return {"out": F.rms_norm(total, (C,), weight, eps), "sum": total}


OPERATION = Operation(
    name="rmsnorm_residual",
    summary="sum = x + residual; out = sum / sqrt(mean(sum²) + eps) * weight, over the last dimension",
    story="The sum is normalised while it is in registers: four rows of traffic instead of five, and one launch.",
    dims=("B", "T", "C"),
    scalars={"eps": 1e-5},
    operands=(
        Operand("x", ("B", "T", "C")),
        Operand("residual", ("B", "T", "C")),
        Operand("weight", ("C",), constant=True),
        Operand("out", ("B", "T", "C"), role="out"),
        Operand("sum", ("B", "T", "C"), role="out"),
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
        Case("small and large squares", dict(B=2, T=5, C=96),
             change={"x": rows_scaled(*ROW_SCALES), "residual": rows_scaled(*ROW_SCALES)}),
        Case("another eps", dict(B=1, T=6, C=129, eps=2e-2),
             change={"x": rows_scaled(0.02, 0.1, 1.0), "residual": rows_scaled(0.02, 0.1, 1.0)}),
        Case("up to the format's end", dict(B=1, T=5, C=192), change={"x": times(1500.0)}),
        Case("two columns", dict(B=1, T=9, C=2)),
        Case("SmolLM2-135M", dict(B=1, T=3, C=576)),
        Case("Llama-3.2-1B", dict(B=1, T=2, C=2048)),
        Case("more than 2048 columns", dict(B=1, T=2, C=2503), change={"x": raised_from(1024, 4.0)}),
        Case("300 rows", dict(B=3, T=100, C=8), where="alone"),
        Case("more than 2^16 rows", dict(B=33, T=2000, C=16), where="cuda"),
        Case("Llama-3.2-1B, a batch", dict(B=3, T=129, C=2048), where="cuda"),
        *sizes(
            dict(B=67, T=65, C=8),
            dict(B=2, T=1031, C=8),
            dict(B=1, T=2, C=1280),
            dict(B=1, T=2, C=1024),
        ),
    ),
    edges={"rows of zeros": {"x": rows_alike(0.0), "residual": rows_alike(0.0)}},
    shapes={
        "b1t1": dict(B=1, T=1, C=2048),
        "b4t64": dict(B=4, T=64, C=2048),
        "b8t1024": dict(B=8, T=1024, C=2048),
    },
    libraries=(Library("torch", torch_separate, note="torch.add, then F.rms_norm."),),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "bf16"))),
    roles=(Role("rmsnorm_residual", ("residual", "rmsnorm")),),
)  # fmt: skip
