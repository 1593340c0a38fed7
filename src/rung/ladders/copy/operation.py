"""Copy: no arithmetic, so its time is that of the memory system alone."""

from __future__ import annotations

from rung.inputs import F16_LOW, F16_TOP, F32_LOW, F32_TOP, spread, with_infinities
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, sizes


def reference(t: dict[str, torch.Tensor], v: dict[str, int | float]) -> dict[str, torch.Tensor]:
    return {"out": t["x"]}


def cost(v: dict[str, int | float], size: int) -> Cost:
    return Cost(flops=0, bytes=2 * int(v["N"]) * size)


def torch_copy(x: torch.Tensor, **_: object) -> torch.Tensor:
    return x.clone()


OPERATION = Operation(
    name="copy",
    summary="out[i] = x[i]",
    story="The addresses that a warp requests together determine how much of each burst is used.",
    dims=("N",),
    operands=(Operand("x", ("N",)), Operand("out", ("N",), role="out")),
    reference=reference,
    cost=cost,
    reduction="1",
    exact=True,
    cases=(
        Case("one", {"N": 1}),
        Case("less than a vector", {"N": 3}),
        Case("a warp and one", {"N": 33}),
        Case("prime", {"N": 4099}),
        Case("power of two less one", {"N": 8191}),
        Case("power of two", {"N": 16384}),
        Case("large values", {"N": 1000}, magnitude=100.0),
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
    libraries=(Library("torch", torch_copy, dtypes=("f32", "f16", "bf16")),),
    races=(Race("n64m", ("f32", "bf16")),),
)
