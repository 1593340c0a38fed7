"""sin²x + cos²x: five elementwise operations, and the memory traffic that fusing them saves."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rung import lazy
from rung.arrays import namespace
from rung.inputs import with_infinities
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, sizes


def reference(t: dict[str, torch.Tensor], v: dict[str, int | float]) -> dict[str, torch.Tensor]:
    xp = namespace(t["x"])
    return {"out": xp.sin(t["x"]) ** 2 + xp.cos(t["x"]) ** 2}


def cost(v: dict[str, int | float], size: int) -> Cost:
    return Cost(flops=5 * int(v["N"]), bytes=2 * int(v["N"]) * size)


def torch_pointwise(x: torch.Tensor, **_: object) -> torch.Tensor:
    return torch.sin(x) ** 2 + torch.cos(x) ** 2


@cache
def compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    return lazy.compiled(lambda x: torch.sin(x) ** 2 + torch.cos(x) ** 2)


def torch_compiled(x: torch.Tensor, **_: object) -> torch.Tensor:
    return compiled()(x)


OPERATION = Operation(
    name="pointwise",
    summary="out[i] = sin²(x[i]) + cos²(x[i])",
    story="Five passes over memory, or one.",
    dims=("N",),
    operands=(Operand("x", ("N",)), Operand("out", ("N",), role="out")),
    reference=reference,
    cost=cost,
    reduction="1",
    cases=(
        Case("one", {"N": 1}),
        Case("odd", {"N": 7}),
        Case("prime", {"N": 1009}),
        Case("power of two and one", {"N": 2049}),
        Case("power of two less one", {"N": 4095}),
        Case("large values", {"N": 1000}, magnitude=100.0),
        Case("infinities and NaN", {"N": 1000}, change={"x": with_infinities}),
        Case("more than 16 bits count", {"N": 70001}),
        Case("more than 2^17 numbers", {"N": 140005}, where="alone"),
        Case("millions", {"N": (1 << 22) + 5}, where="cuda"),
        *sizes(dict(N=524297)),
    ),
    shapes={"n1m": {"N": 1 << 20}, "n16m": {"N": 1 << 24}, "n64m": {"N": 1 << 26}},
    libraries=(
        Library("torch", torch_pointwise, dtypes=("f32",), note="eager: five kernels"),
        Library(
            "torch.compile",
            torch_compiled,
            dtypes=("f32", "f16", "bf16"),
            where="cuda",
            note="fuses the five by itself",
        ),
    ),
    races=(Race("n64m", ("f32",)),),
)
