"""out = residual + x · weightᵀ + bias: the last product of attention and of the MLP in GPT-2."""

from __future__ import annotations

from rung.inputs import F16_TOP, spread, times, two_sided
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes
from rung.precision import float32_products

EVERY_DTYPE = ("f32", "tf32", "f16", "bf16")


def reference(t: Tensors, v: Values) -> Tensors:
    out = t["residual"] + t["x"] @ t["weight"].T
    return {"out": out + t["bias"] if "bias" in t else out}


def cost(v: Values, size: int) -> Cost:
    rows, columns, depth = v["B"] * v["T"], v["OC"], v["C"]
    moved = rows * depth + columns * depth + columns + 2 * rows * columns
    return Cost(flops=2.0 * rows * columns * depth + rows * columns, bytes=float(size * moved))


def torch_separate(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor, dtype: str
) -> torch.Tensor:
    with float32_products(dtype):
        return residual + F.linear(x, weight, bias)


def torch_accumulate(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    out: torch.Tensor,
    dtype: str,
) -> torch.Tensor:
    torch.add(residual, 0.0 if bias is None else bias, out=out)
    with float32_products(dtype):
        out.view(-1, out.shape[-1]).addmm_(x.view(-1, x.shape[-1]), weight.T)
    return out


OPERATION = Operation(
    name="matmul_residual",
    summary="out = residual + x · weightᵀ + bias",
    story="The residual stream is added in the epilogue.",
    dims=("B", "T", "C", "OC"),
    operands=(
        Operand("x", ("B", "T", "C")),
        Operand("weight", ("OC", "C"), constant=True),
        Operand("bias", ("OC",), optional=True, nullable=True, constant=True),
        Operand("residual", ("B", "T", "OC")),
        Operand("out", ("B", "T", "OC"), role="out"),
    ),
    reference=reference,
    cost=cost,
    reduction="C",
    cases=(
        Case("odd", {"B": 1, "T": 7, "C": 37, "OC": 13}),
        Case("one column", {"B": 1, "T": 9, "C": 3, "OC": 1}),
        Case("one row", {"B": 1, "T": 1, "C": 2, "OC": 9}),
        Case("one row of whole vectors", {"B": 1, "T": 1, "C": 72, "OC": 136}),
        Case("five rows of whole vectors", {"B": 5, "T": 1, "C": 136, "OC": 45}),
        Case("eight rows of whole vectors", {"B": 2, "T": 4, "C": 1536, "OC": 19}),
        Case("two rows of whole chunks", {"B": 2, "T": 1, "C": 64, "OC": 24}),
        Case("five rows of whole chunks", {"B": 5, "T": 1, "C": 544, "OC": 45}),
        Case("sixteen rows of many chunks", {"B": 16, "T": 1, "C": 4640, "OC": 19}),
        Case("aligned", {"B": 2, "T": 33, "C": 72, "OC": 136}),
        Case("large values", {"B": 1, "T": 17, "C": 33, "OC": 31}, magnitude=30.0),
        Case(
            "up to the format's end",
            {"B": 1, "T": 17, "C": 40, "OC": 24},
            change={
                "x": two_sided(F16_TOP, 0.02, 0),
                "weight": two_sided(F16_TOP, 0.02, 1),
                "bias": times(2000.0),
                "residual": times(200.0),
            },
        ),
        Case(
            "residual up to the format's end", {"B": 1, "T": 3, "C": 8, "OC": 40}, change={"residual": spread(F16_TOP)}
        ),
        Case("square", {"B": 1, "T": 45, "C": 45, "OC": 45}),
        Case("three batches", {"B": 3, "T": 65, "C": 16, "OC": 352}),
        Case("odd rows of whole depth", {"B": 1, "T": 19, "C": 16, "OC": 37}),
        Case("the MLP's depth", {"B": 1, "T": 2, "C": 6400, "OC": 12}),
        Case("300 rows", {"B": 3, "T": 100, "C": 8, "OC": 16}, where="alone"),
        Case("decode", {"B": 1, "T": 1, "C": 3072, "OC": 768}, where="cuda"),
        Case("eight rows, Llama-3.2-1B", {"B": 8, "T": 1, "C": 8192, "OC": 2048}, where="cuda"),
        Case("primes", {"B": 3, "T": 67, "C": 251, "OC": 509}, where="cuda"),
        Case("one above a power of two", {"B": 1, "T": 129, "C": 1025, "OC": 257}, where="cuda"),
        Case("GPT-2", {"B": 4, "T": 64, "C": 3072, "OC": 768}, where="cuda"),
        Case("GPT-2 XL", {"B": 1, "T": 65, "C": 6400, "OC": 1600}, where="cuda"),
        *sizes(
            dict(B=67, T=3, C=16, OC=24),
            dict(B=1, T=1031, C=8, OC=8),
            dict(B=1, T=2, C=1024, OC=8),
            dict(B=1, T=2, C=1280, OC=8),
            dict(B=1, T=2, C=16, OC=3072),
        ),
    ),
    shapes={
        "decode": {"B": 1, "T": 1, "C": 3072, "OC": 768},
        "decode, Llama-3.2-1B": {"B": 1, "T": 1, "C": 8192, "OC": 2048},
        "decode, SmolLM2-135M": {"B": 1, "T": 1, "C": 1536, "OC": 576},
        "eight rows, Llama-3.2-1B": {"B": 8, "T": 1, "C": 8192, "OC": 2048},
        "eight rows, SmolLM2-135M": {"B": 8, "T": 1, "C": 1536, "OC": 576},
        "b4t64": {"B": 4, "T": 64, "C": 3072, "OC": 768},
        "4096": {"B": 4, "T": 1024, "C": 3072, "OC": 768},
        "b8t1024": {"B": 8, "T": 1024, "C": 3072, "OC": 768},
    },
    libraries=(
        Library("torch", torch_separate, EVERY_DTYPE, note="F.linear, then an addition: two kernels."),
        Library(
            "cublas_accumulate",
            torch_accumulate,
            EVERY_DTYPE,
            note="residual + bias into `out`, then cuBLAS with beta = 1, which adds to it.",
            serves={"prompt": "3 if f32 and 256 < rows < 768 else 0"},
        ),
    ),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "bf16"))),
    roles=(Role("matmul_residual", ("matmul", "residual"), sizes={"C": "F", "OC": "C"}),),
)
