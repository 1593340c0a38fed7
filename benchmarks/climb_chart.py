"""The climb of a ladder as bars: each rung's speed, with the libraries and the hardware's limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rung.results.current import Figure, Ladder, Limits, bound_of, label, percent, ratio_text, time_text, unit_of
from rung_reproduce.show import charts
from rung_reproduce.show.charts import Bar, Mark, Panel

ORDER = ("f32", "tf32", "bf16", "f16")
# A rung that an earlier panel has shown is repeated in a later one if the format makes it this much faster.
GAIN = 1.25
COLUMNS = ("cold", "vs library")


def climb(ladder: Ladder, limits: Limits, *, width: float = 860) -> str:
    """One picture of a whole ladder: every rung in its first number format and in those it gains from; empty without
    any of these."""
    panels, seen = [], dict[str, float]()
    bound = bound_of(ladder)
    for dtype in [d for d in ORDER if d in ladder.dtypes()]:
        shape = ladder.headline(dtype)
        column = ladder.column(dtype, shape)
        ours = [f for f in column if not f.library]
        fresh = [f for f in ours if f.name not in seen or f.us * GAIN <= seen[f.name]]
        if dtype == "f16" and all(f.name in seen for f in ours):
            continue
        slow = {r: t for r, t in _forecasts(ladder, dtype, shape).items() if r not in seen}
        seen |= {f.name: min(f.us, seen.get(f.name, f.us)) for f in ours} | dict.fromkeys(slow, math.inf)
        shown = [*fresh, *(f for f in column if f.library)]
        if fresh:
            panels.append(panel(shown, ladder, limits, dtype, shape, bound, slow))
    if not panels:
        return ""
    name = ladder.operation.name
    title = f"The climb of {name} on an {limits.gpu}"
    return charts.bars(
        panels, title=title, description=describe(panels, bound), unit=unit_of(bound), columns=COLUMNS, width=width
    )


def steps(ladder: Ladder, limits: Limits, *, width: float = 860) -> str:
    """The ladder at a glance: only the rungs that were faster than all before them, and the best library."""
    bound, panels = bound_of(ladder), []
    for dtype in [d for d in ("f32", "bf16") if d in ladder.dtypes()]:
        shape = ladder.headline(dtype)
        fastest: list[Figure] = []
        for figure in (f for f in ladder.column(dtype, shape) if not f.library):
            if not fastest or figure.us < fastest[-1].us:
                fastest.append(figure)
        best = ladder.best_library(dtype, shape)
        shown = [*fastest, *([best] if best else [])]
        if fastest:
            panels.append(panel(shown, ladder, limits, dtype, shape, bound, {}))
    name = ladder.operation.name
    title = f"The climb of {name} on an {limits.gpu}: each step that was the fastest so far"
    return charts.bars(
        panels, title=title, description=describe(panels, bound), unit=unit_of(bound), columns=COLUMNS, width=width
    )


def _forecasts(ladder: Ladder, dtype: str, shape: str) -> dict[str, str]:
    """The rungs that would have taken too long to be timed, and their forecasts."""
    return {
        rung.name: ladder.too_slow[key]
        for rung in ladder.rungs
        if (key := (rung.full_name, dtype, shape)) in ladder.too_slow and key not in ladder.found
    }


def panel(
    figures: Sequence[Figure],
    ladder: Ladder,
    limits: Limits,
    dtype: str,
    shape: str,
    bound: str,
    slow: Mapping[str, str],
) -> Panel:
    """Bars of speed with the time next to each; for rungs too slow to be timed, only the forecast."""
    by_name = {f.name: f for f in figures}
    bars, best = [], math.inf
    for rung in ladder.rungs:
        figure = by_name.get(rung.name)
        if figure is not None:
            behind = not figure.library and figure.us >= best  # than an earlier rung: a dead end, or a side step
            bars.append(_bar(figure, dtype, bound, behind))
            best = best if figure.library else min(best, figure.us)
        elif rung.name in slow:
            bars.append(Bar(label(rung.name), None, (slow[rung.name], ""), dtype))
    dims = dims_text(figures[0], ladder)
    title = f"{dtype}, {dims if len(dims) <= LONGEST_DIMS else shape}"
    return Panel(title, bars, _marks(ladder, limits, dtype, shape, bound), best=True)


def _bar(figure: Figure, dtype: str, bound: str, behind: bool) -> Bar:
    value = figure.row.metrics["tflops" if bound == "compute" else "gbps"]
    versus = ratio_text(figure.ratio) if figure.ratio is not None and not figure.library else ""
    notes = (f"{time_text(figure.us)} µs", versus)
    tip = f"{figure.name}: {time_text(figure.us)} µs, {percent(figure.share)} of the measured limit"
    colour = "library" if figure.library else "behind" if behind else dtype
    return Bar(label(figure.name), value, notes, colour, tip=tip + "; an earlier rung is faster" * behind)


LONGEST_DIMS = 44  # characters that fit into a panel's title; if there are more, it shows the shape's name


def dims_text(figure: Figure, ladder: Ladder) -> str:
    values = figure.row.values
    return " ".join(f"{d}={values[d]}" for d in ladder.operation.dims if d in values)


def _marks(ladder: Ladder, limits: Limits, dtype: str, shape: str, bound: str) -> list[Mark]:
    marks = []
    best = ladder.best_library(dtype, shape)
    if best is not None:
        value = best.row.metrics["tflops" if bound == "compute" else "gbps"]
        marks.append(Mark(f"best library ({best.name})", value, "library", dashed=True))
    limit = limits.flops.get(dtype, 0.0) / 1e12 if bound == "compute" else limits.bytes / 1e9
    if limit:
        marks.append(Mark("measured limit", limit, "limit"))
    return marks


def describe(panels: Sequence[Panel], bound: str) -> str:
    """The chart in words, for readers who cannot see it."""
    unit = unit_of(bound)
    sentences = []
    for one in panels:
        timed = [(b, b.value) for b in one.bars if b.value is not None]
        ours = [(b, v) for b, v in timed if b.colour != "library"] or timed
        (first, slowly), (best, fast) = ours[0], max(ours, key=lambda pair: pair[1])
        sentences.append(
            f"{one.title}: from {first.label} with {slowly:.3g} {unit} ({first.notes[0]}) "
            f"to {best.label} with {fast:.3g} {unit} ({best.notes[0]})"
        )
        sentences += [f"{m.label}: {m.value:.3g} {unit}" for m in one.marks]
        sentences += [f"{b.label} would take {b.notes[0]}" for b in one.bars if b.value is None]
    return "; ".join(sentences) + "."
