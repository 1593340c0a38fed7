"""RMSNorm: each row divided by its root mean square, times a weight per column."""

from __future__ import annotations

from rung.arrays import rms_factor
from rung.inputs import ROW_SCALES, around, raised_from, rows_alike, rows_scaled, times
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes


def reference(t: Tensors, v: Values) -> Tensors:
    x = t["x"]
    return {"out": x * rms_factor(x, v["eps"]) * t["weight"]}


def cost(v: Values, size: int) -> Cost:
    elements = v["B"] * v["T"] * v["C"]
    return Cost(flops=4 * elements, bytes=(2 * elements + v["C"]) * size)


def torch_rms_norm(x: torch.Tensor, weight: torch.Tensor, *, C: int, eps: float, **_: object) -> torch.Tensor:
    return F.rms_norm(x, (C,), weight, eps)


OPERATION = Operation(
    name="rmsnorm",
    summary="out = x / sqrt(mean(x²) + eps) * weight, over the last dimension",
    story="One reduction over a row where layernorm has two, in models of Llama's kind; per head, rows are short.",
    dims=("B", "T", "C"),
    scalars={"eps": 1e-5},
    operands=(
        Operand("x", ("B", "T", "C")),
        Operand("weight", ("C",), constant=True, neutral=1.0),
        Operand("out", ("B", "T", "C"), role="out"),
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
        Case("small and large squares", dict(B=2, T=5, C=96), change={"x": rows_scaled(*ROW_SCALES)}),
        Case("another eps", dict(B=1, T=6, C=129, eps=2e-2), change={"x": rows_scaled(0.02, 0.1, 1.0)}),
        Case("up to the format's end", dict(B=1, T=5, C=192), change={"x": times(1500.0)}),
        Case("rows far from zero", dict(B=1, T=3, C=192), change={"x": around(60.0, 1.0)}),
        Case("a tiny eps", dict(B=1, T=3, C=64, eps=1e-9), change={"x": rows_scaled(3e-4, 1e-3)}),
        Case("two columns", dict(B=1, T=9, C=2)),
        Case("heads of 128", dict(B=3, T=16, C=128, eps=1e-6)),
        Case("SmolLM2-135M", dict(B=1, T=3, C=576)),
        Case("Qwen3-0.6B", dict(B=1, T=2, C=1024, eps=1e-6)),
        Case("Llama-3.2-1B", dict(B=1, T=2, C=2048)),
        Case("more than 2048 columns", dict(B=1, T=2, C=2503), change={"x": raised_from(1024, 4.0)}),
        Case("300 rows", dict(B=3, T=100, C=8), where="alone"),
        Case("Llama-3.1-8B", dict(B=1, T=2, C=4096), where="alone"),
        Case("more than 2^16 rows", dict(B=33, T=2000, C=16), where="cuda"),
        Case("Llama-3.2-1B, a batch", dict(B=3, T=129, C=2048), where="cuda"),
        Case("Llama-3.2-3B", dict(B=1, T=65, C=3072), where="cuda"),
        *sizes(dict(B=67, T=65, C=8), dict(B=2, T=1031, C=8), dict(B=1, T=2, C=1280)),
    ),
    edges={"constant rows": {"x": rows_alike(0.0, 0.5, -2.0)}},
    shapes={
        "b1t1": dict(B=1, T=1, C=2048),
        "b4t64": dict(B=4, T=64, C=2048),
        "b8t1024": dict(B=8, T=1024, C=2048),
        "heads": dict(B=8 * 1024, T=24, C=128),
    },
    libraries=(Library("torch", torch_rms_norm),),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "f16", "bf16")), Race("heads", ("bf16",))),
    roles=(Role("rmsnorm"),),
    words=("rms", "rms_norm", "rms_layernorm"),
)
