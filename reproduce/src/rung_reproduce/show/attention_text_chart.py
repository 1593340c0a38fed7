"""Text without a cache, attention rung by rung: time against tokens, and the time of every rung as a bar."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rung.results.row import Row
from rung.show.charts import Canvas
from rung_reproduce.show import charts
from rung_reproduce.show.charts import Bar, Mark, Panel, Series

FORMAT = "float32"  # the study's
LAST = "37_sixty_four_square"  # its version 12
KERNELS = "attention, kernels"  # the study of rows that the host has no part in


def steps(rows: Sequence[Row]) -> list[Row]:
    """The rows of the study in its number format, in the order of its variants."""
    some = [r for r in of_study(rows) if "batch" not in r.options]
    formats = [r.dtype for r in some]
    usual = FORMAT if FORMAT in formats else max(sorted(set(formats)), key=formats.count, default="")
    return sorted((r for r in some if r.dtype == usual), key=lambda r: int(r.detail["step"]))


def of_study(rows: Sequence[Row], study: str = "attention") -> list[Row]:
    return [r for r in rows if r.kind == "climb" and r.options.get("study") == study]


def batches(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Time and peak memory of each variant over the number of texts; empty if there was only one."""
    some = of_study(rows)
    sizes = sorted({int(r.options.get("batch", 1)) for r in some})
    by = {(r.part, int(r.options.get("batch", 1))): r for r in some}
    alone = {(r.part, int(r.options.get("batch", 1))): r for r in of_study(rows, KERNELS)}
    names = [name for name in dict.fromkeys(r.part for r in steps(some)) if (name, sizes[-1]) in by]
    if len(sizes) < 2:
        return [], []
    columns = ["attention", *(f"{n} text{'s' * (n > 1)}: {what}" for n in sizes for what in ("time", "peak"))]
    lines = []
    for name in names:
        line = [name.replace("_", " ")]
        for n in sizes:
            row, kernels = by.get((name, n)), alone.get((name, n))
            peak = kernels.metrics.get("peak_bytes") if kernels else None
            line += [result(row) if row else "", f"{peak / 1e6:,.0f} MB" if peak else ""]
        lines.append(line)
    return columns, lines


def result(row: Row) -> str:
    """Its result: 2.80 s, or 19 of 512 tokens in 12.10 s, or why there is no time."""
    if "seconds" not in row.metrics:
        return row.reason
    spent = f"{row.metrics['seconds']:.2f} s"
    return spent if _whole(row) else f"{row.metrics['tokens']:.0f} of {row.options['new_tokens']} tokens in {spent}"


def telling(rows: Sequence[Row]) -> list[Row]:
    """At most six rows, so that curves can be told apart: torch's, the first rung on the GPU, the fastest without
    flash attention, the slowest with it, and the study's last version, or else the fastest of all."""
    timed = [row for row in rows if "seconds" in row.metrics]
    kernels = [row for row in timed if row.detail["language"] in ("cuda", "triton")]
    plain = [row for row in kernels if not row.detail["flash"]]
    flash = [row for row in kernels if row.detail["flash"]]
    found = [row for row in timed if row.detail["language"] == "torch"][:2] + kernels[:1]
    last = [row for row in kernels if row.part == LAST] or sorted(kernels, key=_gain)[-1:]
    found += sorted(plain, key=_gain)[-1:] + sorted(flash, key=_gain)[:1] + last
    return list({row.part: row for row in found}.values())


def _gain(row: Row) -> float:
    return row.metrics["vs_naive"]


WIDTH = 860.0
COLOURS = ("ink", "library", "limit", "f16", "bf16", "f32")


def chart(model: str, rows: Sequence[Row]) -> str:
    """Time over tokens of text for selected rows, and the time of every row as a bar (an SVG)."""
    some = telling(rows)
    what = f"{rows[0].options['new_tokens']} tokens by {model} in {rows[0].dtype}, without a cache"
    text = ", ".join(f"{_label(row)} {result(row)}" for row in some)
    top = max((1.1 * row.metrics["seconds"] for row in some if _whole(row)), default=math.inf)
    series = [
        Series(_label(r) if _whole(r) else f"{_label(r)}: {result(r)}", _up_to(top, r.detail["curve"]), colour)
        for r, colour in zip(some, COLOURS, strict=False)
    ]
    above = charts.curves(
        series, title="Time against tokens", description=f"{what}: {text}.",
        x_label="tokens of text", y_label="seconds", width=WIDTH, height=440, log_x=False, log_y=False, marks=False,
    )  # fmt: skip
    if not any(_whole(row) for row in rows):  # bars for different lengths of text are not comparable
        return above
    return _stacked(above, _bars(what, rows), "Attention rung by rung", f"{what}: {text}.")


def _up_to(top: float, curve: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """A variant that was stopped is clipped, so that it does not compress the others at the bottom."""
    inside: list[tuple[float, float]] = []
    for n, seconds in curve:
        if seconds > top:
            before, low = inside[-1]
            return [*inside, (before + (n - before) * (top - low) / (seconds - low), top)]
        inside.append((n, seconds))
    return inside


def _whole(row: Row) -> bool:
    return "seconds" in row.metrics and bool(row.metrics["tokens"] == row.options["new_tokens"])


def _bars(what: str, rows: Sequence[Row]) -> str:
    bars: list[Bar] = []
    for row in rows:
        gain = "" if "seconds" not in row.metrics else f"{row.metrics['vs_naive']:.2f}×"
        colour = "library" if row.detail["language"] == "torch" else "f32"
        notes = (result(row) if "seconds" in row.metrics else "no time", gain)
        seconds = row.metrics["seconds"] if _whole(row) else None
        bars.append(Bar(_label(row), seconds, notes, colour, tip=row.detail["idea"]))
    naive = [Mark(_label(rows[0]), rows[0].metrics["seconds"], "library", dashed=True)] if bars[0].value else []
    return charts.bars(
        [Panel(what, bars, naive)],
        title="Time of every rung", description="A bar for each that wrote all tokens.", unit="seconds",
        columns=("time", "vs naive, same length"), width=WIDTH,
    )  # fmt: skip


def _label(row: Row) -> str:
    return row.part.replace("_", " ")


def _stacked(above: str, below: str, title: str, description: str) -> str:
    """One picture over another."""
    heights = [float(re.findall(r' height="([\d.]+)"', picture)[0]) for picture in (above, below)]
    canvas = Canvas(WIDTH, sum(heights) + 24)
    canvas.elements += [above, below.replace("<svg ", f'<svg y="{heights[0] + 24:g}" ', 1)]
    return canvas.svg(title, description)
