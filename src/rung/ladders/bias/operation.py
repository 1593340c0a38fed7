"""The bias as a separate kernel, after a product without bias: the cost that an epilogue saves."""

from __future__ import annotations

from rung.inputs import F16_TOP, F32_TOP, spread, with_infinities
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Tensors, Values, sizes


def reference(t: Tensors, v: Values) -> Tensors:
    return {"out": t["x"] + t["bias"]}


def cost(v: Values, size: int) -> Cost:
    elements = v["B"] * v["T"] * v["OC"]
    return Cost(flops=elements, bytes=(2 * elements + v["OC"]) * size)


def torch_bias(x: torch.Tensor, bias: torch.Tensor, **_: object) -> torch.Tensor:
    return x + bias


OPERATION = Operation(
    name="bias",
    summary="out = x + bias, the same bias for every token",
    story="A copy with an addition: the pass over memory that a fused epilogue does not make.",
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
        Case("2^7 + 1", dict(B=1, T=3, OC=129)),
        Case("2^10 - 1", dict(B=1, T=1, OC=1023)),
        Case("large values", dict(B=1, T=5, OC=64), magnitude=100.0),
        Case("gpt2", dict(B=1, T=2, OC=768)),
        Case(
            "up to float16's end", dict(B=1, T=5, OC=64), change={"x": spread(F16_TOP - 1), "bias": spread(F16_TOP - 1)}
        ),
        Case(
            "up to float32's end",
            dict(B=1, T=5, OC=64),
            dtypes=("f32", "tf32", "bf16"),
            change={"x": spread(F32_TOP), "bias": spread(F32_TOP)},
        ),
        Case("infinities and NaN", dict(B=1, T=5, OC=64), change={"x": with_infinities}),
        Case("three batches", dict(B=3, T=11, OC=2304)),
        Case("gpt2-xl's MLP, two rows", dict(B=1, T=2, OC=6400), where="alone"),
        Case("300 rows", dict(B=3, T=100, OC=16), where="alone"),
        Case("gpt2's qkv", dict(B=3, T=129, OC=2304), where="cuda"),
        Case("gpt2-xl", dict(B=2, T=65, OC=6400), where="cuda"),
        *sizes(dict(B=67, T=2, OC=640), dict(B=3, T=1031, OC=8), dict(B=2, T=33, OC=4096), dict(B=1, T=2, OC=5120)),
    ),
    shapes={"b4t64": dict(B=4, T=64, OC=3072), "b8t1024": dict(B=8, T=1024, OC=3072)},
    libraries=(Library("torch", torch_bias),),
    races=(Race("b4t64", ("f32",)), Race("b8t1024", ("f32",))),
)
