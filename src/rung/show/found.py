"""A study's result, as plain data with its chart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rung.show import charts


@dataclass
class Found:
    """A study's result: a table, a chart, and a sentence that follows from the figures."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    finding: str
    series: list[charts.Series] = field(default_factory=list)
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
        return charts.curves(
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
