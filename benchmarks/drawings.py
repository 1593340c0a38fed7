"""Draws every CUDA rung at a small case, counted on the emulator: python3 benchmarks/drawings.py [OP[/RUNG] ...]

Rows of kind `draw` go to results/cpu/draw.jsonl (or -o); the ladders' pages and the report show them. A rung whose row
is of the present code is left out. First rungs of ladders come first. No GPU is needed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from rung.dtypes import DTYPES
from rung.errors import RungError, first_line
from rung.profile import emulated
from rung.results import codes, machine, store
from rung.results.row import Row
from rung.rungs import catalogue, identity
from rung.rungs.base import Rung, Subject
from rung.show import drawings, layouts

FILE = Path(__file__).parents[1] / "results" / "cpu" / "draw.jsonl"


def chosen(names: Sequence[str]) -> Iterator[Rung]:
    """The CUDA rungs, each ladder's first, then each ladder's second ..."""
    ladders = [[r for r in catalogue.rungs(op, libraries=False) if r.kind == "cuda"] for op in catalogue.operations()]
    for place in range(max(map(len, ladders))):
        for rungs in ladders:
            if place < len(rungs) and rungs[place].full_name.startswith(tuple(names)):
                yield rungs[place]


def drawn(name: str) -> Row:
    """The row of a rung; without pictures if it cannot be counted."""
    rung = catalogue.find(name)
    first = rung.operation.complete(next(iter(rung.operation.shapes.values())))
    subject = emulated.to_draw(Subject(rung, "", first, DTYPES[rung.dtypes[0]]))
    began = time.process_time()
    detail, verdict, reason = {}, "ok", ""
    try:
        counted = emulated.run(subject, trace=True)
        sizes = {n: v for n, v in subject.values.items() if isinstance(v, int)}
        detail = {
            "work": layouts.work(counted), "tile": layouts.tile(counted),
            "line": drawings.costliest(counted, drawings.sources_of(rung), sizes),
            "kernels": [{k: v for k, v in kernel.items() if k in ("kernel", "grid", "block", "figures")}
                        for kernel in counted.as_json()["kernels"]],
        }  # fmt: skip
    except RungError as error:
        verdict, reason = "failed", first_line(str(error))
    return Row(
        kind="draw", what=name, dtype=subject.dtype.name, shape=subject.shape, options={"device": "emulator"},
        values={k: v for k, v in subject.values.items() if k in rung.operation.dims}, detail=detail, verdict=verdict,
        reason=reason, texts={name: identity.text(rung)}, machine=machine.facts(),
        metrics={"count_s": round(time.process_time() - began, 2)},
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rungs", nargs="*", help="only these: beginnings of names (default: all)")
    parser.add_argument("-o", "--output", type=Path, default=FILE)
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("--anew", action="store_true", help="also what was drawn of the present code")
    parser.add_argument("--limit", type=float, default=1e9, help="start nothing new after this many seconds")
    given = parser.parse_args()
    began = time.monotonic()
    rows = store.load(given.output) if given.output.exists() else []
    known = set() if given.anew else {r.what for r in rows if codes.current(r)}
    missing = [r.full_name for r in chosen(given.rungs or [""]) if r.full_name not in known]
    pool = ProcessPoolExecutor(given.jobs)
    for start in range(0, len(missing), given.jobs):
        if time.monotonic() - began > given.limit:
            print(f"{len(missing) - start} rungs are left")
            break
        some = {pool.submit(drawn, name): name for name in missing[start : start + given.jobs]}
        for future in as_completed(some):
            try:
                row = store.append(future.result(), given.output)
                print(f"{row.what} {row.shape}: {row.reason or row.metrics['count_s']}", flush=True)
            except BrokenProcessPool:
                print(f"{some[future]}: its process ended", flush=True)
                pool = ProcessPoolExecutor(given.jobs)
    pool.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
