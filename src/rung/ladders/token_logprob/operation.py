"""Log-probabilities of given tokens: the head and its softmax, without storing all probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rung.arrays import Array, Generator, arange, copy_of, logsumexp, namespace, normal
from rung.inputs import far_in_one_feature, near_the_end, rows_alike
from rung.lazy import torch
from rung.operation import Case, Cost, Library, Operand, Operation, Tensors, Values, sizes
from rung.precision import float32_products

LOGITS_AT_ONCE = 1 << 24  # bounds the memory of the reference
NEAR = 2e-3  # rounding errors of a logit, relative to the largest one, tf32 included


def reference(t: Tensors, v: Values) -> Tensors:
    """The outputs, and the fewest and the most tokens that may count as likelier: rounding may put some logits on
    either side of the target's. Those of rows of zeros are exact, and equal ones are never likelier."""
    zero, xp = (t["weight"] == 0).all(1), namespace(t["x"])
    found: dict[str, list[Array]] = {"logprob": [], "entropy": [], "fewest": [], "most": []}
    every, targets = t["x"].reshape(-1, int(v["C"])), t["targets"].reshape(-1)
    at_once = max(1, LOGITS_AT_ONCE // int(v["V"]))
    for start in range(0, len(every), at_once):
        x, target = every[start : start + at_once], targets[start : start + at_once]
        rows = arange(len(x), x)
        logits = x @ t["weight"].T
        logp = logits - logsumexp(logits)[:, None]
        found["logprob"].append(logp[rows, target])
        found["entropy"].append(-(xp.exp(logp) * logp).sum(-1))
        own, exact = logits[rows, target][:, None], zero | (x == 0).all(1)[:, None]
        own_exact = exact[rows, target]
        near = NEAR * xp.amax(abs(logits), axis=1, keepdims=True).clip(1.0) * ~(exact & own_exact[:, None])
        found["fewest"].append((logits > own + near).sum(1))
        found["most"].append((logits > own - near).sum(1) - 1 + own_exact * 1)  # itself is not likelier
    return {name: xp.concatenate(parts).reshape(t["targets"].shape) for name, parts in found.items()}


def rank(t: Tensors, v: Values) -> Array:
    """How many tokens were likelier."""
    xp = namespace(t["rank"])
    return xp.minimum(xp.maximum(t["rank"], t["fewest"]), t["most"])


def cost(v: Values, size: int) -> Cost:
    tokens = v["B"] * v["T"]
    return Cost(flops=2.0 * tokens * v["V"] * v["C"], bytes=float(size * v["C"] * (tokens + v["V"]) + 16 * tokens))


def spread(v: Values, generator: Generator) -> Array:
    """Rows whose logits have a standard deviation of 4, so that some tokens are much likelier than others."""
    V, C = int(v["V"]), int(v["C"])
    return normal(generator, V, C) * (4 / math.sqrt(C))


def ends_likely(weight: Array, _: Mapping[str, int | float]) -> Array:
    """The vocabulary's first and last token make up a large part of the sum."""
    weight = copy_of(weight)
    weight[[0, -1]] *= 4
    return weight


def even_rows_zero(weight: Array, _: Mapping[str, int | float]) -> Array:
    return weight * (arange(len(weight), weight)[:, None] % 2)


def even(targets: Array, _: Mapping[str, int | float]) -> Array:
    return targets // 2 * 2


def torch_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, V: int, dtype: str
) -> dict[str, torch.Tensor]:
    """As it is usually written: all logits, a softmax in float32, and a gather."""
    rows, wanted = x.flatten(0, 1), targets.flatten().long()
    with float32_products(dtype):
        logp = (rows @ weight.T).float().log_softmax(-1)
    own = logp.gather(1, wanted[:, None])
    shape = targets.shape
    return {
        "logprob": own.view(shape),
        "entropy": -(logp.exp() * logp).sum(-1).view(shape),
        "rank": (logp > own).sum(-1).int().view(shape),
    }


