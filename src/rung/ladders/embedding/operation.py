"""Token and position embeddings: two learned vectors per token, added."""

from __future__ import annotations

from rung.inputs import F16_TOP, near_the_end, spread
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Role, Tensors, Values, sizes


def reference(t: Tensors, v: Values) -> Tensors:
    start, T = int(v["start"]), int(v["T"])
    return {"out": t["wte"][t["tokens"]] + t["wpe"][start : start + T]}


def cost(v: Values, size: int) -> Cost:
    rows = v["B"] * v["T"]
    moved = 2 * rows * v["C"] + v["T"] * v["C"]  # wte's rows and out; wpe's rows are read once for the whole batch
    return Cost(flops=rows * v["C"], bytes=moved * size + rows * 4)


def torch_embedding(
    tokens: torch.Tensor, wte: torch.Tensor, wpe: torch.Tensor, *, T: int, start: int, **_: object
) -> torch.Tensor:
    return F.embedding(tokens, wte) + wpe[start : start + T]


OPERATION = Operation(
    name="embedding",
    summary="out[b, t] = wte[tokens[b, t]] + wpe[start + t]",
    story="A gather and an addition: the speed depends only on how threads are assigned to elements.",
    dims=("B", "T", "C", "V", "MAXT"),
    scalars={"start": 0},
    rules=("start + T <= MAXT",),
    operands=(
        Operand("tokens", ("B", "T"), dtype="i32", below="V"),
        Operand("wte", ("V", "C"), constant=True, aliases=("weight", "table")),
        Operand("wpe", ("MAXT", "C"), constant=True, neutral=0.0),
        Operand("out", ("B", "T", "C"), role="out"),
    ),
    reference=reference,
    cost=cost,
    cases=(
        Case("one", dict(B=1, T=1, C=1, V=1, MAXT=1)),
        Case("odd", dict(B=3, T=5, C=7, V=11, MAXT=9)),
        Case("later start", dict(B=2, T=3, C=64, V=29, MAXT=16, start=13)),
        Case("prime", dict(B=2, T=3, C=67, V=31, MAXT=5, start=2)),
        Case("2^7 + 1", dict(B=1, T=2, C=129, V=17, MAXT=2)),
        Case("one row of vectors", dict(B=1, T=5, C=64, V=23, MAXT=8)),
        Case("five rows of vectors", dict(B=5, T=2, C=72, V=23, MAXT=8)),
        Case("large values", dict(B=1, T=3, C=127, V=13, MAXT=3), magnitude=100.0),
        Case("gpt2", dict(B=2, T=2, C=768, V=61, MAXT=4)),
        Case(
            "tokens and positions at their ends",
            dict(B=3, T=8, C=8, V=50257, MAXT=1024, start=1016),
            change={"tokens": near_the_end("V")},
        ),
        Case(
            "beyond 16 bits", dict(B=2, T=5, C=8, V=70001, MAXT=3000, start=2995), change={"tokens": near_the_end("V")}
        ),
        Case("three batches", dict(B=3, T=29, C=800, V=83, MAXT=64, start=35)),
        Case(
            "up to float16's end",
            dict(B=2, T=3, C=64, V=29, MAXT=16),
            change={"wte": spread(F16_TOP - 1), "wpe": spread(F16_TOP - 1)},
        ),
        Case("300 rows", dict(B=3, T=100, C=16, V=83, MAXT=128, start=28)),
        Case("gpt2, whole tables", dict(B=3, T=129, C=768, V=50257, MAXT=1024), where="cuda"),
        Case("gpt2-xl", dict(B=2, T=65, C=1600, V=50257, MAXT=1024, start=959), where="cuda"),
        *sizes(
            dict(B=67, T=3, C=8, V=83, MAXT=8),
            dict(B=2, T=1024, C=8, V=83, MAXT=1024),
            dict(B=1, T=2, C=1024, V=83, MAXT=8),
            dict(B=1, T=2, C=1280, V=83, MAXT=8),
        ),
    ),
    shapes={
        "b1t1": dict(B=1, T=1, C=768, V=50257, MAXT=1024),
        "b4t64": dict(B=4, T=64, C=768, V=50257, MAXT=1024),
        "b8t1024": dict(B=8, T=1024, C=768, V=50257, MAXT=1024),
    },
    libraries=(
        Library(
            "torch",
            torch_embedding,
            note="F.embedding, then an addition: two kernels",
            serves={"library": 1, "emulated": 1, "any": 1},
        ),
    ),
    races=(Race("b4t64", ("f32", "bf16")), Race("b8t1024", ("f32", "bf16"))),
    roles=(Role("embedding"),),
    words=("encoder", "wte"),
)
