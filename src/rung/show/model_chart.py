"""The climb of the whole model as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rung.show import charts
from rung.show.charts import Bar, Mark, Panel

COLOURS = {"float32": "f32", "tf32": "tf32", "float16": "f16", "bfloat16": "bf16", "int8": "f16"}


def chart(climb: Mapping[str, Any]) -> str:
    """The climb as bars of tokens per second, a panel for each number format (an SVG)."""
    rows = [row for row in climb["rows"] if row["tokens_per_second"] is not None]
    panels = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        some = [row for row in rows if row["dtype"] == dtype]
        limit = some[-1]["tokens_per_second"] / some[-1]["of_bandwidth"]
        drawn = [
            Bar(
                row["name"].replace("_", " "),
                row["tokens_per_second"],
                (f"{row['tokens_per_second']:,.0f}", "" if row["gain"] is None else f"{row['gain']:.2f}×"),
                COLOURS[dtype],
                tip=row["what"],
            )
            for row in some
        ]
        panels.append(Panel(f"{climb['model']}, {dtype}, batch 1", drawn, [Mark("memory bandwidth", limit, "limit")]))
    best = max(rows, key=lambda row: row["tokens_per_second"])
    return charts.bars(
        panels,
        title=f"The climb of {climb['model']}",
        description=f"From {rows[0]['tokens_per_second']:,.0f} tokens per second ({rows[0]['name']}) to "
        f"{best['tokens_per_second']:,.0f} ({best['name']}, {best['dtype']}).",
        unit="tokens per second",
        columns=("tokens/s", "vs before"),
    )
