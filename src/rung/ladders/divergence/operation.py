"""Divergence: elements that need different code, arranged so that a warp executes both branches, one, or neither.

Every element is a spring, released at x and simulated for STEPS small steps. Those at even indices oscillate freely;
those at odd indices are stiffer and have friction. The loops are long enough that the kernel is compute-bound.
"""

from __future__ import annotations

from rung.arrays import Array, namespace
from rung.inputs import F16_TOP, spread
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race

FREE, STIFF = 1 / 32, 1 / 8  # spring constants, exact in every dtype
KEPT = 1 - 1 / 128  # speed after a step with friction, relative to before
STEP = 1 / 4


def swing(x: Array, steps: int) -> Array:
    """All springs oscillate, the even ones freely, the odd ones with friction."""
    xp = namespace(x)
    u, w = xp.asarray(x, copy=True), xp.zeros_like(x)
    for _ in range(steps):
        w[0::2] -= FREE * u[0::2]
        w[1::2] = KEPT * w[1::2] - STIFF * u[1::2]
        u += STEP * w
    return u


def reference(t: dict[str, torch.Tensor], v: dict[str, int | float]) -> dict[str, torch.Tensor]:
    return {"out": swing(t["x"], int(v["STEPS"]))}


def cost(v: dict[str, int | float], size: int) -> Cost:
    free, rubbed = 4, 5  # FLOPs per step
    return Cost(flops=int(v["N"]) * int(v["STEPS"]) * (free + rubbed) / 2, bytes=2 * int(v["N"]) * size)


def torch_swing(x: torch.Tensor, STEPS: int, **_: object) -> Array:
    return swing(x.float(), STEPS).to(x.dtype)


OPERATION = Operation(
    name="divergence",
    summary="out[i] = position of spring i after STEPS steps; even and odd springs obey different rules",
    story="A warp whose lanes take different branches executes both.",
    dims=("N", "STEPS"),
    operands=(Operand("x", ("N",)), Operand("out", ("N",), role="out")),
    reference=reference,
    cost=cost,
    reduction="1",
    cases=(
        Case("one", {"N": 1, "STEPS": 1}),
        Case("odd", {"N": 7, "STEPS": 16}),
        Case("one step", {"N": 65, "STEPS": 1}),
        Case("prime", {"N": 1009, "STEPS": 64}),
        Case("power of two and one", {"N": 1025, "STEPS": 33}),
        Case("power of two less one", {"N": 2047, "STEPS": 16}),
        Case("large values", {"N": 600, "STEPS": 100}, magnitude=100.0),
        Case("more than 16 bits count", {"N": 70001, "STEPS": 2}),
        Case("up to float16's end", {"N": 333, "STEPS": 3}, change={"x": spread(F16_TOP)}),
        Case("long", {"N": (1 << 16) + 3, "STEPS": 256}, where="cuda"),
    ),
    shapes={"n1m": {"N": 1 << 20, "STEPS": 256}, "n16m": {"N": 1 << 24, "STEPS": 256}},
    libraries=(
        Library(
            "torch",
            torch_swing,
            dtypes=("f32", "f16", "bf16"),
            note="torch has no such kernel: a few elementwise calls per step, mostly launches and memory traffic",
        ),
    ),
    races=(Race("n16m", ("f32",)),),
)
