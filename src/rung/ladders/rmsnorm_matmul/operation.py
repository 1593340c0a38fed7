"""RMSNorm and the product after it: the first half of Llama's attention, of its MLP, and its head."""

from __future__ import annotations

from rung.arrays import rms_factor, silu
from rung.inputs import ROW_SCALES, raised_from, rows_alike, rows_scaled, times
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes
from rung.precision import float32_products


def reference(t: Tensors, v: Values) -> Tensors:
    out = (t["x"] * rms_factor(t["x"], v["eps"]) * t["norm"]) @ t["weight"].T
    if "bias" in t:
        out = out + t["bias"]
    if v["gated"]:
        out = silu(out[..., 0::2]) * out[..., 1::2]
    return {"out": out}


def cost(v: Values, size: int) -> Cost:
    rows, columns, depth = v["B"] * v["T"], v["OC"] * (1 + v["gated"]), v["C"]
    moved = rows * depth + columns * depth + columns + depth + rows * v["OC"]
    return Cost(flops=2.0 * rows * columns * depth + 4.0 * rows * depth, bytes=float(size * moved))


def torch_separate(
    x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, C: int, eps: float,
    gated: int, dtype: str, **_: object,
) -> torch.Tensor:  # fmt: skip
    with float32_products(dtype):
        out = F.linear(F.rms_norm(x, (C,), norm, eps), weight, bias)
    return F.silu(out[..., 0::2]) * out[..., 1::2] if gated else out


OPERATION = Operation(
    name="rmsnorm_matmul",
    summary="out = rmsnorm(x) · weightᵀ + bias; with gated = 1, silu of its even columns times the odd ones",
    story="The norm is a scalar per row: it is applied to the finished sum, and no normalised row is ever stored.",
    dims=("B", "T", "C", "OC"),
    scalars={"eps": 1e-5, "gated": 0},
    operands=(
        Operand("x", ("B", "T", "C")),
        Operand("norm", ("C",), constant=True),
        Operand("weight", ("(1 + gated) * OC", "C"), constant=True),
        Operand("bias", ("(1 + gated) * OC",), optional=True, nullable=True, constant=True),
        Operand("out", ("B", "T", "OC"), role="out"),
    ),
    reference=reference,
    cost=cost,
    reduction="C",
    cases=(
        Case("odd", dict(B=1, T=7, C=37, OC=13)),
        Case("one column", dict(B=1, T=9, C=3, OC=1)),
        Case("one row, gated", dict(B=1, T=1, C=2, OC=9, gated=1)),
        Case("odd, gated", dict(B=2, T=5, C=33, OC=21, gated=1)),
        Case("one row", dict(B=1, T=1, C=72, OC=136)),
        Case("one row of many columns", dict(B=1, T=1, C=136, OC=1200)),
        Case("eight rows, gated", dict(B=2, T=4, C=96, OC=37, gated=1)),
        Case("five rows", dict(B=5, T=1, C=64, OC=45)),
        Case("sixteen rows, gated", dict(B=16, T=1, C=544, OC=70, gated=1)),
        Case("two rows, many tiles", dict(B=2, T=1, C=32, OC=4300), where="alone"),
        Case("eleven rows", dict(B=11, T=1, C=96, OC=45)),
        Case("large values", dict(B=1, T=3, C=40, OC=31), magnitude=10.0),
        Case("gates far below zero", dict(B=1, T=6, C=40, OC=24, gated=1), change={"weight": times(4.0)}),
        Case("small and large rows", dict(B=1, T=8, C=40, OC=24), change={"x": rows_scaled(*ROW_SCALES)}),
        Case("another eps", dict(B=1, T=6, C=48, OC=16, eps=2e-2), change={"x": rows_scaled(0.02, 0.1, 1.0)}),
        Case("up to the format's end", dict(B=1, T=7, C=40, OC=8), change={"x": times(4000.0)}),
        Case("SmolLM2-135M's depth", dict(B=1, T=1, C=576, OC=40, gated=1)),
        Case("more than 2048 columns", dict(B=1, T=2, C=2504, OC=30), change={"x": raised_from(1024, 4.0)}),
        Case("300 rows", dict(B=3, T=100, C=8, OC=16), where="alone"),
        Case("a vocabulary", dict(B=1, T=1, C=8, OC=49152), where="alone"),
        Case("Llama-3.2-1B", dict(B=1, T=1, C=2048, OC=3072), where="cuda"),
        Case("Llama-3.2-1B, gated", dict(B=4, T=1, C=2048, OC=8192, gated=1), where="cuda"),
        Case("Llama-3.2-1B, eight rows, gated", dict(B=8, T=1, C=2048, OC=8192, gated=1), where="cuda"),
        Case("SmolLM2-135M, sixteen rows", dict(B=16, T=1, C=576, OC=960), where="cuda"),
        Case("Qwen3-0.6B's vocabulary, eight rows", dict(B=8, T=1, C=1024, OC=151936), where="cuda"),
        Case("Qwen3-0.6B's vocabulary", dict(B=1, T=1, C=1024, OC=151936), where="cuda"),
        Case("primes", dict(B=3, T=67, C=251, OC=509), where="cuda"),
        *sizes(
            dict(B=67, T=3, C=16, OC=24),
            dict(B=1, T=1031, C=8, OC=8),
            dict(B=1, T=2, C=1024, OC=8),
            dict(B=1, T=2, C=16, OC=3072),
        ),
    ),
    edges={"rows of zeros": {"x": rows_alike(0.0)}},
    shapes={
        "qkv": dict(B=1, T=1, C=2048, OC=3072),
        "mlp": dict(B=1, T=1, C=2048, OC=8192, gated=1),
        "small mlp": dict(B=1, T=1, C=576, OC=1536, gated=1),
        "head": dict(B=1, T=1, C=2048, OC=128256),
        "eight rows, small mlp": dict(B=8, T=1, C=576, OC=1536, gated=1),
        "eight rows": dict(B=8, T=1, C=2048, OC=8192, gated=1),
        "eight rows, head": dict(B=8, T=1, C=1024, OC=151936),
        "sixteen rows": dict(B=16, T=1, C=2048, OC=8192, gated=1),
        "four rows": dict(B=4, T=1, C=2048, OC=8192, gated=1),
    },
    libraries=(Library("torch", torch_separate, note="F.rms_norm, F.linear, and F.silu and a product if gated."),),
    races=(Race("mlp", ("f32", "bf16")), Race("small mlp", ("bf16",)), Race("head", ("bf16",))),
    roles=(Role("rmsnorm_matmul", ("rmsnorm", "matmul"), swaps=False),),
)  # fmt: skip
