"""Bars, curves and the result of a study, drawn on rung's canvas; of a chart's colours those of its series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rung.errors import RungError
from rung.lines import write_whole
from rung.show.charts import Canvas, Scale, log_scale, standalone, tick_text, width_of

SERIES = ("f32", "tf32", "f16", "bf16", "limit", "library")


def write_svg(svg: str, path: Path) -> None:
    """A chart as a standalone file, for a light page."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RungError(f"{path} cannot be written: {error.strerror}.") from None
    write_whole(path, standalone(svg, "light"))


@dataclass(frozen=True)
class Bar:
    label: str
    value: float | None  # None: no bar, only its line of text
    notes: Sequence[str]  # the content of the columns at the right
    colour: str
    tip: str = ""


@dataclass(frozen=True)
class Mark:
    """A line across a panel's bars."""

    label: str
    value: float
    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    title: str
    bars: Sequence[Bar]
    marks: Sequence[Mark] = ()
    best: bool = False  # whether a line joins the largest values so far, without the libraries


HEADING, ROW = 44.0, 23.0  # the height of a panel's title with its marks, and of a bar


def bars(
    panels: Sequence[Panel],
    *,
    title: str,
    description: str,
    unit: str,
    columns: Sequence[str] = (),
    width: float = 860,
) -> str:
    """Horizontal bars on a logarithmic axis, one block per panel, and columns of numbers next to them."""
    every = [b for p in panels for b in p.bars]
    edges = _columns(every, columns, width)
    left = max(width_of(b.label) for b in every) + 12
    right = min(edges) - _column_width(every, columns, 0) - 18 if edges else width - 10
    x = log_scale([*(b.value or 0.0 for b in every), *(m.value for p in panels for m in p.marks)], left, right)
    height = 38 + sum(HEADING + ROW * len(p.bars) + 14 for p in panels)
    canvas = Canvas(width, height)
    y = 4.0
    for panel in panels:
        for name, edge in zip(columns, edges, strict=True):
            canvas.text(edge, y + 15, name, colour="muted", size=12, anchor="end")
        y = _panel(canvas, panel, x, y, left, edges)
    for tick in x.ticks(10):
        anchor = "start" if x(tick) < 14 else "middle"
        canvas.text(x(tick), y + 12, tick_text(tick), colour="muted", size=12, anchor=anchor)
    canvas.text(x.end, y + 28, f"{unit}, logarithmic", colour="muted", size=12, anchor="end")
    return canvas.svg(title, description)


def _column_width(every: Sequence[Bar], columns: Sequence[str], index: int) -> float:
    return max([width_of(columns[index], 12), *(width_of(b.notes[index], 12) for b in every)])


def _columns(every: Sequence[Bar], columns: Sequence[str], width: float) -> list[float]:
    """The right edges of the columns of numbers."""
    edges: list[float] = []
    edge = width - 4
    for index in reversed(range(len(columns))):
        edges.insert(0, edge)
        edge -= _column_width(every, columns, index) + 16
    return edges


def _panel(canvas: Canvas, panel: Panel, x: Scale, y: float, left: float, edges: Sequence[float]) -> float:
    start = y + HEADING
    bottom = start + ROW * len(panel.bars)
    canvas.text(left, y + 15, panel.title, bold=True)
    for tick in x.ticks(10):
        canvas.line(x(tick), start - 4, x(tick), bottom + 2)
    best, steps = 0.0, list[tuple[float, float]]()
    for index, bar in enumerate(panel.bars):
        at = start + index * ROW
        canvas.text(left - 8, at + 15, bar.label, anchor="end")
        if bar.value is not None:
            canvas.rect(left, at + 3, x(bar.value) - left, ROW - 7, bar.colour, tip=bar.tip)
            best = max(best, 0.0 if bar.colour == "library" else bar.value)
            steps += [(x(best), at), (x(best), at + ROW)] if best and bar.colour != "library" else []
        for note, edge in zip(bar.notes, edges, strict=True):
            canvas.text(edge, at + 15, note, size=12, anchor="end")
    if panel.best and steps:
        canvas.path(steps, "ink", width=1.5, tip="the fastest so far")
    _marks(canvas, panel.marks, x, start - 8, bottom + 2)
    return bottom + 12


def _marks(canvas: Canvas, marks: Sequence[Mark], x: Scale, top: float, bottom: float) -> None:
    """The lower mark's label is left of its line, the other's right, so that they do not overlap."""
    ordered = sorted(marks, key=lambda m: m.value)
    for index, mark in enumerate(ordered):
        at = x(mark.value)
        canvas.line(at, top + 2, at, bottom, mark.colour, width=1.5, dashed=mark.dashed)
        last = index == len(ordered) - 1
        colour = "muted" if mark.colour == "library" else mark.colour
        fits = at + 5 + width_of(mark.label, 12) <= canvas.width
        if len(ordered) == 1 or not last:
            canvas.text(at - 3, top, mark.label, size=12, colour=colour, anchor="end")
        elif fits:
            canvas.text(at + 3, top, mark.label, size=12, colour=colour)
        else:  # above the other's
            canvas.text(at + 3, top - 14, mark.label, size=12, colour=colour, anchor="end")


