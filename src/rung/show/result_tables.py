"""Stored rows as tables: how many there are, one a line, and the differences of two sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rung.results import current, store
from rung.results.current import time_text
from rung.results.query import Pair
from rung.results.row import Row
from rung.show.row_text import headline, remark
from rung.show.verb_tables import Table

if TYPE_CHECKING:
    from rung.bench.plan import Planned


def summary(rows: list[Row]) -> Iterator[str | Table]:
    """How many rows of which kind each GPU has."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.gpu or "no GPU", row.kind), []).append(row)
    shown = [
        (gpu, kind, len(of), len({row.operation for row in of}), max(row.time for row in of)[:10])
        for (gpu, kind), of in sorted(groups.items())
    ]
    yield Table(("gpu", "kind", "rows", "operations", "newest"), shown, right=("rows", "operations"))
    yield ("\n`rung results OP` or a filter (--kind, --gpu, --dtype ...) lists the rows; --all lists every row.")


def listed(rows: list[Row]) -> Table:
    shown = [
        (
            " ".join(filter(None, (row.what, row.part))),
            row.kind,
            row.dtype,
            row.shape,
            headline(row),
            "" if row.verdict == "ok" else row.verdict,
            _conditions(row),
            row.gpu,
            row.time[:10],
            row.commit[:8],
            remark(row),
        )
        for row in rows
    ]
    columns = ("what", "kind", "dtype", "shape", "figure", "verdict", "with", "gpu", "day", "commit", "remark")
    return Table(columns, shown, ("figure",), ("commit", "day", "remark", "gpu", "kind", "with", "verdict"))


def _conditions(row: Row) -> str:
    """What else the figure depends on: a sweep's tuning, the length and number of texts, the implementation."""
    if row.kind == "sweep":
        return " ".join(f"{n}={v}" for n, v in row.tuning.items())
    if row.kind not in ("climb", "generate", "parallel"):
        return ""
    return ", ".join(str(v) if isinstance(v, str) else f"{n.replace('_', ' ')} {v}" for n, v in row.options.items())


def differences(names: tuple[str, str], pairs: Sequence[Pair]) -> Iterator[str | Table]:
    shown = [
        (
            p.a.what,
            p.a.dtype,
            p.a.shape,
            time_text(p.a.metrics["cold_us"]),
            time_text(p.b.metrics["cold_us"]),
            f"{p.ratio:.2f}x",
            p.verdict,
            "" if p.same_code else "the source differs",
        )
        for p in pairs
    ]
    columns = ("rung", "dtype", "shape", "A, µs", "B, µs", "B/A speed", "B is", "remark")
    yield f"A: {names[0]}\nB: {names[1]}\n"
    yield Table(columns, shown, right=columns[3:6])
    counts = {v: sum(p.verdict == v for p in pairs) for v in ("faster", "slower", "tie")}
    yield (f"\nB is faster {counts['faster']} times, slower {counts['slower']}, a tie {counts['tie']}.")


def stored_elsewhere(races: Sequence[Planned]) -> Iterator[str | Table]:
    """What other machines measured for these rungs, of their present code."""
    rows = []
    for gpu, figures in current.by_gpu(store.gather()).items():
        for race in races:
            if race.operation in figures.names():
                chosen = {r.full_name for r in race.chosen}
                timed = figures.ladder(race.operation).column(race.dtype, race.shape)
                rows += [
                    (f.name, race.dtype, race.shape, time_text(f.us), gpu, f.row.time[:10])
                    for f in timed
                    if f.rung.full_name in chosen
                ]
    if rows:
        yield "Stored figures, measured on other machines:\n"
        yield Table(("rung", "dtype", "shape", "cold, µs", "gpu", "day"), rows, right=("cold, µs",))
        yield ""
