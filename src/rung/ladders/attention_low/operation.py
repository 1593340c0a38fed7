"""Causal self-attention on queries, keys and values of eight bits (e4m3), each head with a scale of its own.

The reference computes with the numbers that the codes stand for; quantising them is not part of the operation.
"""

from __future__ import annotations

from rung.arrays import (
    Array,
    Generator,
    arange,
    bits_of,
    hide,
    kind_of,
    normal,
    softmax,
    to_kind,
    transpose,
    uniform,
)
from rung.inputs import Change, rows_alike
from rung.lazy import F, torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Tensors, Values

TOP, E4M3 = 448.0, "float8_e4m3fn"  # the largest number of this format


def numbers(codes: Array, scale: Array) -> Array:
    """(B, NH, T, HS) codes times (B, NH) scales."""
    return to_kind(bits_of(to_kind(codes, "uint8"), E4M3), kind_of(scale)) * scale[:, :, None, None]


def reference(t: Tensors, v: Values) -> Tensors:
    q, k, values = (numbers(t[f"{n}_f8"], t[f"{n}_scale"]) for n in "qkv")
    position = arange(q.shape[2], q)
    p = softmax(hide(q @ transpose(k) * v["scale"], position > position[:, None]))
    return {"out": (p @ values).swapaxes(1, 2).reshape(len(q), len(position), -1)}


def cost(v: Values, size: int) -> Cost:
    scores = v["T"] * (v["T"] + 1) / 2
    elements = v["B"] * v["T"] * v["C"]
    return Cost(flops=4 * v["B"] * v["C"] * scores, bytes=3 * elements + size * elements)


def codes(name: str) -> Operand:
    """Rows whose largest number is the format's; its products keep 13 bits on a Hopper GPU's tensor cores."""

    def make(v: Values, generator: Generator) -> Array:
        shape = tuple(int(v[d]) for d in ("B", "NH", "T", "HS"))
        x = normal(generator, *shape)
        return bits_of(to_kind(x / abs(x).max() * TOP, E4M3), "uint8")

    return Operand(f"{name}_f8", ("B", "NH", "T", "HS"), dtype="u8", make=make, sum_bits=13)


def scales(name: str) -> Operand:
    """Such that a code's number is about as large as a normal one."""

    def make(v: Values, generator: Generator) -> Array:
        return (0.5 + uniform(generator, int(v["B"]), int(v["NH"]))) / 128

    return Operand(f"{name}_scale", ("B", "NH"), dtype="f32", make=make)


def sdpa_decoded(
    q_f8: torch.Tensor,
    k_f8: torch.Tensor,
    v_f8: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    **_: object,
) -> torch.Tensor:
    q, k, v = (numbers(c, s).to(out.dtype) for c, s in ((q_f8, q_scale), (k_f8, k_scale), (v_f8, v_scale)))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2).flatten(2)


def all_of(number: float) -> Change:
    """Codes of this number."""
    return lambda codes, _: bits_of(to_kind(codes * 0.0 + number, E4M3), "uint8")


OPERATION = Operation(
    name="attention_low",
    summary="out = softmax(q k^T scale) v, causal, of eight-bit q, k and v with a scale for each head",
    story="Both products of flash attention in e4m3.",
    dims=("B", "T", "C", "NH"),
    derived={"HS": "C // NH"},
    inverse={"C": "NH * HS"},
    scalars={"scale": "1 / sqrt(C // NH)"},
    rules=("C % NH == 0",),
    operands=(
        codes("q"), codes("k"), codes("v"), scales("q"), scales("k"), scales("v"),
        Operand("out", ("B", "T", "C"), role="out", apart=1),
    ),
    reference=reference,
    cost=cost,
    reduction="HS * T",
    cases=(
        Case("odd", dict(B=2, T=7, C=128, NH=2)),
        Case("one token", dict(B=1, T=1, C=64, NH=1)),
        Case("across tiles", dict(B=1, T=67, C=64, NH=1)),
        Case("several tiles", dict(B=1, T=150, C=64, NH=1, scale=0.09)),
        Case("heads of 32", dict(B=1, T=35, C=64, NH=2)),
        Case("heads of 128", dict(B=1, T=40, C=128, NH=1, scale=0.05)),
        Case("gpt2", dict(B=2, T=199, C=768, NH=12), where="cuda"),
    ),
    edges={
        "rows of zeros": dict.fromkeys(("q_f8", "k_f8", "v_f8"), rows_alike(0)),
        "scores far below zero": {"q_f8": all_of(TOP), "k_f8": all_of(-TOP)},
    },
    shapes={
        "b4t64": dict(B=4, T=64, C=768, NH=12),
        "b8t1024": dict(B=8, T=1024, C=768, NH=12),
        "b1h16n8192": dict(B=1, T=8192, C=1024, NH=16),
    },
    libraries=(
        Library("sdpa_decoded", sdpa_decoded, ("bf16",), "cuda", "Codes to bfloat16, then torch's fused attention."),
    ),
    races=(Race("b8t1024", ("bf16",)),),
)  # fmt: skip
