"""Bias and GELU in one pass, after a product with neither: half of the cost that a fused epilogue saves."""

from __future__ import annotations

from rung.arrays import gelu
from rung.inputs import F16_TOP, F32_TOP, around, rows_alike, spread
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Tensors, Values, sizes


def reference(t: Tensors, v: Values) -> Tensors:
    return {"out": gelu(t["x"] + t["bias"])}


def cost(v: Values, size: int) -> Cost:
    elements = v["B"] * v["T"] * v["OC"]
    return Cost(flops=10 * elements, bytes=(2 * elements + v["OC"]) * size)


def torch_bias_gelu(x: torch.Tensor, bias: torch.Tensor, **_: object) -> torch.Tensor:
    return F.gelu(x + bias, approximate="tanh")


OPERATION = Operation(
    name="bias_gelu",
    summary="out = gelu(x + bias), the same bias for every token",
    story="The work after a product without an epilogue, in one pass over memory instead of two.",
    dims=("B", "T", "OC"),
    operands=(
        Operand("x", ("B", "T", "OC")),
        Operand("bias", ("OC",), constant=True),
        Operand("out", ("B", "T", "OC"), role="out"),
    ),
    reference=reference,
    cost=cost,
    cases=(
        Case("one", dict(B=1, T=1, OC=1)),
        Case("odd", dict(B=1, T=3, OC=7)),
        Case("prime", dict(B=2, T=5, OC=67)),
        Case("2^10 + 1", dict(B=1, T=3, OC=1025)),
        Case("the tails", dict(B=1, T=5, OC=67), magnitude=5.0),
        Case("large values", dict(B=1, T=5, OC=64), magnitude=100.0),
        Case("gpt2", dict(B=1, T=2, OC=3072)),
        Case("where it bends", dict(B=1, T=4, OC=33), change={"x": around(-2.0, 0.5), "bias": around(0.0, 0.2)}),
        Case(
            "up to float16's end", dict(B=1, T=5, OC=64), change={"x": spread(F16_TOP - 1), "bias": spread(F16_TOP - 1)}
        ),
        Case(
            "up to float32's end",
            dict(B=1, T=5, OC=64),
            dtypes=("f32", "bf16"),
            change={"x": spread(F32_TOP), "bias": spread(F32_TOP)},
        ),
        Case("three batches", dict(B=3, T=11, OC=6400)),
        Case("300 rows", dict(B=3, T=100, OC=16), where="alone"),
        Case("gpt2, a batch", dict(B=3, T=129, OC=3072), where="cuda"),
        *sizes(dict(B=67, T=2, OC=640), dict(B=3, T=1031, OC=8), dict(B=2, T=33, OC=4096), dict(B=1, T=2, OC=5120)),
    ),
    edges={"rows of zeros": {"x": rows_alike(0.0), "bias": rows_alike(0.0)}},
    shapes={"b4t64": dict(B=4, T=64, OC=3072), "b8t1024": dict(B=8, T=1024, OC=3072)},
    libraries=(Library("torch", torch_bias_gelu),),
    races=(Race("b4t64", ("f32",)), Race("b8t1024", ("f32",))),
)
