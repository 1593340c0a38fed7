"""A time line: lanes one below the other, a bar for each period of work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rung.show import charts
from rung_reproduce.show.charts import Found, Series

COLOURS = {"read": "f32", "copy": "f16", "compute": "tf32"}
ROW, BAR = 34.0, 20.0
MERGED = 1 / 1000  # as a share of the whole: shorter gaps are invisible


@dataclass(frozen=True)
class Lane:
    """One lane: its name, its kind of work, and its periods (begin, end)."""

    label: str
    kind: str
    stretches: tuple[tuple[float, float], ...]


@dataclass
class Timeline(Found):
    """A study whose chart is a time line; pages that only support curves draw each lane as a broken line."""

    lanes: list[Lane] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        title: str,
        columns: tuple[str, ...],
        rows: list[tuple[Any, ...]],
        finding: str,
        lanes: Sequence[Lane],
        x_label: str,
    ) -> Timeline:
        end = max((e for lane in lanes for _, e in lane.stretches), default=0.0)
        merged = [Lane(one.label, one.kind, joined(one.stretches, end * MERGED)) for one in lanes]
        series = [_broken_line(one, len(merged) - place) for place, one in enumerate(merged)]
        axes = (x_label, "lane, the first on top", False, False)
        return cls(title, columns, rows, finding, series, *axes, lanes=merged)

    def svg(self) -> str:
        left = 14 + max(charts.width_of(one.label) for one in self.lanes)
        width, top = 860.0, 14.0
        bottom = top + ROW * len(self.lanes)
        canvas = charts.Canvas(width, bottom + 44)
        end = max(e for lane in self.lanes for _, e in lane.stretches)
        x = charts.Scale(0, end * 1.01, left, width - 14, log=False)
        for tick in x.ticks(9):
            canvas.line(x(tick), top, x(tick), bottom)
            canvas.text(x(tick), bottom + 18, charts.tick_text(tick), colour="muted", size=12, anchor="middle")
        canvas.text(width - 14, bottom + 36, self.x_label, colour="muted", size=12, anchor="end")
        for place, lane in enumerate(self.lanes):
            y = top + ROW * place
            canvas.text(left - 8, y + ROW / 2 + 4, lane.label, anchor="end")
            for begin, stop in lane.stretches:
                tip = f"{lane.label}: {begin:.3g} to {stop:.3g}"
                canvas.rect(x(begin), y + (ROW - BAR) / 2, x(stop) - x(begin), BAR, COLOURS[lane.kind], tip=tip)
        return canvas.svg(self.title, self.finding)


def joined(stretches: Sequence[tuple[float, float]], gap: float) -> tuple[tuple[float, float], ...]:
    """In order, with periods merged that are closer than `gap`."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(stretches):
        if found and begin - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)


def _broken_line(lane: Lane, height: int) -> Series:
    points: list[tuple[float, float | None]] = []
    for begin, end in lane.stretches:
        points += [(begin, float(height)), (end, float(height)), (end, None)]
    return Series(lane.label, points, COLOURS[lane.kind])
