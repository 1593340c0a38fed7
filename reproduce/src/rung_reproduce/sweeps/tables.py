"""The course's table of block sizes, ours beside theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rung.results.row import Row
from rung.show.sweep_tables import occupancy as theoretical
from rung.show.verb_tables import Table
from rung.sweep import summary
from rung.sweep.sweep import Place, Sweep, place_of
from rung_reproduce.sweeps import course
from rung_reproduce.sweeps.course import Column


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
        return f"{theoretical(row) or 'right'}{theirs}"
    achieved = occupancy.get(place_of(row))
    return f"{row.cold_us * column.calls:.1f}{theirs}" + (f" {achieved:.0f} %" if achieved else "")


def _achieved(row: Row) -> float | None:
    """The achieved occupancy of a profile's longest kernel."""
    kernels = [k["figures"] for k in row.detail["kernels"] if "achieved_occupancy" in k["figures"]]
    longest = max(kernels, key=lambda k: k.get("seconds", 0.0), default=None)
    return None if longest is None else float(longest["achieved_occupancy"])
