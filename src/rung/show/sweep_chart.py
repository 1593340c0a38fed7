"""A sweep as a picture: for each tunable, the best time that each of its values reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rung.errors import RungError
from rung.lines import write_whole
from rung.show import charts
from rung.sweep.summary import Finding
from rung.sweep.sweep import Sweep

UNITS = {"us": "us, cold", "occupancy": "occupancy", "": ""}


def chart(swept: Sweep, findings: Sequence[Finding]) -> str:
    """One curve per tunable, over its values."""
    unit = findings[0].unit
    title = f"{swept.subject.rung.full_name}, {swept.subject.dtype.name}, {swept.subject.shape}"
    series = [
        charts.Series(
            f.tunable, [(float(value), figure) for value, figure in f.points], charts.SERIES[i % len(charts.SERIES)]
        )
        for i, f in enumerate(findings)
    ]
    return charts.curves(
        series,
        title=f"Sweep of {title}",
        description=" ".join(f.sentence for f in findings),
        x_label="value of the tunable",
        y_label=UNITS[unit],
        log_x=all(value > 0 for f in findings for value, _ in f.points),
        ticks=sorted({float(value) for f in findings for value, _ in f.points}) if len(findings) == 1 else None,
    )


def write(swept: Sweep, findings: Sequence[Finding], path: Path) -> None:
    """The chart as a file."""
    charted = [f for f in findings if f.unit]
    if not charted:
        raise RungError(f"there is nothing to draw in {path}: no tunable has two values with a figure.")
    write_svg(chart(swept, charted), path)


def write_svg(svg: str, path: Path) -> None:
    """A chart as a standalone file, for a light page."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RungError(f"{path} cannot be written: {error.strerror}.") from None
    write_whole(path, charts.standalone(svg, "light"))
