"""The results of sweeps as charts: one for each rung, shape and number format that was swept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rung.dtypes import DTYPES
from rung.results.current import Figures
from rung.results.row import Row
from rung.rungs import catalogue
from rung.rungs.base import Subject
from rung.show.report import plots
from rung.sweep import summary, sweep
from rung.sweep.sweep import Sweep

UNITS = {"us": "us, cold", "occupancy": "occupancy", "": ""}


def of(name: str, found: Figures) -> list[dict[str, Any]]:
    """The sweeps of a ladder's rungs, if they are of the present code."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in found.of_kind("sweep", name):
        groups.setdefault((row.what, row.dtype, row.shape, str(row.options.get("measure"))), []).append(row)
    return [section for rows in groups.values() if (section := _configurations(rows))]


def _configurations(rows: Sequence[Row]) -> dict[str, Any]:
    first = rows[0]
    rung = catalogue.find(first.what)
    latest: dict[str, Row] = {}
    for row in sorted(rows, key=lambda r: (int(r.options.get("round", 0)), r.time)):
        word = " ".join(f"{n}={v}" for n, v in row.tuning.items())
        if row.verdict == "ok" or word not in latest:
            latest[word] = row
    subject = Subject(rung, first.shape, first.values, DTYPES[first.dtype])
    timed = any(r.cold_us for r in latest.values())
    swept = Sweep(subject, str(first.options.get("measure", "")), timed, list(latest.values()))
    try:
        findings = summary.findings(swept)
    except KeyError:  # the rung's tunables have other names now
        return {}
    charted = [f for f in findings if f.unit]
    columns, best = _best(swept)
    return {
        "heading": f"{rung.name}, {first.dtype}, {first.shape}",
        "findings": [f.sentence for f in findings],
        "plot": plots.sweep(charted, UNITS[charted[0].unit]) if charted else {},
        "columns": columns,
        "rows": best,
        "count": len(swept.rows),
    }


def _best(swept: Sweep, most: int = 12) -> tuple[list[str], list[list[str]]]:
    order = sweep.ranked(swept.rows)[:most]
    if not order:
        return [], []
    names = list(order[0].tuning)
    rows = []
    for row in order:
        figure = row.metrics.get("cold_us" if swept.timed else "occupancy")
        shown = "" if figure is None else (f"{figure:.4g}" if swept.timed else f"{figure:.0%}")
        rows.append([*(str(row.tuning.get(n, "")) for n in names), shown])
    return [*names, "µs, cold" if swept.timed else "occupancy"], rows
