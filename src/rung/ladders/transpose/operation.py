"""Transpose: reads and writes are both coalesced only if shared memory transposes tiles."""

from __future__ import annotations

from rung.inputs import F16_LOW, F16_TOP, F32_LOW, F32_TOP, spread, with_infinities
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, sizes


def reference(t: dict[str, torch.Tensor], v: dict[str, int | float]) -> dict[str, torch.Tensor]:
    return {"out": t["x"].T}


def cost(v: dict[str, int | float], size: int) -> Cost:
    return Cost(flops=0, bytes=2 * int(v["R"]) * int(v["C"]) * size)


def torch_transpose(x: torch.Tensor, **_: object) -> torch.Tensor:
    return x.t().contiguous()


OPERATION = Operation(
    name="transpose",
    summary="out[c, r] = x[r, c]",
    story="A tile in shared memory makes both sides coalesced; then bank conflicts are the limit.",
    dims=("R", "C"),
    operands=(Operand("x", ("R", "C")), Operand("out", ("C", "R"), role="out")),
    reference=reference,
    cost=cost,
    reduction="1",
    exact=True,
    cases=(
        Case("one", {"R": 1, "C": 1}),
        Case("a row", {"R": 1, "C": 77}),
        Case("a column", {"R": 77, "C": 1}),
        Case("one tile", {"R": 32, "C": 32}),
        Case("primes", {"R": 67, "C": 101}),
        Case("powers of two, off by one", {"R": 63, "C": 129}),
        Case("large values", {"R": 40, "C": 96}, magnitude=100.0),
        Case("a small square", {"R": 45, "C": 45}),
        Case("a square", {"R": 270, "C": 270}),
        Case("up to float16's end", {"R": 40, "C": 24}, change={"x": spread(F16_TOP)}),
        Case("up to float32's end", {"R": 40, "C": 24}, dtypes=("f32", "bf16"), change={"x": spread(F32_TOP)}),
        Case("down to float16's end", {"R": 40, "C": 24}, change={"x": spread(-10.0, F16_LOW)}),
        Case(
            "down to float32's end", {"R": 40, "C": 24}, dtypes=("f32", "bf16"), change={"x": spread(-120.0, F32_LOW)}
        ),
        Case("infinities and NaN", {"R": 40, "C": 24}, change={"x": with_infinities}),
        Case("twenty tiles", {"R": 540, "C": 620}, where="alone"),
        Case("gpt2 weight", {"R": 768, "C": 2304}, where="cuda"),
        *sizes(dict(R=1030, C=65), dict(R=65, C=1030), dict(R=3, C=4100), dict(R=4100, C=3)),
    ),
    shapes={
        "c768x768": {"R": 768, "C": 768},
        "c2304x768": {"R": 2304, "C": 768},
        "c4096x4096": {"R": 4096, "C": 4096},
        "c8192x8192": {"R": 8192, "C": 8192},
    },
    libraries=(Library("torch", torch_transpose, dtypes=("f32", "f16", "bf16")),),
    races=(Race("c8192x8192", ("f32", "bf16")),),
)
