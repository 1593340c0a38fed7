"""Counts on the emulator what Nsight Compute has measured, and compares: python3 benchmarks/counters.py [OP[/RUNG] ...]

Every stored profile of a rung in CUDA C++ or Triton is counted at its shape and tuning; rows go to the store
($RUNG_RESULTS, or -o). A row that exists for the present code is not counted again. No GPU is needed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import counter_tables
from rung.dtypes import DTYPES
from rung.profile import emulated
from rung.results import codes, machine, store
from rung.results.row import Row
from rung.rungs import catalogue
from rung.rungs.base import Subject


def counted(row: Row) -> Row:
    """The counts of a profiled launch, or a row with the reason why there are none."""
    rung = catalogue.find(row.what)
    values = {k: v for k, v in row.values.items() if k not in rung.operation.derived}
    subject = Subject(rung, row.shape, rung.operation.complete(values), DTYPES[row.dtype])
    made = emulated.as_result(subject, row.tuning)
    return replace(made, values=dict(row.values), tuning=row.tuning, options=_options(row))


def _options(row: Row) -> dict[str, str]:
    """Those of a count; whether a tuning was given belongs to the question."""
    return {"device": "emulator"} | ({"tuning": "given"} if row.options.get("tuning") else {})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rungs", nargs="*", help="only these: beginnings of names (default: all)")
    parser.add_argument("-o", "--output", type=Path, help="the file of rows (default: the store)")
    parser.add_argument("--limit", type=float, default=1e9, help="start nothing new after this many seconds")
    chosen = parser.parse_args()
    began = time.monotonic()
    profiled = [
        r for r in store.published() if r.kind == "profile" and r.verdict == "ok" and r.gpu and codes.current(r)
    ]
    path = chosen.output or store.default_path()
    known = {r.question for r in (store.load(path) if path.exists() else []) if r.kind == "count" and codes.current(r)}
    for row in profiled:
        if chosen.rungs and not row.what.startswith(tuple(chosen.rungs)):
            continue
        if catalogue.find(row.what).kind not in ("cuda", "triton") or time.monotonic() - began > chosen.limit:
            continue
        asked = replace(row, kind="count", options=_options(row), machine=machine.facts())
        if asked.question in known:
            continue
        known.add(asked.question)
        made = store.append(counted(row), path)
        took = f"{made.metrics.get('count_s', 0):.1f} s"
        print(f"{made.what} {made.dtype} {made.shape}: {made.reason or took}", flush=True)
    every = list(counter_tables.pairs([*profiled, *store.load(path)]))
    print(counter_tables.agreement(every), counter_tables.others(every), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
