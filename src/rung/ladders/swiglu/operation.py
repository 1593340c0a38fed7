"""SwiGLU: a gate through SiLU, times the other half of an MLP's first product."""

from __future__ import annotations

from rung.arrays import silu
from rung.inputs import F16_TOP, around, rows_alike, spread
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes


def reference(t: Tensors, v: Values) -> Tensors:
    return {"out": silu(t["gate"]) * t["up"]}


def cost(v: Values, size: int) -> Cost:
    elements = v["B"] * v["T"] * v["C"]
    return Cost(flops=5 * elements, bytes=3 * elements * size)


def torch_silu(gate: torch.Tensor, up: torch.Tensor, **_: object) -> torch.Tensor:
    return F.silu(gate) * up


OPERATION = Operation(
    name="swiglu",
    summary="out = silu(gate) * up, with silu(x) = x / (1 + exp(-x))",
    story="Two inputs and an exponential per element: copy speed, and two thirds of the bytes of two kernels.",
    dims=("B", "T", "C"),
    operands=(
        Operand("gate", ("B", "T", "C")),
        Operand("up", ("B", "T", "C")),
        Operand("out", ("B", "T", "C"), role="out"),
    ),
    reference=reference,
    cost=cost,
    cases=(
        Case("one", dict(B=1, T=1, C=1)),
        Case("odd", dict(B=1, T=3, C=7)),
        Case("prime", dict(B=2, T=5, C=67)),
        Case("2^10 + 1", dict(B=1, T=3, C=1025)),
        Case("the tails", dict(B=1, T=5, C=67), magnitude=5.0),
        Case("large values", dict(B=1, T=5, C=64), magnitude=100.0),
        Case("where it bends", dict(B=1, T=4, C=33), change={"gate": around(-1.3, 0.5)}),
        Case("up to float16's end", dict(B=1, T=5, C=64), change={"gate": spread(F16_TOP - 3)}),
        Case("up to float32's end", dict(B=1, T=5, C=64), dtypes=("f32", "bf16"),
             change={"gate": spread(100.0), "up": spread(20.0)}),
        Case("SmolLM2-135M", dict(B=1, T=3, C=1536)),
        Case("three batches", dict(B=3, T=11, C=2048)),
        Case("300 rows", dict(B=3, T=100, C=16), where="alone"),
        Case("Llama-3.2-1B, a batch", dict(B=3, T=129, C=8192), where="cuda"),
        *sizes(
            dict(B=67, T=2, C=640),
            dict(B=3, T=1031, C=8),
            dict(B=1, T=2, C=8192),
            dict(B=1, T=2, C=3072),
        ),
    ),
    edges={"rows of zeros": {"gate": rows_alike(0.0)}},
    shapes={
        "b1t1": dict(B=1, T=1, C=8192),
        "b4t64": dict(B=4, T=64, C=8192),
        "b8t1024": dict(B=8, T=1024, C=8192),
    },
    libraries=(Library("torch", torch_silu),),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "bf16"))),
    roles=(Role("swiglu", sizes={"C": "F"}),),
    words=("swish", "silu_and_mul", "silu_mul"),
)  # fmt: skip
