"""Nsight Compute's counters of every rung that a source document profiles, stored as rows.

    python -m rung_reproduce.atlas [--limit SECONDS] [--again]

The same command goes on where it stopped; `rung reproduce` shows the counters next to the documents'.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rung.dtypes import dtype as dtype_named
from rung.profile import batches
from rung.profile.batches import Planned
from rung.results import store
from rung.results.current import HEADLINE
from rung.rungs import catalogue
from rung.rungs.base import Subject
from rung.rungs.subjects import shapes_of
from rung_reproduce import sources

SLOW = 0.1  # seconds per run: ncu repeats each launch dozens of times, some of them ten times slower

# Also profiled, for the roofline: a ladder's rungs from this number on, at GPT-2's usual shape.
ROOFLINE = (("attention", "f32", 7), ("attention", "bf16", 27), ("matmul", "bf16", 14), ("layernorm", "f32", 2),
            ("softmax", "f32", 2))  # fmt: skip


def planned() -> list[Planned]:
    """Each rung, shape, dtype and tuning with a counter in a source, then the roofline's; slow ones last."""
    first = planned_for(sorted(sources.references("profile"), key=_place))
    covered = {(s.rung.full_name, s.dtype.name, s.shape) for s, tuning in first if not tuning}
    all_of_them = first + [
        (about, None)
        for ladder, dtype, least in ROOFLINE
        for rung in catalogue.rungs(ladder, libraries=False)
        if dtype in rung.dtypes and (rung.number or 0) >= least and not rung.side_experiment
        if (rung.full_name, dtype, HEADLINE) not in covered
        if rung.refusal((about := subject(rung.full_name, dtype, HEADLINE)).values, about.dtype) is None
    ]
    slow = {
        (row.what, row.dtype, row.shape)
        for row in store.gather()
        if row.kind == "bench" and max(row.metrics.get("forecast_s", 0), row.metrics.get("cold_us", 0) * 1e-6) > SLOW
    }
    return sorted(all_of_them, key=lambda w: (w[0].rung.full_name, w[0].dtype.name, w[0].shape) in slow)


def subject(what: str, dtype: str, shape: str) -> Subject:
    """A rung at a named shape, or at one written out."""

    rung = catalogue.find(what)
    ((name, dims),) = shapes_of(rung.operation, [shape])
    return Subject(rung, name, rung.operation.complete(dims), dtype_named(dtype))


def missing(chosen: Sequence[Planned], path: Path | None = None) -> list[Planned]:
    """Those without a row of the present code on this GPU, in the store or the published results, and those whose row
    lacks a counter that a source's figure needs."""
    rows = batches.rows_here(path)
    lacking = {_place(r) for r in sources.references("profile") if r.value(rows) is None}
    return batches.missing(chosen, rows, also=lambda one: _key(*one) in lacking)


def _place(reference: sources.Reference) -> tuple[str, str, str, tuple[tuple[str, int], ...]]:
    return reference.what, reference.dtype, reference.shape, tuple(reference.tuning.items())


def planned_for(references: Sequence[sources.Reference]) -> list[Planned]:
    """What to profile for these references, each rung, shape, format and tuning once."""
    places = dict.fromkeys(map(_place, references))
    return [(subject(what, dtype, shape), dict(tuning) or None) for what, dtype, shape, tuning in places]


def _key(about: Subject, tuning: Mapping[str, int] | None) -> tuple[object, ...]:
    return about.rung.full_name, about.dtype.name, about.shape, tuple((tuning or {}).items())


def main() -> int:
    """Profile rungs without a row, within the time limit; each row is stored at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=600.0, help="start nothing new after this many seconds")
    parser.add_argument("--again", action="store_true", help="also rungs that have a row for their present code")
    given = parser.parse_args()
    chosen = planned() if given.again else missing(planned())
    rows = []
    for row in batches.collect(chosen, given.limit, lambda text: print(f"  {text}", file=sys.stderr, flush=True)):
        rows.append(row)
        if row.verdict != "ok":
            print(f"  {row.what} {row.dtype} {row.shape}: {row.reason}", file=sys.stderr)
    right = sum(row.verdict == "ok" for row in rows)
    print(f"{right} of {len(chosen)} profiled.")
    return int(right < len(rows))


if __name__ == "__main__":
    sys.exit(main())
