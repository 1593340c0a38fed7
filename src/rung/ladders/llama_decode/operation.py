"""One decoding step: a whole Llama over one token per sequence, with cached keys and values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rung.arrays import (
    Array,
    Generator,
    arange,
    copy_of,
    first_largest,
    hide,
    kind_of,
    normal,
    repeated,
    rms_factor,
    silu,
    softmax,
    split,
    to_kind,
    turned,
)
from rung.inputs import Change, near_the_end, rows_alike, rows_twice, times
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Race, Tensors, Values

Make = Callable[[Values, Generator], Array]


def reference(t: Tensors, v: Values) -> Tensors:
    B, NH, NKV, HS = (int(v[n]) for n in ("B", "NH", "NKV", "HS"))
    k_cache, v_cache, past = copy_of(t["k_cache"]), copy_of(t["v_cache"]), t["lengths"]
    rows, at = arange(B, past), arange(int(v["S"]), past)
    hidden = (at > past[:, None]) | (at <= past[:, None] - v["window"])  # (B, S)
    cos, sin = (t[n][past][:, None] for n in ("cosines", "sines"))  # (B, 1, HS / 2)

    def placed(x: Array, norm: str, layer: int) -> Array:
        return turned(_norm(x, t[norm][layer], v) if norm in t else x, cos, sin, 0)

    x = t["wte"][t["tokens"]]  # (B, C)
    for layer in range(int(v["L"])):
        qkv = _linear(_norm(x, t["ln_1_w"][layer], v), t, "qkv", layer).reshape(B, NH + 2 * NKV, HS)
        q, k, value = split(qkv, 1, NH, NKV, NKV)
        k_cache[layer, rows, :, past] = to_kind(placed(k, "k_norm_w", layer), kind_of(k_cache))
        v_cache[layer, rows, :, past] = to_kind(value, kind_of(v_cache))
        keys, values = (repeated(to_kind(c[layer], kind_of(x)), NH // NKV, 1) for c in (k_cache, v_cache))
        scores = (keys @ placed(q, "q_norm_w", layer)[..., None])[..., 0] * v["scale"]  # (B, NH, S)
        p = softmax(hide(scores, hidden[:, None]))
        x = x + _linear((p[:, :, None] @ values).reshape(B, NH * HS), t, "attn_proj", layer)
        h = _linear(_norm(x, t["ln_2_w"][layer], v), t, "fc", layer)
        x = x + _linear(silu(h[:, 0::2]) * h[:, 1::2], t, "mlp_proj", layer)
    logits = _norm(x, t["ln_f_w"], v) @ t["head_w"].T
    return {"logits": logits, "k_cache": k_cache, "v_cache": v_cache}


def _norm(x: Array, weight: Array, v: Values) -> Array:
    return x * rms_factor(x, v["eps"]) * weight


def _linear(x: Array, t: Tensors, name: str, layer: int) -> Array:
    y = x @ t[f"{name}_w"][layer].T
    return y + t[f"{name}_b"][layer] if f"{name}_b" in t else y


def most_likely(t: Tensors, v: Values) -> Array:
    """The first of the largest logits."""
    return first_largest(t["logits"])


def cost(v: Values, size: int) -> Cost:
    # Each weight once, and each key and value of a half-full cache once.
    layer = (2 * v["NH"] + 2 * v["NKV"]) * v["HS"] * v["C"] + 3 * v["C"] * v["F"]
    weights, keys = v["L"] * layer + v["V"] * v["C"], min(v["S"] / 2, v["window"])
    cached = v["L"] * v["B"] * 2 * v["NKV"] * v["HS"] * keys
    flops = 2.0 * v["B"] * weights + 4.0 * v["L"] * v["B"] * v["NH"] * v["HS"] * keys
    return Cost(flops=flops, bytes=float(size * (weights + cached) + 4 * v["B"] * v["V"]))


# ---- inputs -----------------------------------------------------------------------------------------------------


def _normal(deviation: Callable[[Values], float], around: float, *shape: str) -> Make:
    def make(v: Values, generator: Generator) -> Array:
        sizes = {"QKV": (v["NH"] + 2 * v["NKV"]) * v["HS"], "Y": v["NH"] * v["HS"], "2F": 2 * v["F"], **v}
        return normal(generator, *(int(sizes[n]) for n in shape)) * deviation(v) + around

    return make


def _angles(v: Values) -> Array:
    return np.outer(np.arange(v["S"]), 1e4 ** -(np.arange(0, v["HS"], 2) / v["HS"]))


def _parameter(name: str, shape: tuple[str, ...], make: Make, **more: Any) -> Operand:
    return Operand(name, shape, constant=True, make=make, **more)


def _gain(name: str, *shape: str, **more: Any) -> Operand:
    return _parameter(name, shape, _normal(lambda v: 0.1, 1.0, *shape), **more)


def _product(name: str, rows: str, short: str, columns: str, inputs: str) -> tuple[Operand, Operand]:
    """A matrix whose outputs are about as large as its inputs, and its bias."""

    def unit(v: Values) -> float:
        return 1 / math.sqrt(v["NH"] * v["HS"] if inputs == "Y" else v[inputs])

    return (
        _parameter(f"{name}_w", ("L", rows, columns), _normal(unit, 0.0, "L", short, inputs)),
        _parameter(f"{name}_b", ("L", rows), _normal(lambda v: 0.1, 0.0, "L", short), optional=True, nullable=True),
    )


WTE = _normal(lambda v: 0.5, 0.0, "V", "C")


def _dims(L: int, C: int, NH: int, NKV: int, HS: int, width: int, V: int, S: int, **more: float) -> Values:
    return {"B": 1, "L": L, "C": C, "NH": NH, "NKV": NKV, "HS": HS, "F": width, "V": V, "S": S, **more}


def cached(tokens: int) -> Change:
    """This many tokens are already cached."""
    return lambda x, v: x * 0 + tokens


def torch_decode(
    tokens: torch.Tensor, lengths: torch.Tensor, wte: torch.Tensor, ln_1_w: torch.Tensor, qkv_w: torch.Tensor,
    qkv_b: torch.Tensor | None, q_norm_w: torch.Tensor | None, k_norm_w: torch.Tensor | None,
    attn_proj_w: torch.Tensor, attn_proj_b: torch.Tensor | None, ln_2_w: torch.Tensor, fc_w: torch.Tensor,
    fc_b: torch.Tensor | None, mlp_proj_w: torch.Tensor, mlp_proj_b: torch.Tensor | None, ln_f_w: torch.Tensor,
    head_w: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
    B: int, L: int, NH: int, NKV: int, HS: int, S: int, eps: float, scale: float, window: int,
) -> Tensors:  # fmt: skip
    given: dict[str, Any] = {name: x for name, x in locals().items() if x is not None}
    found = reference({n: x for n, x in given.items() if isinstance(x, torch.Tensor)}, given)
    k_cache.copy_(found["k_cache"])
    v_cache.copy_(found["v_cache"])
    logits = found["logits"].float()
    return {"logits": logits, "next": logits.argmax(1).int()}


SMALL = _dims(2, 64, 4, 2, 32, 96, 67, 9)
OPERATION = Operation(
    name="llama_decode",
    summary="one more token for each of B sequences, a whole model of Llama's layer",
    story="A layer's five launches become one kernel's phases, and weights arrive while blocks wait for each other.",
    dims=("B", "L", "C", "NH", "NKV", "HS", "F", "V", "S"),
    scalars={"eps": 1e-5, "scale": "1 / sqrt(HS)", "window": "S"},
    rules=("NH % NKV == 0", "HS % 2 == 0"),
    operands=(
        Operand("tokens", ("B",), dtype="i32", below="V"),
        Operand("lengths", ("B",), dtype="i32", below="S"),  # tokens cached so far: this one's position
        _parameter("wte", ("V", "C"), WTE),
        _gain("ln_1_w", "L", "C"),
        *_product("qkv", "(NH + 2 * NKV) * HS", "QKV", "C", "C"),
        _gain("q_norm_w", "L", "HS", optional=True, nullable=True),
        _gain("k_norm_w", "L", "HS", optional=True, nullable=True),
        *_product("attn_proj", "C", "C", "NH * HS", "Y"),
        _gain("ln_2_w", "L", "C"),
        *_product("fc", "2 * F", "2F", "C", "C"),  # rows of the gate and of its factor in turns
        *_product("mlp_proj", "C", "C", "F", "F"),
        _gain("ln_f_w", "C"),
        _parameter("head_w", ("V", "C"), _normal(lambda v: 1 / math.sqrt(v["C"]), 0.0, "V", "C")),
        _parameter("cosines", ("S", "HS // 2"), lambda v, _: np.cos(_angles(v)), dtype="f32"),
        _parameter("sines", ("S", "HS // 2"), lambda v, _: np.sin(_angles(v)), dtype="f32"),
        Operand("k_cache", ("L", "B", "NKV", "S", "HS"), role="inout", counted=True, share=0.5),
        Operand("v_cache", ("L", "B", "NKV", "S", "HS"), role="inout", counted=True, share=0.5),
        Operand("logits", ("B", "V"), role="out", dtype="f32"),
        Operand("next", ("B",), role="out", dtype="i32", follows=most_likely),
    ),
    reference=reference,
    cost=cost,
    # As for decode: every layer rounds several intermediate results to the number format, whatever the widths.
    reduction="max(32768, 16384 * L)",
    cases=(
        Case("one layer, the first token", _dims(1, 32, 2, 1, 16, 48, 33, 3), change={"lengths": cached(0)}),
        Case("two layers", SMALL),
        *(Case(f"{n} of 9 keys cached", SMALL, change={"lengths": cached(n)}) for n in (1, 8)),
        Case("keys in several parts", _dims(1, 48, 3, 1, 32, 64, 35, 300), change={"lengths": cached(299)}),
        Case("a window", _dims(1, 64, 2, 2, 32, 64, 35, 300, window=70), change={"lengths": cached(257)}),
        Case("heads of 128, a group of 8", _dims(1, 40, 8, 1, 128, 56, 19, 40)),
        Case("heads of 64, three groups", _dims(3, 72, 9, 3, 64, 136, 51, 20)),
        Case("no groups", _dims(2, 64, 2, 2, 64, 64, 77, 12), change={"lengths": near_the_end("S")}),
        Case("another eps and scale", {**SMALL, "eps": 0.03, "scale": 0.7}),
        Case("small variances", SMALL, change={"wte": times(2.0**-8)}),
        Case("scores beyond exp", {**SMALL, "scale": 40.0}, dtypes=("f32",), change={"lengths": near_the_end("S")}),
        Case("gates far below zero", SMALL, change={"fc_w": times(4.0)}),
        Case("rows in parts", _dims(1, 32, 2, 1, 16, 4112, 23, 5)),
        Case("a vocabulary", _dims(1, 32, 2, 1, 16, 32, 32003, 8), change={"tokens": near_the_end("V")}),
        Case("SmolLM2-135M, two layers", _dims(2, 576, 9, 3, 64, 1536, 49152, 1024), where="cuda"),
        Case("Qwen3-0.6B's width", _dims(2, 1024, 16, 8, 128, 3072, 1009, 1024), where="cuda"),
        Case(
            "Llama-3.2-1B's width", _dims(2, 2048, 32, 8, 64, 8192, 2003, 4096),
            where="cuda", change={"lengths": near_the_end("S")},
        ),
        Case("Qwen2.5-0.5B's width", _dims(2, 896, 14, 2, 64, 4864, 1511, 512), where="cuda"),
        Case("the first token", _dims(3, 160, 5, 1, 32, 416, 307, 90), where="cuda", change={"lengths": cached(0)}),
        Case(
            "a longer window", {**_dims(2, 256, 8, 2, 32, 512, 700, 1500, window=300), "eps": 0.01, "scale": 0.3},
            where="cuda", change={"lengths": cached(1201)},
        ),
    ),
    edges={"rows of zeros": {"wte": rows_alike(0.0)}, "greedy among equals": {"head_w": rows_twice}},
    shapes={
        "smollm2-135m": _dims(30, 576, 9, 3, 64, 1536, 49152, 512),
        "qwen3-0.6b": _dims(28, 1024, 16, 8, 128, 3072, 151936, 512),
        "llama-3.2-1b": _dims(16, 2048, 32, 8, 64, 8192, 128256, 512),
    },
    # In half precision torch rounds the residual stream after every operator, which exceeds the bounds.
    libraries=(Library("torch", torch_decode, ("f32",), note="The step through torch, operator by operator."),),
    races=(Race("smollm2-135m", ("f32", "bf16"), patience=0.2), Race("llama-3.2-1b", ("bf16",), patience=0.2)),
)  # fmt: skip
