"""A token for each sequence from its logits: penalties, temperature, top-k, top-p, min-p, one random number."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rung.arrays import (
    Array,
    Generator,
    arange,
    copy_of,
    first_largest,
    from_numbers,
    integers,
    moved,
    namespace,
    normal,
    softmax,
    to_host,
    to_kind,
)
from rung.arrays import uniform as fractions
from rung.inputs import Change, leading
from rung.operation import Case, Cost, Operand, Operation, Race, Tensors, Values

SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repetition", "presence", "frequency")
WORD = 0xFFFFFFFF


def uniform(low: int, high: int, sequence: int, step: int) -> float:
    """Philox 4x32-10 of the seed (two words) at (step, 0, sequence, 0): 24 bits in [0, 1)."""
    k0, k1 = low & WORD, high & WORD
    a, b, c, d = step & WORD, 0, sequence & WORD, 0
    for _ in range(10):
        x, y = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (y >> 32) ^ b ^ k0, y & WORD, (x >> 32) ^ d ^ k1, x & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return (a >> 8) / (1 << 24)


def reference(t: Tensors, v: Values) -> Tensors:
    like, t = t["marks"], {name: to_host(array) for name, array in t.items()}  # computed row by row on the CPU
    marks = t["marks"].copy()
    chosen = []
    for row in range(int(v["B"])):
        settings = dict(zip(SETTINGS, t["settings"][row].tolist(), strict=False))
        token = _choose(_penalised(t["logits"][row], marks[row], settings), settings, _random(t, row))
        chosen.append(token)
        marks[row, token] = (marks[row, token] | 1) + 2
    return {"next": from_numbers(chosen, like), "marks": moved(marks, like)}


def _random(t: Tensors, row: int) -> float:
    low, high, sequence, offset = t["seeds"][row].tolist()
    return uniform(low, high, sequence, int(t["steps"][0]) + offset)


def _penalised(logits: Array, marks: Array, s: dict[str, float]) -> Array:
    harder = np.where(logits > 0, logits / s["repetition"], logits * s["repetition"])
    logits = np.where(marks % 2 == 1, harder, logits)
    counts = marks // 2
    return logits - s["presence"] * (counts > 0) - s["frequency"] * counts


def _choose(logits: Array, s: dict[str, float], u: float) -> int:
    if s["temperature"] == 0:
        return int(first_largest(logits))
    k = int(s["top_k"])
    if 0 < k < len(logits):
        logits = np.where(logits < np.sort(logits)[-k], -np.inf, logits)
    p = softmax((logits - logits.max()) / s["temperature"])
    if s["top_p"] < 1:
        order = np.argsort(-p, stable=True)
        ordered = p[order]
        p[order] = np.where(ordered.cumsum() - ordered >= s["top_p"], 0, ordered)
    cumulative = np.where(p < s["min_p"] * p.max(), 0, p).cumsum()
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


def cost(v: Values, size: int) -> Cost:
    return Cost(flops=10.0 * v["B"] * v["V"], bytes=8.0 * v["B"] * v["V"])


def _settings(v: Values, generator: Generator) -> Array:
    def one_of(*values: float) -> Array:
        drawn = fractions(generator, int(v["B"]))
        return from_numbers(values, drawn)[to_kind(drawn * len(values), "int64")]

    V = float(v["V"])
    columns = (
        one_of(0.0, 0.3, 0.8, 1.0, 2.0),
        one_of(0.0, 1.0, 3.0, 40.0, V / 2 // 1, V),
        one_of(1.0, 0.95, 0.6, 0.1),
        one_of(0.0, 0.02, 0.3),
        one_of(1.0, 1.3, 0.8),
        one_of(0.0, 0.5),
        one_of(0.0, 0.25),
        one_of(0.0),
    )
    return namespace(columns[0]).stack(columns, axis=1)


def _greedy(settings: Array, _: Mapping[str, int | float]) -> Array:
    """Without penalties: rounded, they would make other numbers equal."""
    return settings * 0 + from_numbers([0.0, 0, 1, 0, 1, 0, 0, 0], settings)


def _nucleus(settings: Array, _: Mapping[str, int | float]) -> Array:
    """Temperature 1 and only top_p, different in each row."""
    xp, settings = namespace(settings), settings * 0
    settings[:, 0], settings[:, 4] = 1.0, 1.0
    settings[:, 2] = xp.linspace(0.153, 0.947, len(settings), device=settings.device)
    return settings


def _wide(settings: Array, _: Mapping[str, int | float]) -> Array:
    """More candidates than a list holds, from top-k and from top-p; then only the largest; then a few, far apart."""
    # temperature, top_k, top_p, min_p
    rows = ((1.0, 1030, 1.0, 0.0), (1.0, 600, 1.0, 0.0), (1.0, 0, 0.95, 0.0), (0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.3))
    return namespace(settings).concatenate([from_numbers(rows, settings), settings[:, 4:]], axis=1)


def _temperature_alone(settings: Array, _: Mapping[str, int | float]) -> Array:
    settings = copy_of(settings)
    settings[:, :4] = from_numbers([1.0, 0.0, 1.0, 0.0], settings)
    return settings


def _flat(logits: Array, _: Mapping[str, int | float]) -> Array:
    """The first three rows; the others are peaked."""
    unit = logits / logits.std(1)[:, None]
    return namespace(logits).concatenate([unit[:3] / 10, unit[3:] * 3])


EQUALS: dict[str, Change] = {"logits": lambda x, _: x * 0, "settings": _nucleus}
# With this seed, this step's random number is zero: the first token of nonzero probability is sampled. Logits are flat,
# since sums of integers round a probability of 2^-48 to zero.
ZERO: dict[str, Change] = {
    "logits": lambda x, _: x / 8,
    "seeds": lambda x, _: x * 0 + from_numbers([15, 0, 0, 0], x),
    "steps": lambda x, _: x * 0 + 477932,
}
EDGE = 2.0**-20


def _edges(logits: Array, _: Mapping[str, int | float]) -> Array:
    """The second token begins a little before the row's random number, and in odd rows a little after it."""
    numbers = [uniform(row, 0, row, 0) - (-1) ** row * EDGE for row in range(len(logits))]
    return from_numbers([[0.0, math.log(1 / number - 1)] for number in numbers], logits)


