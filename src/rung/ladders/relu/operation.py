"""ReLU: one comparison per element, so that the cost is the bytes of the dtype."""

from __future__ import annotations

from rung.inputs import F16_LOW, F16_TOP, F32_LOW, F32_TOP, mostly_below_zero, spread, with_infinities
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, sizes


def reference(t: dict[str, torch.Tensor], v: dict[str, int | float]) -> dict[str, torch.Tensor]:
    return {"out": t["x"].clip(0)}


def cost(v: dict[str, int | float], size: int) -> Cost:
    return Cost(flops=int(v["N"]), bytes=2 * int(v["N"]) * size)


def torch_relu(x: torch.Tensor, **_: object) -> torch.Tensor:
    return torch.relu(x)


OPERATION = Operation(
    name="relu",
    summary="out[i] = max(0, x[i])",
    story="Half the bits, half the bytes: 8 bytes per comparison in f32, 4 in f16.",
    dims=("N",),
    operands=(Operand("x", ("N",)), Operand("out", ("N",), role="out")),
    reference=reference,
    cost=cost,
    reduction="1",
    exact=True,
    cases=(
        Case("one", {"N": 1}),
        Case("less than a vector", {"N": 3}),
        Case("prime", {"N": 1009}),
        Case("power of two and one", {"N": 4097}),
        Case("power of two less one", {"N": 8191}),
        Case("large values", {"N": 1000}, magnitude=100.0),
        Case("mostly below zero", {"N": 700}, change={"x": mostly_below_zero}),
        Case("up to float16's end", {"N": 1000}, change={"x": spread(F16_TOP)}),
        Case("up to float32's end", {"N": 1000}, dtypes=("f32", "bf16"), change={"x": spread(F32_TOP)}),
        Case("down to float16's end", {"N": 1000}, change={"x": spread(-10.0, F16_LOW)}),
        Case("down to float32's end", {"N": 1000}, dtypes=("f32", "bf16"), change={"x": spread(-120.0, F32_LOW)}),
        Case("infinities and NaN", {"N": 1000}, change={"x": with_infinities}),
        Case("more than 16 bits count", {"N": 70001}),
        Case("more than 2^17 numbers", {"N": 140005}, where="alone"),
        Case("millions", {"N": (1 << 22) + 5}, where="cuda"),
        *sizes(dict(N=524297)),
    ),
    shapes={"n1m": {"N": 1 << 20}, "n16m": {"N": 1 << 24}, "n64m": {"N": 1 << 26}},
    libraries=(
        Library("torch", torch_relu, dtypes=("f32", "f16", "bf16"), serves={"library": 1, "emulated": 1, "any": 1}),
    ),
    races=(Race("n64m", ("f32", "f16")),),
    roles=(Role("relu", sizes={"N": "T * F"}),),
)
