"""out = x · weightᵀ + bias: the linear layer, and most of GPT-2's arithmetic."""

from __future__ import annotations

from rung.inputs import F16_TOP, times, two_sided
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes
from rung.precision import float32_products

EVERY_DTYPE = ("f32", "tf32", "f16", "bf16")


def reference(t: Tensors, v: Values) -> Tensors:
    out = t["x"] @ (t["weight_t"] if "weight_t" in t else t["weight"].T)
    return {"out": out + t["bias"] if "bias" in t else out}


def cost(v: Values, size: int) -> Cost:
    rows, columns, depth = v["B"] * v["T"], v["OC"], v["C"]
    moved = rows * depth + columns * depth + columns + rows * columns
    return Cost(flops=2.0 * rows * columns * depth, bytes=float(size * moved))


def torch_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: str) -> torch.Tensor:
    with float32_products(dtype):
        return F.linear(x, weight, bias)


def torch_addmm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, dtype: str
) -> torch.Tensor:
    flat, product = x.view(-1, x.shape[-1]), out.view(-1, out.shape[-1])
    with float32_products(dtype):
        if bias is None:
            torch.mm(flat, weight.T, out=product)
        else:
            torch.addmm(bias, flat, weight.T, out=product)
    return out


OPERATION = Operation(
    name="matmul",
    summary="out = x · weightᵀ + bias, the linear layer",
    story="From one thread per output to tensor cores fed by an asynchronous pipeline.",
    dims=("B", "T", "C", "OC"),
    operands=(
        Operand("x", ("B", "T", "C")),
        Operand("weight", ("OC", "C"), constant=True),
        Operand("bias", ("OC",), optional=True, nullable=True, constant=True),
        Operand("out", ("B", "T", "OC"), role="out"),
        Operand("weight_t", ("C", "OC"), optional=True, instead="weight", constant=True),  # of a plain product A x B
    ),
    reference=reference,
    cost=cost,
    reduction="C",
    cases=(
        Case("odd", {"B": 1, "T": 7, "C": 37, "OC": 13}),
        Case("one", {"B": 1, "T": 1, "C": 1, "OC": 1}),
        Case("aligned", {"B": 2, "T": 33, "C": 72, "OC": 136}),
        Case("GPT-2 XL's depth", {"B": 1, "T": 2, "C": 1600, "OC": 5}),
        Case("large values", {"B": 1, "T": 17, "C": 33, "OC": 31}, magnitude=30.0),
        Case(
            "up to the format's end",
            {"B": 1, "T": 17, "C": 40, "OC": 24},
            change={
                "x": two_sided(F16_TOP, 0.02, 0),
                "weight": two_sided(F16_TOP, 0.02, 1),
                "weight_t": lambda weight, v: two_sided(F16_TOP, 0.02, 1)(weight.T, v).T,
                "bias": times(2000.0),
            },
        ),
        Case("square", {"B": 1, "T": 45, "C": 45, "OC": 45}),
        Case("three batches", {"B": 3, "T": 65, "C": 16, "OC": 352}),
        Case("deeper than a ring", {"B": 1, "T": 5, "C": 392, "OC": 24}),
        Case("the MLP's depth", {"B": 1, "T": 2, "C": 6400, "OC": 12}),
        Case("a padded vocabulary", {"B": 1, "T": 2, "C": 8, "OC": 50304}, where="alone"),
        Case("300 rows", {"B": 3, "T": 100, "C": 8, "OC": 16}, where="alone"),
        Case("decode", {"B": 1, "T": 1, "C": 768, "OC": 2304}, where="cuda"),
        Case("qkv", {"B": 4, "T": 64, "C": 768, "OC": 2304}, where="cuda"),
        Case("primes", {"B": 3, "T": 67, "C": 251, "OC": 509}, where="cuda"),
        Case("one above a power of two", {"B": 1, "T": 129, "C": 1025, "OC": 257}, where="cuda"),
        Case("one below a power of two", {"B": 1, "T": 127, "C": 1023, "OC": 255}, where="cuda"),
        Case("projection", {"B": 1, "T": 199, "C": 3072, "OC": 768}, where="cuda"),
        Case("GPT-2 XL", {"B": 1, "T": 65, "C": 1600, "OC": 6400}, where="cuda"),
        Case("vocabulary", {"B": 1, "T": 5, "C": 768, "OC": 50257}, where="cuda"),
        *sizes(
            dict(B=67, T=3, C=16, OC=24),
            dict(B=1, T=1031, C=8, OC=8),
            dict(B=1, T=2, C=1024, OC=8),
            dict(B=1, T=2, C=1280, OC=8),
            dict(B=1, T=2, C=16, OC=3072),
            dict(B=1, T=1, C=8200, OC=3),
        ),
    ),
    shapes={
        "b4t64": {"B": 4, "T": 64, "C": 768, "OC": 3072},
        "b4t64 qkv": {"B": 4, "T": 64, "C": 768, "OC": 2304},
        "b4t64 proj": {"B": 4, "T": 64, "C": 3072, "OC": 768},
        "b4t64 out": {"B": 4, "T": 64, "C": 768, "OC": 768},
        "b8t1024": {"B": 8, "T": 1024, "C": 768, "OC": 3072},
        "b8t1024 proj": {"B": 8, "T": 1024, "C": 3072, "OC": 768},
        "4096x768x3072": {"B": 4, "T": 1024, "C": 768, "OC": 3072},
        "decode": {"B": 1, "T": 1, "C": 768, "OC": 3072},
        "lm head": {"B": 4, "T": 64, "C": 768, "OC": 50257},
        "lm head decode": {"B": 1, "T": 1, "C": 768, "OC": 50257},
        "square 8192": {"B": 8, "T": 1024, "C": 8192, "OC": 8192},
    },
    libraries=(
        Library(
            "torch",
            torch_linear,
            EVERY_DTYPE,
            note="F.linear; float32 on tensor cores only as tf32.",
            serves={"library": 1, "prompt": 4, "emulated": 1, "any": 1},
        ),
        Library(
            "cublaslt",
            torch_addmm,
            EVERY_DTYPE,
            note="addmm into `out`, the bias in the epilogue.",
            serves={"prompt": 3},
        ),
    ),
    races=(
        Race("b4t64", ("f32", "tf32", "f16", "bf16")),
        Race("b8t1024", ("f32", "tf32", "f16", "bf16")),
        Race("4096x768x3072", ("bf16",)),
        Race("decode", ("f32", "bf16")),
        Race("lm head", ("f32", "tf32", "f16", "bf16")),
    ),
    roles=(Role("matmul", sizes={"OC": "QKV"}),),
    words=("gemm", "mm_kernel", "linear", "matrixmul", "matrix_mul", "blocktiling"),
)
