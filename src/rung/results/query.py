"""Looking into results: choosing some, holding two machines or commits against each other, exporting."""

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
from rung.results.store import Result

_COMMIT = re.compile(r"[0-9a-f]{4,40}")


def chosen(
    rows: Iterable[Result],
    *,
    op: str | None = None,
    rung: str | None = None,
    dtype: str | None = None,
    shape: str | None = None,
    gpu: str | None = None,
    kind: str | None = None,
) -> list[Result]:
    """The rows that fit all that is given; a GPU by a part of its name, a rung with or without its ladder."""
    return [
        row
        for row in rows
        if (op is None or row.get("operation") == op)
        and (rung is None or rung in (row.get("rung"), str(row.get("rung", "")).partition("/")[2]))
        and (dtype is None or row.get("dtype") == dtype)
        and (shape is None or row.get("shape") == shape)
        and (gpu is None or gpu.lower() in gpu_of(row).lower())
        and (kind is None or row.get("kind") == kind)
    ]


def gpu_of(row: Result) -> str:
    return str((row.get("machine") or {}).get("gpu", ""))


def newest(rows: Iterable[Result]) -> list[Result]:
    """The last measurement of each thing that was measured, in the order of the first."""
    latest: dict[str, Result] = {}
    for row in sorted(rows, key=lambda r: str(r.get("time", ""))):
        latest[repr((row.get("kind"), _question(row), gpu_of(row), row.get("study")))] = row
    return list(latest.values())


def _question(row: Result) -> tuple[Any, ...]:
    values, tuning = row.get("values") or {}, row.get("tuning") or {}
    return row.get("rung"), row.get("dtype"), tuple(sorted(values.items())), tuple(sorted(tuning.items()))


def side(name: str, rows: Sequence[Result]) -> list[Result]:
    """What `name` means: a file or folder of results, a commit, or a GPU by a part of its name."""
    if Path(name).exists():
        return store.load(Path(name))
    if _COMMIT.fullmatch(name):
        found = [r for r in rows if str(r.get("commit", "")).startswith(name)]
        if found:
            return found
    found = chosen(rows, gpu=name)
    if not found:
        commits = ", ".join(sorted({str(r["commit"]) for r in rows if r.get("commit")})) or "none"
        gpus = ", ".join(sorted({g for r in rows if (g := gpu_of(r))})) or "none"
        raise RungError(f"{name!r} is no results file, commit ({commits}) or GPU ({gpus}) of these results.")
    return found


@dataclass(frozen=True)
class Pair:
    """The same rung, number format and shape, measured twice; `ratio` is how many times as fast B was."""

    a: Result
    b: Result
    ratio: float
    verdict: str


def compare(a: Iterable[Result], b: Iterable[Result]) -> list[Pair]:
    """B against A, wherever both were timed; with other tunables or another source it is still the same rung."""
    left, right = _timed(a), _timed(b)
    pairs = []
    for key, first in left.items():
        second = right.get(key)
        if second is not None:
            ratio = first["cold_us"] / second["cold_us"]
            pairs.append(Pair(first, second, ratio, _verdict(first, second, ratio)))
    return pairs


def _timed(rows: Iterable[Result]) -> dict[tuple[Any, ...], Result]:
    found: dict[tuple[Any, ...], Result] = {}
    for row in sorted(rows, key=lambda r: str(r.get("time", ""))):
        if row.get("kind") == "bench" and row.get("verdict", "ok") == "ok" and row.get("cold_us"):
            found[_question(row)[:3]] = row
    return found


def _verdict(a: Result, b: Result, ratio: float) -> str:
    ours, theirs = b.get("cold_samples_us") or [], a.get("cold_samples_us") or []
    if len(ours) > 2 and len(theirs) > 2:
        from rung.results import statistics  # brings numpy

        return statistics.verdict(ours, theirs)
    return "tie" if abs(ratio - 1) < 0.005 else ("faster" if ratio > 1 else "slower")


FIELDS = (
    "time", "commit", "kind", "operation", "rung", "rung_kind", "dtype", "shape", "verdict", "reason", "cold_us",
    "cold_p20_us", "cold_p80_us", "n", "warm_us", "gbps", "tflops", "of_bandwidth", "of_rate", "of_datasheet",
    "against_before", "against_library", "library_ratio", "element", "norm", "digest", "headers",
)  # fmt: skip
MACHINE = ("gpu", "driver", "cuda", "torch", "triton")


def as_csv(rows: Sequence[Result]) -> str:
    """A line a row; dims and tunables have columns of their own."""
    dims = sorted({d for r in rows for d in r.get("values") or {}})
    tunables = sorted({t for r in rows for t in r.get("tuning") or {}})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*FIELDS, *MACHINE, *(f"dim:{d}" for d in dims), *(f"tune:{t}" for t in tunables)])
    for row in rows:
        cells = [row.get(f, "") for f in FIELDS]
        cells += [(row.get("machine") or {}).get(m, "") for m in MACHINE]
        cells += [(row.get("values") or {}).get(d, "") for d in dims]
        cells += [(row.get("tuning") or {}).get(t, "") for t in tunables]
        writer.writerow(["" if c is None else c for c in cells])
    return out.getvalue()