def _rows_numbers(seeds: Array, _: Mapping[str, int | float]) -> Array:
    return arange(len(seeds), seeds)[:, None] * from_numbers([1, 0, 1, 0], seeds)


NEAR_AN_EDGE: dict[str, Change] = {
    "logits": _edges,
    "seeds": _rows_numbers,
    "steps": lambda x, _: x * 0,
    "settings": lambda x, _: x * 0 + from_numbers([1.0, 0, 1, 0, 1, 0, 0, 0], x),
}
TIES: dict[str, Change] = {"logits": lambda x, _: x.round(), "settings": _greedy}


def _logits(v: Values, generator: Generator) -> Array:
    B, V = int(v["B"]), int(v["V"])
    logits = normal(generator, B, V)
    return logits * from_numbers([0.1, 1.0, 3.0, 8.0], logits)[integers(generator, 0, 4, B, 1)]


def _marks(v: Values, generator: Generator) -> Array:
    shape = (int(v["B"]), int(v["V"]))
    count = integers(generator, 0, 4, *shape)
    written, in_prompt = fractions(generator, *shape) < 0.2, fractions(generator, *shape) < 0.2
    return namespace(count).where(written & (count > 0), 2 * count + 1, in_prompt * 1)


def _seeds(v: Values, generator: Generator) -> Array:
    return integers(generator, -(2**31), 2**31, int(v["B"]), 4)


OPERATION = Operation(
    name="sample",
    summary="a token for each row of logits, drawn by its settings",
    story="Keeping the most likely tokens does not require sorting the vocabulary.",
    dims=("B", "V"),
    operands=(
        Operand("logits", ("B", "V"), dtype="f32", make=_logits),  # flat and peaked
        # Per token: the lowest bit, whether it is in the prompt or the text; above it, its count in the text.
        Operand("marks", ("B", "V"), role="inout", dtype="i32", make=_marks),
        # temperature (0: greedy), top_k (0: all), top_p, min_p, repetition, presence, frequency, unused
        Operand("settings", ("B", "8"), dtype="f32", make=_settings),
        # the seed's low and high word, the sequence, the offset of its steps
        Operand("seeds", ("B", "4"), dtype="i32", make=_seeds),
        Operand("steps", (1,), dtype="i32", below=1000),
        Operand("next", ("B",), role="out", dtype="i32"),
    ),
    reference=reference,
    cost=cost,
    cases=(
        Case("one token", {"B": 3, "V": 1}),
        Case("few tokens", {"B": 16, "V": 7}),
        Case("odd", {"B": 8, "V": 251}),
        Case("one a thread", {"B": 8, "V": 1000}),
        Case("several a thread", {"B": 5, "V": 16421}, change={"logits": _flat, "settings": _wide}),
        Case("many settings", {"B": 96, "V": 61}),
        Case("late steps", {"B": 16, "V": 97}, change={"steps": lambda x, _: x * 70001 + 65536}),
        Case("gpt2's vocabulary", {"B": 2, "V": 50257}, change={"settings": _temperature_alone}),
        Case("a random number of zero", {"B": 16, "V": 2203}, change=ZERO),
        Case("zero, of all", {"B": 2, "V": 2203}, change={**ZERO, "settings": _temperature_alone}),
        Case("close to an edge", {"B": 16, "V": 2}, change=NEAR_AN_EDGE),
        Case(
            "gpt2's vocabulary, many candidates",
            {"B": 5, "V": 50257},
            change={"logits": _flat, "settings": _wide},
            where="file",
        ),
        Case("260 sequences", {"B": 260, "V": 33}, where="alone"),
        Case("gpt2", {"B": 64, "V": 50257}, where="cuda"),
    ),
    edges={
        "greedy among equals": TIES,
        "drawn from equals": EQUALS,
        "masked": {"logits": leading(-math.inf)},
    },
    shapes={"gpt2": {"B": 1, "V": 50257}, "gpt2 b64": {"B": 64, "V": 50257}, "gpt2 b256": {"B": 256, "V": 50257}},
    races=(Race("gpt2", ("f32",)), Race("gpt2 b64", ("f32",))),
)
