"""Whether the emulator's outputs have the same bits as a GPU's: python3 benchmarks/same_bits.py [OP[/RUNG] ...]

Each CUDA rung runs once on both, in its first type and in f16, at the smallest case whose sizes multiply to some
thousands. Rows go to the store ($RUNG_RESULTS, or -o): how many elements differ, and by how many units in the last
place.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import gpuless
from rung.arrays import dtype_of
from rung.check.operands import Operands
from rung.dtypes import DTYPES
from rung.results import machine, store
from rung.results.row import Row
from rung.rungs import catalogue, identity
from rung.rungs.base import emulated_multiprocessors
from rung.rungs.cuda import CudaRung

SEED, ENOUGH = 3, 4000
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def apart(a: torch.Tensor, b: torch.Tensor) -> dict[str, int]:
    """Elements that differ, and the greatest distance in units of the last place; of NaN only whether both are."""
    x, y = (t.contiguous().view(_BITS[t.element_size()]).flatten().long() for t in (a, b))
    differs = x != y
    if a.dtype.is_floating_point:
        one, other = a.flatten().float(), b.flatten().float()
        numbers = ~(one.isnan() | other.isnan())
        x, y = (torch.where(t < 0, -(t & (1 << 8 * a.element_size() - 1) - 1), t) for t in (x, y))
        most = int((x - y).abs()[numbers].max()) if numbers.any() else 0
    else:
        most = int((x - y).abs().max()) if len(x) else 0
    return {"elements": x.numel(), "differ": int(differs.sum()), "units": most}


def compared(name: str, dtype: str) -> Row | None:
    """One rung in one type; None if it takes no small case."""
    torch.set_num_threads(1)
    rung, of = catalogue.find(name), DTYPES[dtype]
    operation = rung.operation
    count = torch.cuda.get_device_properties(0).multi_processor_count
    taken: list[tuple[bool, int, int, Any, Any]] = []
    for case in operation.cases:
        try:
            values = operation.complete(case.values)
            with emulated_multiprocessors(count):
                refused = rung.refusal(values, of)
            if case.where == "any" and refused is None:
                size = math.prod(v for v in values.values() if isinstance(v, int) and v > 0)
                taken.append((size < ENOUGH, size if size >= ENOUGH else -size, len(taken), case, values))
        except Exception:
            continue
    if not taken:
        return None
    *_, case, values = min(taken, key=lambda one: one[:3])
    row = Row(
        kind="study", what=rung.full_name, part="same bits", dtype=dtype, shape=case.name, values=dict(values),
        texts={rung.full_name: identity.text(rung)}, machine=machine.facts(),
    )  # fmt: skip
    bound = [o for o in operation.operands if o.name in rung.binds or o.role == "out"]
    names = list(dict.fromkeys([*(o.view_of for o in bound if o.view_of), *(o.name for o in bound)]))
    try:
        make = lambda _, shape, kind: torch.empty(shape, dtype=dtype_of(kind, torch))  # noqa: E731
        here = Operands(operation, values, of, names, SEED, device="cpu", empty=make, case=case).tensors
        there = {n: t.cuda() for n, t in here.items()}
        rung.prepare(there, values, of, device="cuda").run()
        torch.cuda.synchronize()
        with emulated_multiprocessors(count), gpuless.under(check_races=False):
            rung.prepare(here, values, of, device="emulator").run()
        outputs = [o.name for o in operation.operands if o.role == "out" and o.name in here]
        found = {name: apart(here[name], there[name].cpu()) for name in outputs}
    except Exception as problem:
        return replace(row, verdict="failed", reason=f"{type(problem).__name__}: {problem}"[:300])
    metrics = {key: float(sum(one[key] for one in found.values())) for key in ("elements", "differ")}
    metrics["units"] = float(max((one["units"] for one in found.values()), default=0))
    return replace(row, metrics=metrics)


def _compared(words: tuple[str, str]) -> Any:
    return compared(*words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rungs", nargs="*", help="only these: beginnings of names (default: all)")
    parser.add_argument("-o", "--output", type=Path, help="the file of rows (default: the store)")
    chosen = parser.parse_args()
    work = []
    for operation in catalogue.operations():
        for rung in catalogue.rungs(operation, libraries=False):
            wanted = not chosen.rungs or any(rung.full_name.startswith(word) for word in chosen.rungs)
            if isinstance(rung, CudaRung) and wanted and not rung.emulate:
                types = dict.fromkeys([rung.dtypes[0], "f16"])
                work += [(rung.full_name, name) for name in types if name in rung.dtypes]
    path, verdicts = chosen.output or store.default_path(), Counter[str]()
    with multiprocessing.get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 1)) as pool:
        for row in pool.imap_unordered(_compared, work, chunksize=2):
            if row is None:
                continue
            store.append(row, path)
            same = row.verdict == "ok" and not row.metrics["differ"]
            verdicts["failed" if row.verdict != "ok" else "equal" if same else "different"] += 1
            if not same:
                m = row.metrics
                told = f"{m['differ']:.0f} of {m['elements']:.0f} by up to {m['units']:.0f}" if m else row.reason
                print(f"{row.what} {row.dtype}: {told}", flush=True)
    print(dict(verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
