"""GPT-2's activation: GELU in its tanh form."""

from __future__ import annotations

from rung.arrays import gelu
from rung.inputs import F16_TOP, F32_TOP, around, rows_alike, spread
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes

CUBIC = 0.044715  # a library once shipped 0.44715, and no test detected it


def reference(t: Tensors, v: Values) -> Tensors:
    return {"out": gelu(t["x"])}


def cost(v: Values, size: int) -> Cost:
    elements = v["B"] * v["T"] * v["C"]
    return Cost(flops=9 * elements, bytes=2 * elements * size)


def torch_gelu(x: torch.Tensor, **_: object) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


OPERATION = Operation(
    name="gelu",
    summary="out = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))",
    story="An elementwise function with costly arithmetic: first memory is the limit, then the instructions of tanh.",
    dims=("B", "T", "C"),
    operands=(Operand("x", ("B", "T", "C")), Operand("out", ("B", "T", "C"), role="out")),
    reference=reference,
    cost=cost,
    cases=(
        Case("one", dict(B=1, T=1, C=1)),
        Case("odd", dict(B=1, T=3, C=7)),
        Case("prime", dict(B=1, T=1, C=1031)),
        Case("2^10 - 1", dict(B=1, T=1, C=1023)),
        Case("2^11 + 1", dict(B=1, T=1, C=2049)),
        Case("the tails", dict(B=1, T=5, C=67), magnitude=5.0),
        Case("large values", dict(B=1, T=5, C=67), magnitude=100.0),
        Case("gpt2", dict(B=1, T=1, C=3072)),
        Case("where it bends", dict(B=1, T=4, C=33), change={"x": around(-2.0, 0.5)}),
        Case("up to float16's end", dict(B=1, T=5, C=67), change={"x": spread(F16_TOP)}),
        Case(
            "up to float32's end", dict(B=1, T=5, C=67), dtypes=("f32", "tf32", "bf16"), change={"x": spread(F32_TOP)}
        ),
        Case("three batches", dict(B=3, T=4, C=6400)),
        Case("more than 2^17 numbers", dict(B=1, T=90, C=1600), where="alone"),
        Case("gpt2, a batch", dict(B=3, T=129, C=3072), where="cuda"),
        Case("gpt2-xl", dict(B=2, T=65, C=6400), where="cuda"),
        *sizes(dict(B=67, T=2, C=640), dict(B=3, T=1031, C=8), dict(B=8, T=33, C=1024), dict(B=1, T=2, C=1280)),
    ),
    edges={"rows of zeros": {"x": rows_alike(0.0)}},
    shapes={
        "b1t1": dict(B=1, T=1, C=3072),
        "b4t64": dict(B=4, T=64, C=3072),
        "b8t1024c768": dict(B=8, T=1024, C=768),
        "b8t1024": dict(B=8, T=1024, C=3072),
    },
    libraries=(Library("torch", torch_gelu, serves={"library": 1, "emulated": 1, "any": 1}),),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "f16", "bf16")), Race("b8t1024c768", ("f32",))),
    roles=(Role("gelu", sizes={"C": "F"}),),
)
