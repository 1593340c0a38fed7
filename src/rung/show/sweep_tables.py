"""Sweeps as tables: a rung's configurations, and the course's table of block sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rung_reproduce.sweeps import course
from rung_reproduce.sweeps.course import Column

from rung.results.row import Row
from rung.show.verb_tables import Table
from rung.sweep import summary
from rung.sweep.sweep import Place, Sweep, figure_of, place_of

SHOWN = 24


def of_rung(swept: Sweep, findings: Sequence[Any], won: tuple[Row, Row | None] | None) -> Iterator[str | Table]:
    """The configurations, the fastest first, what is illegal or failed, and the findings."""
    names = list(swept.subject.rung.tune)
    right = sorted((r for r in swept.rows if r.verdict == "ok"), key=figure_of)
    default = swept.subject.rung.tuned(None)
    yield f"{swept.subject.rung.full_name}  {swept.subject.dtype.name}  {swept.subject.shape}\n"
    cells = []
    for row in right[:SHOWN]:
        time, ratio = row.cold_us, row.metrics.get("ratio")
        cells.append(
            (
                *(row.tuning[n] for n in names),
                "" if time is None else f"{time:.2f}",
                "" if ratio is None else f"{ratio:.3f}",
                f"{row.metrics['registers']:.0f}" if "registers" in row.metrics else "",
                _occupancy(row),
                row.detail.get("limiter", ""),
                "default" if row.tuning == default else "",
            )
        )
    columns = (*names, "cold us", "x default", "registers", "occupancy", "limited by", "")
    yield Table(columns, cells, right=columns[:-2])
    if len(right) > SHOWN:
        yield f"... and {len(right) - SHOWN} more (--json shows all)."
    for verdict, words in (("illegal", "illegal, not launched"), ("failed", "failed")):
        reasons: dict[str, int] = {}
        for row in swept.rows:
            if row.verdict == verdict:
                reasons[row.reason] = reasons.get(row.reason, 0) + 1
        for reason, count in reasons.items():
            yield f"{count} {words}: {reason}"
    if swept.resumed:
        yield f"{swept.resumed} measured before."
    yield ""
    for finding in findings:
        yield finding.sentence
    if won is not None:
        best, own = won
        named = " ".join(f"{n}={v}" for n, v in best.tuning.items())
        ratio = best.metrics.get("ratio") if best is not own else None
        gain = f", {1 / ratio:.2f}x the default" if ratio else ""
        yield f"\nTuned: {named}{gain}; bench and the model use it from now on (`rung tunings`)."


def as_json(swept: Sweep, findings: Sequence[Any], won: tuple[Row, Row | None] | None) -> dict[str, Any]:
    subject = swept.subject
    return {
        "rung": subject.rung.full_name, "shape": subject.shape, "dtype": subject.dtype.name, "measure": swept.measure,
        "resumed": swept.resumed, "rows": [r.as_json() for r in swept.rows],
        "findings": [f.as_json() for f in findings], "best": won[0].tuning if won else None,
    }  # fmt: skip


def course_as_json(swept: Sequence[Sweep], profiles: Sequence[Row]) -> dict[str, Any]:
    achieved = [[*place_of(r), share] for r in profiles if (share := _achieved(r))]
    return {
        "rows": [row.as_json() for s in swept for row in s.rows],
        "findings": [f.as_json() for s in swept for f in summary.findings(s)],
        "calls": {c.title: c.calls for c in course.TABLE},
        "theirs_us": {c.title: c.theirs for c in course.TABLE},
        "achieved_occupancy": achieved,
    }


def of_course(swept: Sequence[Sweep], profiles: Sequence[Row]) -> Iterator[str | Table]:
    occupancy = {place_of(r): _achieved(r) for r in profiles}
    timed = any(s.timed for s in swept)
    unit = "us of a forward pass's calls, cold" if timed else "theoretical occupancy; no time was taken"
    for edges, title in ((False, "threads"), (True, "edge of the cube")):
        columns = [(c, s) for c, s in zip(course.TABLE, swept, strict=True) if (c.tunable == "EDGE") == edges]
        yield f"\n{unit}; in brackets the course's A40"
        rows = [(size, *(_course_cell(s, c, size, occupancy) for c, s in columns)) for size in columns[0][0].sizes]
        names = (title, *(f"{c.title} x{c.calls}" for c, _ in columns))
        yield Table(names, rows, right=names)
    if any(occupancy.values()):
        yield "After each time: achieved occupancy, by Nsight Compute."
    yield ""
    for s in swept:
        for finding in summary.findings(s):
            yield f"{s.subject.rung.full_name} {s.subject.shape}: {finding.sentence}"


def _course_cell(swept: Sweep, column: Column, size: int, occupancy: Mapping[Place, float | None]) -> str:
    row = next(r for r in swept.rows if r.tuning[column.tunable] == size)
    theirs = f" ({column.theirs[size]:.0f})" if size in column.theirs else ""
    if row.verdict != "ok":
        return f"{row.verdict}{theirs}"
    if row.cold_us is None:
        return f"{_occupancy(row) or 'right'}{theirs}"
    achieved = occupancy.get(place_of(row))
    return f"{row.cold_us * column.calls:.1f}{theirs}" + (f" {achieved:.0f} %" if achieved else "")


def _achieved(row: Row) -> float | None:
    """The achieved occupancy of a profile's longest kernel."""
    kernels = [k["figures"] for k in row.detail["kernels"] if "achieved_occupancy" in k["figures"]]
    longest = max(kernels, key=lambda k: k.get("seconds", 0.0), default=None)
    return None if longest is None else float(longest["achieved_occupancy"])


def _occupancy(row: Row) -> str:
    return f"{row.metrics['occupancy']:.0%}" if "occupancy" in row.metrics else ""
