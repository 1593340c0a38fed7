"""Changes that a case makes to an operand's usual numbers, so that each part of the formula affects the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from rung.lazy import torch

Change = Callable[["torch.Tensor", Mapping[str, int | float]], "torch.Tensor"]
F16_TOP = 15.9  # 2 to this power is just below float16's largest number
F16_LOW, F32_LOW = -24.0, -149.0  # the smallest numbers, far below those of full precision
F32_TOP = 126.0  # the largest numbers of float32 and bfloat16, with room for one addition
ROW_SCALES = (1e-3, 1.0, 4e-3, 30.0, 1e-4)  # variances around and far below GPT-2's eps of 1e-5, and far above


def spread(top: float, low: float = -8.0) -> Change:
    """The same sign, and sizes from 2^low to 2^top, each power of two as likely as the next."""

    def change(x: torch.Tensor, _: Mapping[str, int | float]) -> torch.Tensor:
        return x.sign() * torch.exp2(low + (top - low) * torch.erf(x.abs() * 0.5**0.5))

    return change


def with_infinities(x: torch.Tensor, _: Mapping[str, int | float]) -> torch.Tensor:
    """Infinity, minus infinity and NaN among every seven numbers."""
    place = torch.arange(x.numel(), device=x.device).view_as(x) % 7
    for at, value in ((1, math.inf), (3, -math.inf), (5, math.nan)):
        x = torch.where(place == at, value, x)
    return x


def with_zeros(x: torch.Tensor, _: Mapping[str, int | float]) -> torch.Tensor:
    """Every third number is 0, in each operand at the same places: so are their sums and products."""
    return x * (torch.arange(x.numel(), device=x.device).view_as(x) % 3 > 0)


def times(factor: float, most: float = 6e4) -> Change:
    """Larger by a factor, but finite in every number format."""
    return lambda x, _: (x * factor).clamp(-most, most)


def around(centre: float, width: float) -> Change:
    """Near one number: where a function is strongly curved, or far from zero."""
    return lambda x, _: centre + width * x


def raised_from(column: int, by: float) -> Change:
    """Columns from this one on are larger, so that stopping early changes the mean."""

    def change(x: torch.Tensor, _: Mapping[str, int | float]) -> torch.Tensor:
        return x + by * (torch.arange(x.shape[-1], device=x.device) >= column)

    return change


def mostly_below_zero(x: torch.Tensor, _: Mapping[str, int | float]) -> torch.Tensor:
    """Large numbers below zero, and a few small ones above."""
    return torch.where(x > 1, x * 0.01, -100 * x.abs())


def rows_scaled(*scales: float) -> Change:
    """Scales the rows of the last dimension by the given scales, in turn."""

    def change(x: torch.Tensor, _: Mapping[str, int | float]) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        by = torch.tensor(scales).repeat(-(-len(flat) // len(scales)))[: len(flat)]
        return (flat * by.to(x.device)[:, None]).view_as(x)

    return change


def rows_alike(*numbers: float) -> Change:
    """Every second row of the last dimension holds one number, of these in turn; the first row does."""

    def change(x: torch.Tensor, _: Mapping[str, int | float]) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1]).clone()
        rows = torch.arange(0, len(flat), 2, device=x.device)
        flat[rows] = torch.tensor(numbers, device=x.device).to(x.dtype)[rows // 2 % len(numbers), None]
        return flat.view_as(x)

    return change


def rows_twice(x: torch.Tensor, _: Mapping[str, int | float]) -> torch.Tensor:
    """The second half of the rows repeats the first: what is computed of them is equal."""
    return x[torch.arange(len(x), device=x.device) % max(1, len(x) // 2)]


def leading(number: float) -> Change:
    """This number in the first half of a row's visible columns, and in every second row in all of them but one."""

    def change(x: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
        flat, S = x.reshape(-1, x.shape[-1]), x.shape[-1]
        row = torch.arange(len(flat), device=x.device)[:, None]
        seen = S - int(v["T"]) + row % int(v["T"]) + 1 if v.get("causal") else torch.full_like(row, S)
        below = torch.where(row % 2 == 0, seen - 1, seen // 2)
        return torch.where(torch.arange(S, device=x.device) < below, number, flat).view_as(x)

    return change


def two_sided(top: float, factor: float, odd: int) -> Change:
    """Large numbers in every second column and small ones between: two such operands keep their product in range."""

    def change(x: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
        large = torch.arange(x.shape[-1], device=x.device) % 2 == odd
        return torch.where(large, spread(top)(x, v), x * factor)

    return change


def near_the_end(of: str) -> Change:
    """Whole numbers below the dim `of`: the last, the first, and every other one counted from the end."""

    def change(x: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
        moved = torch.where(torch.arange(x.numel(), device=x.device).view_as(x) % 2 == 0, x, x % 97)
        moved = int(v[of]) - 1 - moved
        moved.view(-1)[:2] = torch.tensor([int(v[of]) - 1, 0], dtype=x.dtype, device=x.device)[: moved.numel()]
        return moved

    return change


def scores_beyond_exp(part: float, *, climbing: bool) -> Change:
    """Packed q, k and v (B, T, 3 C) whose scaled scores q k leave exp's range.

    The last feature of each head determines the size: `part` squared, positive for every second query and negative
    for the others; with `climbing`, keys go from one extreme to the other, so that running maxima change at each step.
    """

    def change(x: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
        B, T, heads = x.shape[0], x.shape[1], int(v["NH"])
        qkv = x.view(B, T, 3, heads, -1).clone()
        qkv[:, :, :2] *= 0.3
        position = torch.arange(T, device=x.device)
        turn = position[:, None] // (1 if climbing else 2) + torch.arange(heads, device=x.device)
        side = torch.where(turn % 2 == 0, 1, -1)
        keys = torch.linspace(-1, 1, T, device=x.device) if climbing else torch.ones(T, device=x.device)
        if climbing:
            keys[-1] = 2.2  # a last key far above all others
        qkv[:, :, 0, :, -1] = part * side
        qkv[:, :, 1, :, -1] = part * keys[:, None]
        return qkv.view_as(x)

    return change


def levels(count: int, device: torch.device | str) -> torch.Tensor:
    """Numbers from 0.1 to 1.1 in a mixed order, two neighbours equal and all others far apart: scores of any size may
    have these ratios in any format, since their order, including the tie, does not depend on rounding."""
    pairs = (count + 1) // 2
    return 0.1 + (torch.arange(count, device=device) // 2 * 7 % pairs) / max(1, pairs - 1)


FAR = (400.0, 14000.0)  # sizes of scores, head after head
BELOW = -200.0  # a score whose exponential is zero in every format


def scores_far_apart(x: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
    """Packed q, k and v (B, T, 3 C) with scores of hundreds and thousands, all of one sign for a query."""
    B, T, heads = x.shape[0], x.shape[1], int(v["NH"])
    qkv = x.view(B, T, 3, heads, -1).clone()
    part = torch.tensor([(FAR[head % 2] / v["scale"]) ** 0.5 for head in range(heads)], device=x.device)
    position = torch.arange(T, device=x.device)
    side = torch.where((position[:, None] // 2 + torch.arange(heads, device=x.device)) % 2 == 0, 1, -1)
    qkv[:, :, 1] = 0
    qkv[:, :, 0, :, -1] = part * side
    qkv[:, :, 1, :, -1] = part * levels(T, x.device)[:, None]
    return qkv.view_as(x)


def scores_alike(score: float) -> Change:
    """Packed q, k and v (B, T, 3 C) with this score everywhere."""

    def change(x: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
        qkv = x.view(*x.shape[:2], 3, int(v["NH"]), -1).clone()
        qkv[:, :, :2] = 0
        qkv[:, :, 0, :, -1] = (abs(score) / v["scale"]) ** 0.5
        qkv[:, :, 1, :, -1] = score / v["scale"] / qkv[:, :, 0, :, -1]
        return qkv.view_as(x)

    return change


def one_feature(score: float) -> Change:
    """Rows of heads with one number, their last: its product with that of `one_feature(abs(score))` is this score."""

    def change(x: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
        rows = torch.zeros_like(x).view(-1, int(v["HS"]))
        rows[:, -1] = math.copysign((abs(score) / v["scale"]) ** 0.5, score)
        return rows.view_as(x)

    return change


def rows_far_apart(x: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
    """Rows of scores of hundreds and thousands, all of one sign in a row."""
    flat = x.reshape(-1, x.shape[-1])
    row = torch.arange(len(flat), device=x.device)[:, None]
    size = torch.where(row % 2 == 0, FAR[0], FAR[1]) / v["scale"]
    side = torch.where(row // 2 % 2 == 0, 1.0, -1.0)
    return (size * side * levels(flat.shape[1], x.device)).view_as(x)


def large_but_for_scores(size: float) -> Change:
    """Packed q and k of this size, and values up to float16's largest: the case's scale has to undo the former."""

    def change(x: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
        parts = x.view(*x.shape[:2], 3, -1)
        changed = torch.cat([parts[:, :, :2] * size, times(15000.0)(parts[:, :, 2:], v)], 2)
        return changed.view_as(x)

    return change


def row_scores(size: float, *, climbing: bool) -> Change:
    """Rows of scores around +size and -size in turn, or rising and falling between them."""

    def change(x: torch.Tensor, _: Mapping[str, int | float]) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        side = torch.where(torch.arange(len(flat), device=x.device) % 2 == 0, 1.0, -1.0)[:, None]
        along = torch.linspace(-1, 1, flat.shape[1], device=x.device) if climbing else torch.ones(1, device=x.device)
        if climbing:
            along[-1] = 2.2  # a last score far above all others
        return (flat * size / 100 + size * side * along).view_as(x)

    return change


def far_in_one_feature(size: float, *, both: bool) -> Change:
    """The last feature of every row is `size`, or with `both` alternately +size and -size: products are far from
    zero."""

    def change(x: torch.Tensor, _: Mapping[str, int | float]) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1]) * 0.5
        turn = torch.arange(len(flat), device=x.device) % 2
        flat[:, -1] = torch.where(turn == 1, -size, size) if both else size
        flat[-1, -1] *= 1.0 if both else 2.2
        return flat.view_as(x)

    return change


# ---- operands of attention with a cache -----------------------------------------------------------------------------


def full(v: Mapping[str, int | float], generator: torch.Generator) -> torch.Tensor:
    """Every sequence fills the cache."""
    return torch.full((int(v["B"]),), int(v["S"] - v.get("T", 1)), dtype=torch.int32)


def uneven(past: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
    """The first sequence is at its start, the last fills the cache, the others are in between."""
    return torch.linspace(0, float(v["S"] - v.get("T", 1)), int(v["B"])).to(past)


def climbing(k: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
    """Keys that grow towards the end, so that the running maximum changes in every block."""
    return k * torch.linspace(0.1, 6.0, k.shape[2], device=k.device)[:, None]


def left_behind(kept: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
    """Large values after a sequence's tokens, as in a cache that was used before."""
    end = uneven(torch.zeros(kept.shape[0], dtype=torch.int32), v) + int(v["T"])
    behind = torch.arange(kept.shape[2]) >= end[:, None]  # (B, S)
    return torch.where(behind[:, None, :, None].to(kept.device), 3e4 * kept.sign(), kept)


def all_alike(size: float) -> Change:
    """Queries of one sign, so that the sign of a key is that of its scores."""
    return lambda x, _: size + 0.1 * x


def one_far_above(k: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
    """Keys with scores far below zero, except one far above: a sequence's last, and the next sequence's first."""
    side = torch.full_like(k, -1.7)
    side[0::2, :, -1] = 1.7
    side[1::2, :, 0] = 1.7
    return side + 0.1 * k


def keys_far_apart(k: torch.Tensor, v: Mapping[str, int | float]) -> torch.Tensor:
    apart = torch.zeros_like(k)
    size = torch.tensor(FAR, device=k.device).repeat(k.shape[0])[: k.shape[0]] / 2.0
    apart[..., -1] = size[:, None, None] * levels(k.shape[2], k.device)
    return apart
