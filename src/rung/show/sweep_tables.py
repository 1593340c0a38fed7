"""A sweep as a table: a rung's configurations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rung.results.row import Row
from rung.show.verb_tables import Table
from rung.sweep.sweep import Sweep, figure_of

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
                occupancy(row),
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
        yield f"\nTuned: {named}{gain}; bench and the model use it from now on (`rung sweep --found`)."


def as_json(swept: Sweep, findings: Sequence[Any], won: tuple[Row, Row | None] | None) -> dict[str, Any]:
    subject = swept.subject
    return {
        "rung": subject.rung.full_name, "shape": subject.shape, "dtype": subject.dtype.name, "measure": swept.measure,
        "resumed": swept.resumed, "rows": [r.as_json() for r in swept.rows],
        "findings": [f.as_json() for f in findings], "best": won[0].tuning if won else None,
    }  # fmt: skip


def occupancy(row: Row) -> str:
    return f"{row.metrics['occupancy']:.0%}" if "occupancy" in row.metrics else ""
