"""`rung profile all`: Nsight Compute's counters of every rung that a source document profiles, stored as rows.
rung_reproduce.sources lists the rungs. Several are profiled per process, since starting a process takes longer than
profiling most kernels; a rung that fails among others is tried once more alone, and its row holds the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rung_reproduce import sources

from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.profile import counters, ncu
from rung.results import codes, machine, store
from rung.results.current import HEADLINE
from rung.results.row import Row
from rung.rungs import catalogue
from rung.rungs.base import Subject
from rung.rungs.subjects import shapes_of

TOGETHER = 10  # rungs in one process
PATIENCE = 80.0  # seconds for one process
SLOW = 0.1  # seconds per run: ncu repeats each launch dozens of times, some of them ten times slower
Planned = tuple[Subject, Mapping[str, int] | None]


# Also profiled, for the roofline: a ladder's rungs from this number on, at GPT-2's usual shape.
ROOFLINE = (("attention", "f32", 7), ("attention", "bf16", 27), ("matmul", "bf16", 14), ("layernorm", "f32", 2),
            ("softmax", "f32", 2))  # fmt: skip


def planned() -> list[Planned]:
    """Each rung, shape, dtype and tuning with a counter in a source, then the roofline's; slow ones last."""
    referenced = {(r.what, r.dtype, r.shape, tuple(r.tuning.items())) for r in sources.references("profile")}
    first: list[Planned] = [(subject(w, d, s), dict(tuning) or None) for w, d, s, tuning in sorted(referenced)]
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
    gpu = machine.facts().get("gpu", "")
    stored = list(store.read(path)) if path is not None else store.gather()
    rows = [row for row in stored if row.gpu == gpu and row.kind == "profile" and codes.current(row)]
    known = {row.question for row in rows}
    lacking = {_place(r) for r in sources.references("profile") if r.value(rows) is None}
    return [(s, t) for s, t in chosen if _row(s, t, []).question not in known or _key(s, t) in lacking]


def _place(reference: sources.Reference) -> tuple[object, ...]:
    return reference.what, reference.dtype, reference.shape, tuple(reference.tuning.items())


def of_the_sources(chosen: Sequence[Planned]) -> list[Planned]:
    """Those that a figure of a source needs: without the roofline's."""
    places = {_place(r) for r in sources.references("profile")}
    return [(s, t) for s, t in chosen if _key(s, t) in places]


def _key(about: Subject, tuning: Mapping[str, int] | None) -> tuple[object, ...]:
    return about.rung.full_name, about.dtype.name, about.shape, tuple((tuning or {}).items())


def collect(
    chosen: Sequence[Planned], limit: float, report: Callable[[str], None], path: Path | None = None
) -> Iterator[Row]:
    """A stored row for each as soon as it is profiled; ends when the `limit` in seconds leaves no room for more."""
    ncu.find()
    end = time.monotonic() + limit
    for start in range(0, len(chosen), TOGETHER):
        group, left = chosen[start : start + TOGETHER], end - time.monotonic()
        if left < 15:
            report(f"out of time: {len(chosen) - start} of {len(chosen)} are left; the same command goes on")
            return
        report(f"{start + len(group)} of {len(chosen)}: {group[0][0].rung.full_name} to {group[-1][0].rung.full_name}")
        try:
            counted = counters.split(counters.launched(group, timeout=min(PATIENCE, left)), len(group))
        except RungError as error:
            report(str(error))
            counted = [[] for _ in group]
        for (about, tuning), launches in zip(group, counted, strict=True):
            if launches or end - time.monotonic() > 15:
                yield store.append(_row(about, tuning, launches) if launches else _alone(about, tuning), path)


def _alone(about: Subject, tuning: Mapping[str, int] | None) -> Row:
    try:
        return _row(about, tuning, counters.split(counters.launched([(about, tuning)], timeout=PATIENCE), 1)[0])
    except RungError as error:
        return replace(_row(about, tuning, []), verdict="failed", reason=str(error))


def _row(about: Subject, tuning: Mapping[str, int] | None, launches: Sequence[ncu.Launch]) -> Row:
    return counters.as_result(about, tuning, counters.report(about, launches))
