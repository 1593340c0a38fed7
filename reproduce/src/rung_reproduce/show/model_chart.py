"""The climb of the whole model as bars of tokens per second, a panel for each number format."""

from __future__ import annotations

from collections.abc import Sequence

from rung.results.row import Row
from rung.show.model_chart import COLOURS, rate, summary
from rung_reproduce.show.charts import Bar, Mark, Panel
from rung_reproduce.show.charts import bars as draw_bars


def chart(rows: Sequence[Row]) -> str:
    """The steps as an SVG."""
    panels = []
    for dtype in dict.fromkeys(row.dtype for row in rows):
        some = [row for row in rows if row.dtype == dtype]
        bars, before = [], None
        for row in some:
            gain = f"{rate(row) / before:.2f}×" if before else ""
            before = rate(row)
            label = row.part.replace("_", " ")
            bars.append(Bar(label, rate(row), (f"{rate(row):,.0f}", gain), COLOURS[dtype], tip=row.detail["idea"]))
        limits = [rate(r) / r.metrics["of_bandwidth"] for r in some if r.metrics.get("of_bandwidth")]
        marks = [Mark("memory bandwidth", limits[-1], "limit")] if limits else []
        panels.append(Panel(f"{rows[0].what}, {dtype}, one text, {rows[0].weights} weights", bars, marks, best=True))
    return draw_bars(
        panels,
        title=f"The climb of {rows[0].what}",
        description=summary(rows),
        unit="tokens per second",
        columns=("tokens/s", "vs before"),
    )
