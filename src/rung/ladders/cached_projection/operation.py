"""The QKV projection of a whole text, with keys and values of earlier passes copied from a cache."""

from __future__ import annotations

from rung.arrays import copy_of
from rung.inputs import F16_TOP, times, two_sided
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Tensors, Values, sizes
from rung.precision import float32_products


def reference(t: Tensors, v: Values) -> Tensors:
    T, C, past = int(v["T"]), int(v["C"]), int(v["past"])
    out = t["x"] @ t["weight"].T + t["bias"]
    found = {"out": out}
    for part, name in enumerate(("k_cache", "v_cache"), 1):
        kept, ours = copy_of(t[name]), out[..., part * C : (part + 1) * C]
        ours[:, :past] = kept[:, :past]
        kept[:, past:T] = ours[:, past:]
        found[name] = kept
    return found


def cost(v: Values, size: int) -> Cost:
    B, T, C, new = v["B"], v["T"], v["C"], v["T"] - v["past"]
    moved = B * T * C + 3 * C * C + 3 * C + 2 * B * v["past"] * C + 3 * B * T * C + 2 * B * new * C
    return Cost(flops=2.0 * B * C * C * (T + 2 * new), bytes=float(size * moved))


def torch_projection(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
    out: torch.Tensor, past: int, T: int, C: int, dtype: str,
) -> torch.Tensor:  # fmt: skip
    with float32_products(dtype):
        out[..., :C] = F.linear(x, weight[:C], bias[:C])
        new = F.linear(x[:, past:], weight[C:], bias[C:])
    k_cache[:, past:T], v_cache[:, past:T] = new[..., :C], new[..., C:]
    out[..., C : 2 * C], out[..., 2 * C :] = k_cache[:, :T], v_cache[:, :T]
    return out


OPERATION = Operation(
    name="cached_projection",
    summary="out = x weightᵀ + bias, keys and values of the first `past` tokens from the cache, which keeps the others",
    story="The first step towards a KV cache: only a third of one product remains for a text's earlier tokens.",
    dims=("B", "T", "C", "MAXT"),
    scalars={"past": 0},
    rules=("past <= T and T <= MAXT",),
    operands=(
        Operand("x", ("B", "T", "C")),
        Operand("weight", ("3 * C", "C"), constant=True),
        Operand("bias", ("3 * C",), constant=True),
        # Usual numbers make new keys and values larger than the kept ones, by the root of C.
        Operand("k_cache", ("B", "MAXT", "C"), role="inout", apart=1),
        Operand("v_cache", ("B", "MAXT", "C"), role="inout", apart=1),
        Operand("out", ("B", "T", "3 * C"), role="out"),
    ),
    reference=reference,
    cost=cost,
    reduction="C",
    cases=(
        Case("one", dict(B=1, T=1, C=16, MAXT=1)),
        Case("first pass", dict(B=1, T=9, C=32, MAXT=12)),
        Case("one new token", dict(B=2, T=17, C=48, MAXT=20, past=16)),
        Case("several new tokens", dict(B=1, T=37, C=64, MAXT=40, past=30)),
        Case("across a tile", dict(B=1, T=67, C=32, MAXT=67, past=33)),
        Case("one channel", dict(B=2, T=3, C=1, MAXT=4, past=1), dtypes=("f32", "f16", "bf16")),
        Case("nothing new", dict(B=1, T=5, C=32, MAXT=8, past=5)),
        Case("three batches", dict(B=3, T=12, C=80, MAXT=13, past=7)),
        Case("odd width", dict(B=1, T=6, C=25, MAXT=7, past=3), dtypes=("f32", "f16", "bf16")),
        Case("large values", dict(B=1, T=7, C=48, MAXT=7, past=2), magnitude=8.0),
        Case(
            "up to the format's end",
            dict(B=1, T=17, C=48, MAXT=17),
            change={"x": two_sided(F16_TOP, 0.02, 0), "weight": two_sided(F16_TOP, 0.02, 1), "bias": times(2000.0)},
        ),
        Case("gpt2's context", dict(B=1, T=700, C=16, MAXT=1024, past=600), where="alone"),
        Case("nine batches", dict(B=9, T=3, C=16, MAXT=5, past=2), where="alone"),
        Case("gpt2", dict(B=1, T=57, C=768, MAXT=1024, past=56), where="cuda"),
        Case("gpt2-xl", dict(B=2, T=129, C=1600, MAXT=130, past=64), where="cuda"),
        *sizes(
            dict(B=67, T=2, C=16, MAXT=3, past=1),
            dict(B=1, T=1024, C=8, MAXT=1024, past=900),
        ),
    ),
    shapes={
        "first57": dict(B=1, T=57, C=768, MAXT=1024),
        "next57": dict(B=1, T=57, C=768, MAXT=1024, past=56),
        "next1024": dict(B=1, T=1024, C=768, MAXT=1024, past=1023),
    },
    libraries=(
        Library("torch", torch_projection, ("f32", "tf32", "f16", "bf16"), note="Two products and copies."),
    ),
    races=tuple(Race(shape, ("f32", "tf32")) for shape in ("first57", "next57", "next1024")),
)  # fmt: skip
