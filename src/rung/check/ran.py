"""The cases that a rung has run at, and which of them further checks use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rung.check.trial import Trials
from rung.operation import Case, Values


@dataclass(frozen=True)
class Ran:
    """A case, the duration of a run, and the amount of work in it."""

    seconds: float
    work: float  # FLOPs and bytes
    index: int  # among all cases
    case: Case
    values: Values


def largest(ran: Sequence[Ran], affordable: float) -> Ran:
    """The case with most work whose runs take at most this long; if all take longer, the fastest."""
    affordable = max(affordable, min(one.seconds for one in ran))
    return max((one for one in ran if one.seconds <= affordable), key=lambda one: (one.work, one.index))


def quick(ran: Sequence[Ran], affordable: float) -> list[Ran]:
    """The cases whose runs take at most this long, in the operation's order; if there is none, the fastest."""
    found = [one for one in ran if one.seconds <= affordable] or sorted(ran, key=lambda one: one.seconds)[:1]
    return sorted(found, key=lambda one: one.index)


def widest(trials: Trials, among: Sequence[Ran], tuning: dict[str, int] | None = None) -> list[Ran]:
    """Those with most blocks along each axis of a grid, and with most in all."""
    if not trials.cuda:
        return list(among[-1:])
    grids = [(one, trials.grids(one.values, tuning)) for one in among]
    counts = [lambda grid, axis=axis: grid[axis] for axis in range(3)] + [math.prod]
    chosen = [max(grids, key=lambda g: max(map(count, g[1]), default=0))[0] for count in counts if grids]
    return list({one.index: one for one in chosen}.values())
