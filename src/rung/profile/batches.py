"""Nsight Compute's counters of many rungs, stored as rows: several per process, since starting a process takes longer
than profiling most kernels. A rung that fails among others is tried once more alone, and its row holds the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rung.errors import RungError
from rung.profile import counters, ncu
from rung.results import codes, machine, store
from rung.results.row import Row
from rung.rungs.base import Subject

TOGETHER = 10  # rungs in one process
PATIENCE = 80.0  # seconds for one process
Planned = tuple[Subject, Mapping[str, int] | None]


def missing(
    chosen: Sequence[Planned], rows: Sequence[Row], *, also: Callable[[Planned], bool] = lambda one: False
) -> list[Planned]:
    """Those without one of these rows, and those of which `also` says so."""
    known = {row.question for row in rows}
    return [one for one in chosen if _row(*one, []).question not in known or also(one)]


def rows_here(path: Path | None = None) -> list[Row]:
    """The profiles of the present code on this GPU."""
    gpu = machine.facts().get("gpu", "")
    stored = list(store.read(path)) if path is not None else store.gather()
    return [row for row in stored if row.gpu == gpu and row.kind == "profile" and codes.current(row)]


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
