"""Three nested sigmoids, forward and backward: store the activations, or recompute them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rung.arrays import Array, sigmoid
from rung.inputs import F16_TOP, spread
from rung.lazy import compiled, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, sizes


def forward_backward(x: Array, dy: Array, sigmoid: Callable[[Array], Array] = sigmoid) -> dict[str, Array]:
    """y = σ(σ(σ(x))) and dx = dy · dy/dx, written with a sigmoid's derivative s · (1 - s)."""
    s1 = sigmoid(x)
    s2 = sigmoid(s1)
    y = sigmoid(s2)
    dx = dy * (y * (1 - y)) * (s2 * (1 - s2)) * (s1 * (1 - s1))
    return {"y": y, "dx": dx}


def reference(t: dict[str, torch.Tensor], v: dict[str, int | float]) -> dict[str, torch.Tensor]:
    return forward_backward(t["x"], t["dy"])


def cost(v: dict[str, int | float], size: int) -> Cost:
    # Forward reads x and writes y, backward reads x and dy and writes dx: the minimum for two passes.
    return Cost(flops=21 * int(v["N"]), bytes=5 * int(v["N"]) * size)


def torch_eager(x: torch.Tensor, dy: torch.Tensor, **_: object) -> dict[str, torch.Tensor]:
    s1 = torch.sigmoid(x)
    s2 = torch.sigmoid(s1)
    y = torch.sigmoid(s2)
    backward = torch.ops.aten.sigmoid_backward
    return {"y": y, "dx": backward(backward(backward(dy, y), s2), s1)}


@cache
def compiled_forward() -> Callable[[torch.Tensor], torch.Tensor]:
    return compiled(lambda x: torch.sigmoid(torch.sigmoid(torch.sigmoid(x))))


@cache
def compiled_backward() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return compiled(lambda x, dy: forward_backward(x, dy, torch.sigmoid)["dx"])


def torch_compiled(x: torch.Tensor, dy: torch.Tensor, **_: object) -> dict[str, torch.Tensor]:
    return {"y": compiled_forward()(x), "dx": compiled_backward()(x, dy)}


OPERATION = Operation(
    name="recompute",
    summary="y = σ(σ(σ(x))) and dx = dy · dy/dx",
    story="What is cheap to recompute need not be stored: five transfers instead of eight.",
    dims=("N",),
    operands=(
        Operand("x", ("N",)),
        Operand("dy", ("N",)),
        Operand("y", ("N",), role="out"),
        Operand("dx", ("N",), role="out"),
    ),
    reference=reference,
    cost=cost,
    reduction="1",
    cases=(
        Case("one", {"N": 1}),
        Case("less than a vector", {"N": 3}),
        Case("prime", {"N": 1009}),
        Case("power of two and one", {"N": 2049}),
        Case("power of two less one", {"N": 4095}),
        Case("large values", {"N": 1000}, magnitude=100.0),
        Case("more than 16 bits count", {"N": 70001}),
        Case("up to float16's end", {"N": 1000}, change={"x": lambda x, _: x * 2, "dy": spread(F16_TOP)}),
        Case("more than 2^17 numbers", {"N": 140005}, where="alone"),
        Case("millions", {"N": (1 << 22) + 5}, where="cuda"),
        *sizes(dict(N=524297)),
    ),
    shapes={"n1m": {"N": 1 << 20}, "n16m": {"N": 1 << 24}, "n64m": {"N": 1 << 26}},
    libraries=(
        Library("torch", torch_eager, dtypes=("f32",), note="eager: three kernels forward, three backward"),
        Library(
            "torch.compile",
            torch_compiled,
            dtypes=("f32", "f16", "bf16"),
            where="cuda",
            note="one kernel forward and one backward, which recomputes",
        ),
    ),
    races=(Race("n64m", ("f32",)),),
)