@dataclass(frozen=True)
class Series:
    """Points of one curve; None is a gap."""

    label: str
    points: Sequence[tuple[float, float | None]]
    colour: str
    dashed: bool = False
    tips: Sequence[str] = field(default_factory=tuple)


def curves(
    series: Sequence[Series],
    *,
    title: str,
    description: str,
    x_label: str,
    y_label: str,
    width: float = 520,
    height: float = 320,
    log_x: bool = True,
    log_y: bool = True,
    marks: bool = True,
    ticks: Sequence[float] | None = None,
) -> str:
    """Curves over a common axis, with a legend above; `ticks` are positions on the x axis."""
    xs = [p[0] for s in series for p in s.points]
    ys = [p[1] for s in series for p in s.points if p[1] is not None]
    left, right, bottom = 56.0, width - 14, height - 44
    legend = _legend_rows(series, width)
    top = 30 + 18 * len(legend)
    canvas = Canvas(width, height)
    if log_x and min(xs) > 0:
        x = Scale(min(xs) / 1.08, max(xs) * 1.08, left, right)
    else:
        pad = (max(xs) - min(xs) or 1.0) * 0.03
        x = Scale(min(xs) - pad, max(xs) + pad, left, right, log=False)
    if log_y and max(ys) > 3 * min(ys):
        y = log_scale(ys, bottom, top, room=0.5)
    else:
        y = Scale(0, max(ys) * 1.08, bottom, top, log=False)
    for tick in y.ticks(6):
        canvas.line(left, y(tick), right, y(tick))
        canvas.text(left - 7, y(tick) + 4, tick_text(tick), colour="muted", size=12, anchor="end")
    for tick in ticks if ticks is not None else x.ticks(7):
        canvas.line(x(tick), bottom, x(tick), bottom + 4, "muted")
        anchor = "end" if x(tick) > width - 16 else "middle"
        canvas.text(x(tick), bottom + 18, tick_text(tick), colour="muted", size=12, anchor=anchor)
    canvas.text(right, bottom + 36, x_label, colour="muted", size=12, anchor="end")
    canvas.text(4, top - 10, y_label, colour="muted", size=12)
    for number, line in enumerate(legend):
        at = left
        for one in line:
            canvas.line(at, 10 + 18 * number, at + 16, 10 + 18 * number, one.colour, width=2.5, dashed=one.dashed)
            canvas.text(at + 21, 14 + 18 * number, one.label, size=12)
            at += 21 + width_of(one.label, 12) + 16
    for one in series:
        for run in _runs(one.points):
            canvas.path([(x(a), y(b)) for a, b in run], one.colour, dashed=one.dashed, tip=one.label)
        if marks:
            for index, (a, b) in enumerate(one.points):
                if b is not None:
                    tip = one.tips[index] if index < len(one.tips) else f"{one.label}: {a:g}, {b:g}"
                    canvas.dot(x(a), y(b), one.colour, radius=3.5, tip=tip)
    return canvas.svg(title, description)


def _legend_rows(series: Sequence[Series], width: float) -> list[list[Series]]:
    rows: list[list[Series]] = [[]]
    used = 56.0
    for one in series:
        need = 37 + width_of(one.label, 12)
        if used + need > width and rows[-1]:
            rows.append([])
            used = 56.0
        rows[-1].append(one)
        used += need
    return rows


def _runs(points: Sequence[tuple[float, float | None]]) -> Iterable[list[tuple[float, float]]]:
    run: list[tuple[float, float]] = []
    for a, b in points:
        if b is None:
            if run:
                yield run
            run = []
        else:
            run.append((a, b))
    if run:
        yield run


@dataclass
class Found:
    """A study's result: a table, a chart, and a sentence that follows from the figures."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    finding: str
    series: list[Series] = field(default_factory=list)
    x_label: str = ""
    y_label: str = ""
    log_x: bool = True
    log_y: bool = True
    more: dict[str, Found] = field(default_factory=dict)  # further tables and charts of the same study
    texts: dict[str, str] = field(default_factory=dict)  # digests of the texts of the rungs that ran
    weights: str = ""  # of a model that ran: random, trained, or its name

    @property
    def drawable(self) -> bool:
        return any(value is not None for s in self.series for _, value in s.points)

    def svg(self) -> str:
        """The chart."""
        return curves(
            [s for s in self.series if any(value is not None for _, value in s.points)],
            title=self.title,
            description=self.finding,
            x_label=self.x_label,
            y_label=self.y_label,
            width=720,
            height=400,
            log_x=self.log_x,
            log_y=self.log_y,
        )
