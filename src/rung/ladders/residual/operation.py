"""The residual stream: a block's input plus its output."""

from __future__ import annotations

from rung.inputs import F16_TOP, F32_TOP, spread, with_infinities
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes


def reference(t: Tensors, v: Values) -> Tensors:
    return {"out": t["a"] + t["b"]}


def cost(v: Values, size: int) -> Cost:
    elements = v["B"] * v["T"] * v["C"]
    return Cost(flops=elements, bytes=3 * elements * size)


def torch_residual(a: torch.Tensor, b: torch.Tensor, **_: object) -> torch.Tensor:
    return a + b


OPERATION = Operation(
    name="residual",
    summary="out = a + b",
    story="The simplest kernel with two inputs: it shows how close to copy speed a kernel can come.",
    dims=("B", "T", "C"),
    operands=(
        Operand("a", ("B", "T", "C")),
        Operand("b", ("B", "T", "C")),
        Operand("out", ("B", "T", "C"), role="out"),
    ),
    reference=reference,
    cost=cost,
    cases=(
        Case("one", dict(B=1, T=1, C=1)),
        Case("odd", dict(B=1, T=3, C=7)),
        Case("prime", dict(B=1, T=1, C=1031)),
        Case("2^10 - 1", dict(B=1, T=1, C=1023)),
        Case("2^11 + 1", dict(B=1, T=1, C=2049)),
        Case("large values", dict(B=1, T=5, C=67), magnitude=100.0),
        Case("gpt2", dict(B=1, T=3, C=768)),
        Case("up to float16's end", dict(B=1, T=5, C=67), change={"a": spread(F16_TOP - 1), "b": spread(F16_TOP - 1)}),
        Case(
            "up to float32's end",
            dict(B=1, T=5, C=67),
            dtypes=("f32", "tf32", "bf16"),
            change={"a": spread(F32_TOP), "b": spread(F32_TOP)},
        ),
        Case("infinities and NaN", dict(B=1, T=5, C=67), change={"a": with_infinities}),
        Case("three batches", dict(B=3, T=15, C=1600)),
        Case("more than 2^17 numbers", dict(B=1, T=90, C=1600), where="alone"),
        Case("gpt2, a batch", dict(B=3, T=129, C=768), where="cuda"),
        Case("gpt2-xl", dict(B=2, T=65, C=1600), where="cuda"),
        *sizes(dict(B=67, T=2, C=640), dict(B=3, T=1031, C=8), dict(B=8, T=33, C=1024), dict(B=1, T=2, C=1280)),
    ),
    shapes={
        "b1t1": dict(B=1, T=1, C=768),
        "b4t64": dict(B=4, T=64, C=768),
        "b8t1024": dict(B=8, T=1024, C=768),
        "b64t1024": dict(B=64, T=1024, C=768),
    },
    libraries=(Library("torch", torch_residual, serves={"library": 1, "emulated": 1, "any": 1}),),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "bf16"))),
    roles=(Role("residual"),),
    words=("vector_add", "vec_add", "vecadd", "add"),
)
