"""out = gelu(x · weightᵀ + bias): the first half of GPT-2's MLP."""

from __future__ import annotations

from rung.arrays import gelu
from rung.inputs import F16_TOP, around, rows_alike, times, two_sided
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes
from rung.precision import float32_products

EVERY_DTYPE = ("f32", "tf32", "f16", "bf16")


def reference(t: Tensors, v: Values) -> Tensors:
    u = t["x"] @ t["weight"].T
    return {"out": gelu(u + t["bias"] if "bias" in t else u)}


def cost(v: Values, size: int) -> Cost:
    rows, columns, depth = v["B"] * v["T"], v["OC"], v["C"]
    moved = rows * depth + columns * depth + columns + rows * columns
    return Cost(flops=2.0 * rows * columns * depth + 9.0 * rows * columns, bytes=float(size * moved))


def torch_separate(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: str) -> torch.Tensor:
    with float32_products(dtype):
        return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def torch_fused(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, dtype: str
) -> torch.Tensor:
    flat, product = x.view(-1, x.shape[-1]), out.view(-1, out.shape[-1])
    shift = weight.new_zeros(weight.shape[0]) if bias is None else bias
    with float32_products(dtype):
        torch._addmm_activation(shift, flat, weight.T, use_gelu=True, out=product)
    return out


OPERATION = Operation(
    name="matmul_gelu",
    summary="out = gelu(x · weightᵀ + bias), with gelu in its tanh form",
    story="An activation costs a pass over memory, or nothing in an epilogue.",
    dims=("B", "T", "C", "OC"),
    operands=(
        Operand("x", ("B", "T", "C")),
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
        Case("aligned", {"B": 2, "T": 33, "C": 72, "OC": 136}),
        Case("large values", {"B": 1, "T": 17, "C": 33, "OC": 31}, magnitude=30.0),
        Case(
            "up to the format's end",
            {"B": 1, "T": 17, "C": 40, "OC": 24},
            change={"x": two_sided(F16_TOP, 0.02, 0), "weight": two_sided(F16_TOP, 0.02, 1), "bias": times(2000.0)},
        ),
        Case(
            "where gelu bends",
            {"B": 1, "T": 10, "C": 24, "OC": 16},
            change={"x": times(0.1), "bias": around(-2.5, 0.3)},
        ),
        Case("square", {"B": 1, "T": 45, "C": 45, "OC": 45}),
        Case("three batches", {"B": 3, "T": 65, "C": 16, "OC": 352}),
        Case("odd rows of whole depth", {"B": 1, "T": 19, "C": 16, "OC": 37}),
        Case("the MLP's depth", {"B": 1, "T": 2, "C": 6400, "OC": 12}),
        Case("300 rows", {"B": 3, "T": 100, "C": 8, "OC": 16}, where="alone"),
        Case("decode", {"B": 1, "T": 1, "C": 768, "OC": 3072}, where="cuda"),
        Case("primes", {"B": 3, "T": 67, "C": 251, "OC": 509}, where="cuda"),
        Case("one above a power of two", {"B": 1, "T": 129, "C": 1025, "OC": 257}, where="cuda"),
        Case("GPT-2", {"B": 4, "T": 64, "C": 768, "OC": 3072}, where="cuda"),
        Case("GPT-2 XL", {"B": 1, "T": 65, "C": 1600, "OC": 6400}, where="cuda"),
        *sizes(
            dict(B=67, T=3, C=16, OC=24),
            dict(B=1, T=1031, C=8, OC=8),
            dict(B=1, T=2, C=1024, OC=8),
            dict(B=1, T=2, C=1280, OC=8),
            dict(B=1, T=2, C=16, OC=3072),
        ),
    ),
    edges={"rows of zeros": {"x": rows_alike(0.0), "bias": rows_alike(0.0)}},
    shapes={
        "decode": {"B": 1, "T": 1, "C": 768, "OC": 3072},
        "b4t64": {"B": 4, "T": 64, "C": 768, "OC": 3072},
        "4096": {"B": 4, "T": 1024, "C": 768, "OC": 3072},
        "b8t1024": {"B": 8, "T": 1024, "C": 768, "OC": 3072},
    },
    libraries=(
        Library(
            "torch",
            torch_separate,
            EVERY_DTYPE,
            note="F.linear, then F.gelu: two kernels.",
            serves={"prompt": 5, "emulated": 1},
        ),
        Library(
            "cublaslt",
            torch_fused,
            ("tf32", "f16", "bf16"),  # its tanh exceeds float32's bound where gelu curves
            where="cuda",
            note="The GELU epilogue: on a GPU the tanh form, on a CPU the same call takes the erf form.",
            serves={"prompt": 4},
        ),
    ),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "bf16"))),
    roles=(Role("matmul_gelu", ("matmul", "gelu"), sizes={"OC": "F"}),),
)
