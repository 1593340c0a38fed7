"""Row sums: the reduction of layernorm and softmax by itself, to compare methods of summation."""

from __future__ import annotations

from rung.inputs import F16_TOP, rows_alike, spread
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, sizes


def reference(t: dict[str, torch.Tensor], v: dict[str, int | float]) -> dict[str, torch.Tensor]:
    return {"out": t["x"].sum(-1)}


def cost(v: dict[str, int | float], size: int) -> Cost:
    B, N = int(v["B"]), int(v["N"])
    return Cost(flops=B * N, bytes=B * N * size + B * 4)


def torch_sum(x: torch.Tensor, **_: object) -> torch.Tensor:
    return x.sum(-1, dtype=torch.float32)


OPERATION = Operation(
    name="reduce",
    summary="out[b] = sum of row b of x",
    story="N additions in N steps, in log N steps, and with fewer and fewer waiting threads.",
    dims=("B", "N"),
    operands=(Operand("x", ("B", "N")), Operand("out", ("B",), role="out", dtype="f32", sums=True)),
    reference=reference,
    cost=cost,
    reduction="N",
    cases=(
        Case("one", {"B": 1, "N": 1}),
        Case("short rows", {"B": 302, "N": 5}),
        Case("odd", {"B": 3, "N": 33}),
        Case("prime", {"B": 4, "N": 769}),
        Case("power of two less one", {"B": 5, "N": 1023}),
        Case("power of two and one", {"B": 3, "N": 4097}),
        Case("several blocks a row", {"B": 2, "N": 20011}),
        # Whole numbers, whose sum is exact in any order.
        Case("more pieces than threads", {"B": 1, "N": 256 * 8192 + 3}, change={"x": lambda x, _: x.round()}),
        Case("gpt2 width", {"B": 6, "N": 768}),
        Case("large values", {"B": 4, "N": 1000}, magnitude=100.0),
        Case("more than 16 bits count", {"B": 70, "N": 1003}),
        Case("up to float16's end", {"B": 3, "N": 300}, change={"x": spread(F16_TOP)}),
        Case("up to float32's end", {"B": 3, "N": 300}, dtypes=("f32", "bf16"), change={"x": spread(116.0)}),
        Case("a million", {"B": 4, "N": (1 << 20) + 3}, where="cuda"),
        *sizes(dict(B=5001, N=9)),
    ),
    edges={"rows of zeros": {"x": rows_alike(0.0)}},
    shapes={
        "b8192n768": {"B": 8192, "N": 768},
        "b65536n1024": {"B": 65536, "N": 1024},
        "b16n1m": {"B": 16, "N": 1 << 20},
        "b1n64m": {"B": 1, "N": 1 << 26},
    },
    libraries=(Library("torch", torch_sum, dtypes=("f32", "f16", "bf16")),),
    races=(Race("b65536n1024", ("f32",)), Race("b16n1m", ("f32",))),
    words=("sum", "sum_rows", "row_sum", "reduction"),
)
