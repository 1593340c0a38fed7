"""Changes that a case makes to an operand's usual numbers, so that each part of the formula affects the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from rung.arrays import Array, Generator, arange, copy_of, from_numbers, kind_of, namespace, to_kind

Change = Callable[[Array, Mapping[str, int | float]], Array]
F16_TOP = 15.9  # 2 to this power is just below float16's largest number
F16_LOW, F32_LOW = -24.0, -149.0  # the smallest numbers, far below those of full precision
F32_TOP = 126.0  # the largest numbers of float32 and bfloat16, with room for one addition
ROW_SCALES = (1e-3, 1.0, 4e-3, 30.0, 1e-4)  # variances around and far below GPT-2's eps of 1e-5, and far above


def places(x: Array) -> Array:
    """The number of each element, in the order of memory."""
    return arange(math.prod(x.shape), x).reshape(x.shape)


def spread(top: float, low: float = -8.0) -> Change:
    """The same sign, and sizes from 2^low to 2^top, each power of two as likely as the next."""

    def change(x: Array, _: Mapping[str, int | float]) -> Array:
        xp, size = namespace(x), abs(x)
        part = xp.tanh((2 / math.pi) ** 0.5 * (size + 0.044715 * size**3))  # nearly evenly distributed between 0 and 1
        return xp.sign(x) * 2.0 ** (low + (top - low) * part)

    return change


def with_infinities(x: Array, _: Mapping[str, int | float]) -> Array:
    """Infinity, minus infinity and NaN among every seven numbers."""
    place = places(x) % 7
    for at, value in ((1, math.inf), (3, -math.inf), (5, math.nan)):
        x = namespace(x).where(place == at, value, x)
    return x


def with_zeros(x: Array, _: Mapping[str, int | float]) -> Array:
    """Every third number is 0, in each operand at the same places: so are their sums and products."""
    return x * (places(x) % 3 > 0)


def times(factor: float, most: float = 6e4) -> Change:
    """Larger by a factor, but finite in every number format."""
    return lambda x, _: (x * factor).clip(-most, most)


def around(centre: float, width: float) -> Change:
    """Near one number: where a function is strongly curved, or far from zero."""
    return lambda x, _: centre + width * x


def raised_from(column: int, by: float) -> Change:
    """Columns from this one on are larger, so that stopping early changes the mean."""

    def change(x: Array, _: Mapping[str, int | float]) -> Array:
        return x + by * (arange(x.shape[-1], x) >= column)

    return change


def mostly_below_zero(x: Array, _: Mapping[str, int | float]) -> Array:
    """Large numbers below zero, and a few small ones above."""
    return namespace(x).where(x > 1, x * 0.01, -100 * abs(x))


def rows_scaled(*scales: float) -> Change:
    """Scales the rows of the last dimension by the given scales, in turn."""

    def change(x: Array, _: Mapping[str, int | float]) -> Array:
        flat = x.reshape(-1, x.shape[-1])
        by = from_numbers(scales, x)[arange(len(flat), x) % len(scales)]
        return (flat * by[:, None]).reshape(x.shape)

    return change


def rows_alike(*numbers: float) -> Change:
    """Every second row of the last dimension holds one number, of these in turn; the first row does."""

    def change(x: Array, _: Mapping[str, int | float]) -> Array:
        flat = copy_of(x.reshape(-1, x.shape[-1]))
        flat[::2] = from_numbers(numbers, x)[arange(len(flat[::2]), x) % len(numbers), None]
        return flat.reshape(x.shape)

    return change


def rows_twice(x: Array, _: Mapping[str, int | float]) -> Array:
    """The second half of the rows repeats the first: what is computed of them is equal."""
    return x[arange(len(x), x) % max(1, len(x) // 2)]


def leading(number: float) -> Change:
    """This number in the first half of a row's visible columns, and in every second row in all of them but one."""

    def change(x: Array, v: Mapping[str, int | float]) -> Array:
        flat, S = x.reshape(-1, x.shape[-1]), x.shape[-1]
        xp, row = namespace(x), arange(len(flat), x)[:, None]
        seen = S - int(v["T"]) + row % int(v["T"]) + 1 if v.get("causal") else xp.full_like(row, S)
        below = xp.where(row % 2 == 0, seen - 1, seen // 2)
        return xp.where(arange(S, x) < below, number, flat).reshape(x.shape)

    return change


def two_sided(top: float, factor: float, odd: int) -> Change:
    """Large numbers in every second column and small ones between: two such operands keep their product in range."""

    def change(x: Array, v: Mapping[str, int | float]) -> Array:
        large = arange(x.shape[-1], x) % 2 == odd
        return namespace(x).where(large, spread(top)(x, v), x * factor)

    return change


def near_the_end(of: str) -> Change:
    """Whole numbers below the dim `of`: the last, the first, and every other one counted from the end."""

    def change(x: Array, v: Mapping[str, int | float]) -> Array:
        moved = int(v[of]) - 1 - namespace(x).where(places(x) % 2 == 0, x, x % 97).reshape(-1)
        moved[:2] = from_numbers([int(v[of]) - 1, 0], x)[: len(moved)]
        return moved.reshape(x.shape)

    return change


def scores_beyond_exp(part: float, *, climbing: bool) -> Change:
    """Packed q, k and v (B, T, 3 C) whose scaled scores q k leave exp's range.

    The last feature of each head determines the size: `part` squared, positive for every second query and negative
    for the others; with `climbing`, keys go from one extreme to the other, so that running maxima change at each step.
    """

    def change(x: Array, v: Mapping[str, int | float]) -> Array:
        B, T, heads = x.shape[0], x.shape[1], int(v["NH"])
        xp, qkv = namespace(x), copy_of(x.reshape(B, T, 3, heads, -1))
        qkv[:, :, :2] *= 0.3
        turn = arange(T, x)[:, None] // (1 if climbing else 2) + arange(heads, x)
        side = xp.where(turn % 2 == 0, 1, -1)
        keys = xp.linspace(-1, 1, T, device=x.device) if climbing else xp.ones(T, device=x.device)
        if climbing:
            keys[-1] = 2.2  # a last key far above all others
        qkv[:, :, 0, :, -1] = part * side
        qkv[:, :, 1, :, -1] = part * keys[:, None]
        return qkv.reshape(x.shape)

    return change


def levels(count: int, like: Array) -> Array:
    """Numbers from 0.1 to 1.1 in a mixed order, two neighbours equal and all others far apart: scores of any size may
    have these ratios in any format, since their order, including the tie, does not depend on rounding."""
    pairs = (count + 1) // 2
    return 0.1 + (arange(count, like) // 2 * 7 % pairs) / max(1, pairs - 1)


FAR = (400.0, 14000.0)  # sizes of scores, head after head
BELOW = -200.0  # a score whose exponential is zero in every format


def scores_far_apart(x: Array, v: Mapping[str, int | float]) -> Array:
    """Packed q, k and v (B, T, 3 C) with scores of hundreds and thousands, all of one sign for a query."""
    B, T, heads = x.shape[0], x.shape[1], int(v["NH"])
    qkv = copy_of(x.reshape(B, T, 3, heads, -1))
    part = from_numbers([(FAR[head % 2] / v["scale"]) ** 0.5 for head in range(heads)], x)
    side = namespace(x).where((arange(T, x)[:, None] // 2 + arange(heads, x)) % 2 == 0, 1, -1)
    qkv[:, :, 1] = 0
    qkv[:, :, 0, :, -1] = part * side
    qkv[:, :, 1, :, -1] = part * levels(T, x)[:, None]
    return qkv.reshape(x.shape)


def scores_alike(score: float) -> Change:
    """Packed q, k and v (B, T, 3 C) with this score everywhere."""

    def change(x: Array, v: Mapping[str, int | float]) -> Array:
        qkv = copy_of(x.reshape(*x.shape[:2], 3, int(v["NH"]), -1))
        qkv[:, :, :2] = 0
        qkv[:, :, 0, :, -1] = (abs(score) / v["scale"]) ** 0.5
        qkv[:, :, 1, :, -1] = score / v["scale"] / qkv[:, :, 0, :, -1]
        return qkv.reshape(x.shape)

    return change


def one_feature(score: float) -> Change:
    """Rows of heads with one number, their last: its product with that of `one_feature(abs(score))` is this score."""

    def change(x: Array, v: Mapping[str, int | float]) -> Array:
        rows = namespace(x).zeros_like(x).reshape(-1, int(v["HS"]))
        rows[:, -1] = math.copysign((abs(score) / v["scale"]) ** 0.5, score)
        return rows.reshape(x.shape)

    return change


def rows_far_apart(x: Array, v: Mapping[str, int | float]) -> Array:
    """Rows of scores of hundreds and thousands, all of one sign in a row."""
    flat = x.reshape(-1, x.shape[-1])
    xp, row = namespace(x), arange(len(flat), x)[:, None]
    size = xp.where(row % 2 == 0, FAR[0], FAR[1]) / v["scale"]
    side = xp.where(row // 2 % 2 == 0, 1.0, -1.0)
    return (size * side * levels(flat.shape[1], x)).reshape(x.shape)


def large_but_for_scores(size: float) -> Change:
    """Packed q and k of this size, and values up to float16's largest: the case's scale has to undo the former."""

    def change(x: Array, v: Mapping[str, int | float]) -> Array:
        parts = x.reshape(*x.shape[:2], 3, -1)
        changed = namespace(x).concatenate([parts[:, :, :2] * size, times(15000.0)(parts[:, :, 2:], v)], axis=2)
        return changed.reshape(x.shape)

    return change


def row_scores(size: float, *, climbing: bool) -> Change:
    """Rows of scores around +size and -size in turn, or rising and falling between them."""

    def change(x: Array, _: Mapping[str, int | float]) -> Array:
        xp, flat = namespace(x), x.reshape(-1, x.shape[-1])
        side = xp.where(arange(len(flat), x) % 2 == 0, 1.0, -1.0)[:, None]
        along = xp.linspace(-1, 1, flat.shape[1], device=x.device) if climbing else xp.ones(1, device=x.device)
        if climbing:
            along[-1] = 2.2  # a last score far above all others
        return (flat * size / 100 + size * side * along).reshape(x.shape)

    return change


def far_in_one_feature(size: float, *, both: bool) -> Change:
    """The last feature of every row is `size`, or with `both` alternately +size and -size: products are far from
    zero."""

    def change(x: Array, _: Mapping[str, int | float]) -> Array:
        flat = x.reshape(-1, x.shape[-1]) * 0.5
        flat[:, -1] = namespace(x).where(arange(len(flat), x) % 2 == 1, -size, size) if both else size
        flat[-1, -1] *= 1.0 if both else 2.2
        return flat.reshape(x.shape)

    return change


# ---- operands of attention with a cache -----------------------------------------------------------------------------


def full(v: Mapping[str, int | float], _: Generator) -> Array:
    """Every sequence fills the cache."""
    return np.full(int(v["B"]), int(v["S"] - v.get("T", 1)), np.int32)


def uneven(past: Array, v: Mapping[str, int | float]) -> Array:
    """The first sequence is at its start, the last fills the cache, the others are in between."""
    last = int(v["S"] - v.get("T", 1))
    return to_kind(arange(len(past), past) * last // max(1, len(past) - 1), kind_of(past))


def climbing(k: Array, v: Mapping[str, int | float]) -> Array:
    """Keys that grow towards the end, so that the running maximum changes in every block."""
    return k * namespace(k).linspace(0.1, 6.0, k.shape[2], device=k.device)[:, None]


def left_behind(kept: Array, v: Mapping[str, int | float]) -> Array:
    """Large values after a sequence's tokens, as in a cache that was used before."""
    end = uneven(arange(kept.shape[0], kept), v) + int(v["T"])
    behind = arange(kept.shape[2], kept) >= end[:, None]  # (B, S)
    return namespace(kept).where(behind[:, None, :, None], 3e4 * namespace(kept).sign(kept), kept)


def all_alike(size: float) -> Change:
    """Queries of one sign, so that the sign of a key is that of its scores."""
    return lambda x, _: size + 0.1 * x


def one_far_above(k: Array, v: Mapping[str, int | float]) -> Array:
    """Keys with scores far below zero, except one far above: a sequence's last, and the next sequence's first."""
    side = namespace(k).full_like(k, -1.7)
    side[0::2, :, -1] = 1.7
    side[1::2, :, 0] = 1.7
    return side + 0.1 * k


def keys_far_apart(k: Array, v: Mapping[str, int | float]) -> Array:
    apart = namespace(k).zeros_like(k)
    size = from_numbers(FAR, k)[arange(len(k), k) % len(FAR)] / 2.0
    apart[..., -1] = size[:, None, None] * levels(k.shape[2], k)
    return apart