OPERATION = Operation(
    name="token_logprob",
    summary="log softmax(x · weightᵀ) of each target, with its rank and the entropy; no logits are stored",
    story="A head of 50257 columns whose logits are never stored: each tile is reduced where it is computed.",
    dims=("B", "T", "C", "V"),
    operands=(
        Operand("x", ("B", "T", "C")),
        Operand("weight", ("V", "C"), make=spread, constant=True),
        Operand("targets", ("B", "T"), dtype="i32", below="V"),
        Operand("logprob", ("B", "T"), role="out", dtype="f32", sums=True),
        Operand("entropy", ("B", "T"), role="out", dtype="f32", sums=True),
        Operand("rank", ("B", "T"), role="out", dtype="i32", follows=rank),
    ),
    reference=reference,
    cost=cost,
    reduction="C",
    cases=(
        Case("odd", {"B": 2, "T": 3, "C": 37, "V": 13}),
        # Not in tf32: for a single product, the rounding error of its factors is not proportional to the result.
        Case("one token of two", {"B": 1, "T": 1, "C": 1, "V": 2}, dtypes=("f32", "f16", "bf16")),
        Case("prime", {"B": 1, "T": 67, "C": 31, "V": 251}),
        Case("2^5 + 1 tokens", {"B": 1, "T": 33, "C": 64, "V": 1025}),
        Case("deeper than a ring", {"B": 1, "T": 5, "C": 328, "V": 300}),
        Case("large values", {"B": 1, "T": 9, "C": 48, "V": 300}, magnitude=3.0, dtypes=("f32", "f16", "bf16")),
        Case("the whole vocabulary", {"B": 1, "T": 2, "C": 8, "V": 50257}, dtypes=("f32",)),
        Case(
            "the vocabulary's end, three batches",
            {"B": 3, "T": 2, "C": 8, "V": 50257},
            change={"targets": near_the_end("V"), "weight": ends_likely},
        ),
        Case(
            "logits beyond exp",
            {"B": 1, "T": 6, "C": 24, "V": 270},
            dtypes=("f32", "f16", "bf16"),
            change={"x": far_in_one_feature(12.0, both=True), "weight": far_in_one_feature(12.0, both=False)},
        ),
        Case("equally likely", {"B": 1, "T": 7, "C": 24, "V": 131}, change={"weight": even_rows_zero, "targets": even}),
        Case("300 tokens", {"B": 3, "T": 100, "C": 8, "V": 33}, where="alone"),
        Case(
            "a vocabulary beyond 16 bits",
            {"B": 1, "T": 2, "C": 8, "V": 70001},
            where="alone",
            change={"targets": near_the_end("V"), "weight": ends_likely},
        ),
        Case("more than 2^16 tokens", {"B": 33, "T": 2000, "C": 16, "V": 9}, where="cuda"),
        Case("gpt2", {"B": 2, "T": 129, "C": 768, "V": 50257}, where="cuda"),
        Case("gpt2-xl", {"B": 1, "T": 70, "C": 1600, "V": 50257}, where="cuda"),
        *sizes(dict(B=1, T=1031, C=8, V=9), dict(B=67, T=2, C=16, V=20)),
    ),
    edges={
        "rows of zeros": {"x": rows_alike(0.0)},
        "equally likely": {"weight": even_rows_zero, "targets": even},
    },
    shapes={
        "b1t64": {"B": 1, "T": 64, "C": 768, "V": 50257},
        "b8t1024": {"B": 8, "T": 1024, "C": 768, "V": 50257},
        "b32t1024": {"B": 32, "T": 1024, "C": 768, "V": 50257},
        "xl b8t1024": {"B": 8, "T": 1024, "C": 1600, "V": 50257},
    },
    libraries=(
        # Logits in 16 bits are rounded before the softmax, which exceeds the bound.
        Library("torch", torch_cross_entropy, ("f32", "tf32"), note="All logits in memory, log_softmax, gather."),
    ),
)
