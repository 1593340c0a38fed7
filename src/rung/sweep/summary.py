"""A sweep's result for each tunable, as one sentence and as points to plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rung.results.row import Row
from rung.sweep.sweep import Sweep, figure_of, ranked


@dataclass(frozen=True)
class Finding:
    """For one tunable: each value's best result over all values of the others."""

    tunable: str
    unit: str  # "us", "occupancy" or "" if only right or wrong is known
    points: list[tuple[int, float]]
    best: int
    worst: int
    loss: float  # worst / best - 1 of the times; difference of the occupancies
    sentence: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def findings(swept: Sweep) -> list[Finding]:
    """One for each tunable that took at least two values."""
    right = [r for r in swept.rows if r.verdict == "ok"]
    names = list(swept.subject.rung.tune)
    return [f for name in names if (f := _finding(name, right, swept.rows)) is not None]


def _finding(name: str, right: Sequence[Row], rows: Sequence[Row]) -> Finding | None:
    values = list(dict.fromkeys(r.tuning[name] for r in right))
    tried = list(dict.fromkeys(r.tuning[name] for r in rows))
    if len(tried) < 2 or not right:
        return None
    champions = {v: min((r for r in right if r.tuning[name] == v), key=figure_of) for v in values}
    ordered = sorted(values, key=lambda v: figure_of(champions[v]))
    best, worst = ordered[0], ordered[-1]
    timed = all(r.cold_us is not None for r in champions.values())
    known = all("occupancy" in r.metrics for r in champions.values())
    never = [str(v) for v in tried if v not in values]
    if timed:
        unit = "us"
        points = [(v, champions[v].metrics["cold_us"]) for v in sorted(values)]
        loss = figure_of(champions[worst]) / figure_of(champions[best]) - 1
        text = f"{best} is best" + (
            f"; {worst} takes {_times(loss)}" if loss >= 0.005 else ", and the others are equally fast"
        )
    elif known:
        unit = "occupancy"
        points = [(v, champions[v].metrics["occupancy"]) for v in sorted(values)]
        loss = points_of(points, best) - points_of(points, worst)
        most = f"occupancy is at most {points_of(points, best):.0%} at {best}"
        less = f" and {points_of(points, worst):.0%} at {worst}" if loss > 0 else " and at all others"
        text = most + less + " (no time was taken)"
    else:
        unit, points, loss = "", [(v, 1.0) for v in sorted(values)], 0.0
        text = f"right at {', '.join(map(str, sorted(values)))} (no time was taken)"
    if never:
        text += f"; nothing runs at {', '.join(never)}"
    limit = _limit(right) if _sets_the_block(name, right) else ""
    return Finding(name, unit, points, best, worst, loss, f"{name}: {text}{'; ' + limit if limit else ''}.")


def points_of(points: Sequence[tuple[int, float]], value: int) -> float:
    """The figure of `value`."""
    return next(figure for at, figure in points if at == value)


def _times(loss: float) -> str:
    return f"{loss:.0%} longer" if loss < 1 else f"{loss + 1:.1f} times as long"


def _sets_the_block(name: str, right: Sequence[Row]) -> bool:
    """Whether the tunable, all others being equal, changes the number of threads."""
    seen: dict[tuple[int, ...], set[int]] = {}
    for row in right:
        others = tuple(v for n, v in row.tuning.items() if n != name)
        seen.setdefault(others, set()).add(int(row.metrics.get("threads", 0)))
    return any(len(threads) > 1 for threads in seen.values())


def _limit(right: Sequence[Row]) -> str:
    """What limits the occupancy of the largest block."""
    described = [r for r in right if r.metrics.get("threads") and r.detail.get("limiter")]
    if not described:
        return ""
    largest = max(described, key=lambda r: (r.metrics["threads"], r.metrics["registers"]))
    threads, registers, occupancy = (largest.metrics[n] for n in ("threads", "registers", "occupancy"))
    text = f"at the largest block ({threads:.0f} threads, {registers:.0f} registers each) "
    if occupancy >= 1:
        return text + "occupancy is full"
    return text + f"{largest.detail['limiter']} limit occupancy to {occupancy:.0%}"


def best_of(swept: Sweep) -> tuple[Row, Row | None] | None:
    """The best configuration and the default's row; with a gain of less than half a percent the default stays."""
    if not swept.timed:
        return None
    order = ranked(swept.rows)
    if not order:
        return None
    default = swept.subject.rung.tuned(None)
    own = next((r for r in order if r.tuning == default), None)
    if own is not None and figure_of(order[0]) > figure_of(own) * 0.995:
        return own, own
    return order[0], own
