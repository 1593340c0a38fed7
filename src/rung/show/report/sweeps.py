"""What sweeps found, as charts: one for each rung, shape and number format that was swept."""

from __future__ import annotations

from collections.abc import Sequence

from rung.bench.subject import Subject
from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.results.current import Figures
from rung.results.store import Result, same_source, source_of
from rung.rungs import catalogue
from rung.show import sweep_chart
from rung.show.report.markup import table, text
from rung.sweep import summary, sweep
from rung.sweep.sweep import Sweep


def section(name: str, found: Figures) -> str:
    """The sweeps of a ladder's rungs; nothing when there are none."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for row in found.of_kind("sweep", name):
        options = row.get("options") or {}
        source = (row.get("digest", ""), row.get("headers", ""))
        key = (row["rung"], row["dtype"], row["shape"], str(options.get("measure")), *source)
        groups.setdefault(key, []).append(row)
    parts = [part for rows in groups.values() if (part := _one(rows))]
    return "<h2>Sweeps</h2>" + "".join(parts) if parts else ""


def _one(rows: Sequence[Result]) -> str:
    first = rows[0]
    try:
        rung = catalogue.find(first["rung"])
    except RungError:
        return ""
    latest: dict[str, Result] = {}
    for row in sorted(rows, key=lambda r: (int((r.get("options") or {}).get("round", 0)), r.get("time", ""))):
        word = " ".join(f"{n}={v}" for n, v in row["tuning"].items())
        if row["verdict"] == "ok" or word not in latest:
            latest[word] = row
    subject = Subject(rung, first["shape"], first["values"], DTYPES[first["dtype"]])
    timed = any(r.get("cold_us") for r in latest.values())
    swept = Sweep(subject, str((first.get("options") or {}).get("measure", "")), timed, list(latest.values()))
    try:
        told = summary.findings(swept)
    except KeyError:  # of a rung whose tunables have other names by now
        return ""
    drawn = [f for f in told if f.unit]
    picture = f'<figure class="chart">{sweep_chart.chart(swept, drawn)}</figure>' if drawn else ""
    sentences = "".join(f"<li>{text(f.sentence)}</li>" for f in told)
    old = "" if same_source(first, source_of(rung)) else " (an earlier version of the rung)"
    heading = f"{rung.name}, {first['dtype']}, {first['shape']}{old}"
    return f"<h3>{text(heading)}</h3><ul>{sentences}</ul>{picture}{_best(swept)}"


def _best(swept: Sweep, most: int = 12) -> str:
    order = sweep.ranked(swept.rows)[:most]
    if not order:
        return ""
    names = list(order[0]["tuning"])
    columns = (*names, "µs, cold" if swept.timed else "occupancy")
    rows = []
    for row in order:
        figure = row.get("cold_us") if swept.timed else row.get("occupancy")
        shown = "" if figure is None else (f"{figure:.4g}" if swept.timed else f"{figure:.0%}")
        rows.append([*(str(row["tuning"].get(n, "")) for n in names), shown])
    inner = table(columns, rows, numbers=list(range(1, len(columns))), label="best configurations")
    return f"<details><summary>The best {len(rows)} of {len(swept.rows)} configurations</summary>{inner}</details>"
