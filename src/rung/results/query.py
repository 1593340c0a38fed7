"""Queries of results: filtering, comparing two machines or commits, exporting."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.errors import RungError
from rung.results import store
from rung.results.row import Row

_COMMIT = re.compile(r"(tree-)?[0-9a-f]{4,40}")


def chosen(
    rows: Iterable[Row],
    *,
    op: str | None = None,
    rung: str | None = None,
    dtype: str | None = None,
    shape: str | None = None,
    gpu: str | None = None,
    kind: str | None = None,
) -> list[Row]:
    """The rows that match all given values; a GPU by a part of its name, a rung with or without its ladder."""
    return [
        row
        for row in rows
        if (op is None or row.operation == op)
        and (rung is None or rung in (row.what, row.rung))
        and (dtype is None or row.dtype == dtype)
        and (shape is None or row.shape == shape)
        and (gpu is None or gpu.lower() in row.gpu.lower())
        and (kind is None or row.kind == kind)
    ]


def side(name: str, rows: Sequence[Row]) -> list[Row]:
    """What `name` means: a file or folder of results, a commit, or a GPU by a part of its name."""
    if Path(name).exists():
        return store.load(Path(name))
    if _COMMIT.fullmatch(name):
        found = [r for r in rows if r.commit.startswith(name)]
        if found:
            return found
    found = chosen(rows, gpu=name)
    if not found:
        commits = ", ".join(sorted({r.commit for r in rows if r.commit})) or "none"
        gpus = ", ".join(sorted({r.gpu for r in rows if r.gpu})) or "none"
        raise RungError(f"{name!r} is no results file, commit ({commits}) or GPU ({gpus}) of these results.")
    return found


@dataclass(frozen=True)
class Pair:
    """The same rung, number format and shape, measured twice; `ratio` is B's speed over A's."""

    a: Row
    b: Row
    ratio: float
    verdict: str

    @property
    def same_code(self) -> bool:
        return self.a.texts == self.b.texts

    def as_json(self) -> dict[str, Any]:
        return {
            "rung": self.a.what, "dtype": self.a.dtype, "shape": self.a.shape, "a_us": self.a.cold_us,
            "b_us": self.b.cold_us, "ratio": self.ratio, "verdict": self.verdict, "same_source": self.same_code,
        }  # fmt: skip


def compare(a: Iterable[Row], b: Iterable[Row]) -> list[Pair]:
    """B against A, wherever both were timed; different tunables or sources still count as the same rung."""
    left, right = _timed(a), _timed(b)
    pairs = []
    for key, first in left.items():
        second = right.get(key)
        if second is not None:
            ratio = first.metrics["cold_us"] / second.metrics["cold_us"]
            pairs.append(Pair(first, second, ratio, _verdict(first, second, ratio)))
    return pairs


def _timed(rows: Iterable[Row]) -> dict[tuple[Any, ...], Row]:
    some = sorted((r for r in rows if r.kind == "bench" and r.timed), key=lambda r: r.time)
    return {(row.what, row.dtype, tuple(sorted(row.values.items()))): row for row in some}


def _verdict(a: Row, b: Row, ratio: float) -> str:
    ours, theirs = b.samples.get("cold_us", []), a.samples.get("cold_us", [])
    if len(ours) > 2 and len(theirs) > 2:
        from rung.results import statistics  # imports numpy

        return statistics.verdict(ours, theirs)
    return "tie" if abs(ratio - 1) < 0.005 else ("faster" if ratio > 1 else "slower")


FIELDS = ("time", "commit", "kind", "what", "part", "dtype", "shape", "weights", "quick", "verdict", "reason")
MACHINE = ("gpu", "driver", "cuda", "torch", "triton")


def as_csv(rows: Sequence[Row]) -> str:
    """A line for each row; metrics, dims and tunables have their own columns."""

    def names(of: str) -> list[str]:
        return sorted({name for row in rows for name in getattr(row, of)})

    metrics, dims, tunables = names("metrics"), names("values"), names("tuning")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*FIELDS, *metrics, *MACHINE, *(f"dim:{d}" for d in dims), *(f"tune:{t}" for t in tunables)])
    for row in rows:
        cells = [getattr(row, f) for f in FIELDS] + [row.metrics.get(m, "") for m in metrics]
        cells += [row.machine.get(m, "") for m in MACHINE]
        cells += [row.values.get(d, "") for d in dims] + [row.tuning.get(t, "") for t in tunables]
        writer.writerow(cells)
    return out.getvalue()
