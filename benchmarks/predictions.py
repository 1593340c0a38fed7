"""Predicted times beside measured ones: python3 benchmarks/predictions.py -o FILE [--half held] [LADDER ...]

Every CUDA rung is predicted at the shape and the number format that most of its ladder were timed at. The ladders are
split by their place in the alphabet: constants that no probe gives are fitted on those with even places, and errors are
reported for the others. No GPU is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import sys
import time
from dataclasses import replace
from pathlib import Path

import counter_tables
import prediction_tables
from gpuless import timing
from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.profile import prediction
from rung.results import current, machine, store
from rung.results.row import Row
from rung.rungs import catalogue, identity
from rung.rungs.base import Subject


def predicted(row: Row, gpu: str) -> Row:
    rung = catalogue.find(row.what)
    values = {k: v for k, v in row.values.items() if k not in rung.operation.derived}
    subject = Subject(rung, row.shape, rung.operation.complete(values), DTYPES[row.dtype])
    made = _asked(row, gpu)
    began = time.process_time()
    try:
        found = prediction.predict(subject, row.tuning or None, gpu)
    except RungError as error:
        return replace(made, verdict="failed", reason=str(error))
    took = time.process_time() - began
    kernels = [
        {
            "kernel": p.program.kernel, "clocks": p.clocks, "blocks": p.config.blocks, "resident": p.resident,
            "stalls": {n: sum(s[i] for s in p.stalls) for i, n in enumerate(timing.STALLS)},
        }
        for p in found.launches
    ]  # fmt: skip
    metrics = {"predicted_us": found.us, "cpu_s": took}
    return replace(made, metrics=metrics, detail={"class": found.kind, "kernels": kernels})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladders", nargs="*")
    parser.add_argument("-o", "--output", type=Path, help="the file of rows (default: the store)")
    parser.add_argument("--half", choices=("fitted", "held"))
    parser.add_argument("--gpu", default="NVIDIA H200")
    parser.add_argument("--write-errors", action="store_true", help="what `rung count --time` says of its error")
    parser.add_argument("--seconds", type=float, default=60, help="of CPU time for a rung")
    parser.add_argument("--every", type=int, default=1, help="of the rungs of each ladder only every so many")
    chosen = parser.parse_args()
    rows = store.published()
    figures = current.by_gpu(rows)[chosen.gpu]
    path = chosen.output or store.default_path()
    for name in chosen.ladders or sorted(catalogue.operations()):
        if chosen.half and prediction_tables.half(name) != chosen.half:
            continue
        for figure in counter_tables.headline(figures, name)[:: chosen.every]:
            made = limited(figure.row, chosen.gpu, chosen.seconds)
            store.append(made, path)
            m = made.metrics
            said = made.reason
            if m:
                ours = m["predicted_us"]
                said = f"{ours:9.2f} us, measured {figure.us:9.2f}: {ours / figure.us:5.2f}; {m['cpu_s']:.1f} s"
                said += f" {made.detail['class']} {[(k['clocks'], k['blocks']) for k in made.detail['kernels']]}"
            print(f"{made.what:36} {made.dtype:5} {made.shape:12} {said}", flush=True)
    if not chosen.output or chosen.write_errors:
        known = prediction_tables.errors(store.load(path), rows)
        prediction.ERRORS.write_text(json.dumps({k: e._asdict() for k, e in known.items()}, indent=1) + "\n")
    return 0


def limited(row: Row, gpu: str, seconds: float) -> Row:
    """In a process of its own, which ends after so many seconds."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: there.send(predicted(row, gpu)), daemon=True)
    child.start()
    there.close()
    with contextlib.suppress(EOFError):
        if here.poll(seconds):
            made: Row = here.recv()
            child.join()
            return made
    child.kill()
    return replace(_asked(row, gpu), verdict="failed", reason=f"not predicted within {seconds:.0f} s")


def _asked(row: Row, gpu: str) -> Row:
    rung = catalogue.find(row.what)
    return Row(
        kind="prediction", what=row.what, dtype=row.dtype, shape=row.shape, values=dict(row.values), tuning=row.tuning,
        options={"device": "emulator", "predicted": gpu}, texts={row.what: identity.text(rung)},
        machine=machine.facts(),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
