"""Bounds from counts against stored times of a GPU, by ladder: python3 benchmarks/bounds.py layernorm softmax ...

The order of a ladder's CUDA rungs by the bound is compared with that of the stored cold times by Kendall's tau. A rung
that cannot be counted is listed with the reason. No GPU is needed.
"""

from __future__ import annotations

import sys

from rung.dtypes import DTYPES
from rung.errors import RungError
from rung.profile import emulated
from rung.profile.bound import bound, kendall
from rung.results import current, store
from rung.rungs import catalogue
from rung.rungs.base import Subject


def main(ladders: list[str]) -> int:
    figures = next(f for gpu, f in current.by_gpu(store.published()).items() if gpu)
    for name in ladders:
        found = [f for f in figures.ladder(name).found.values() if f.rung.kind == "cuda"]
        shapes = {(f.row.shape, f.row.dtype) for f in found}
        shape, dtype = max(shapes, key=lambda key: sum((f.row.shape, f.row.dtype) == key for f in found))
        bounds, times = [], []
        for figure in found:
            row = figure.row
            if (row.shape, row.dtype) != (shape, dtype):
                continue
            rung = catalogue.find(row.what)
            given = {k: v for k, v in row.values.items() if k not in rung.operation.derived}
            subject = Subject(rung, shape, rung.operation.complete(given), DTYPES[dtype])
            try:
                counted = emulated.count(subject, row.tuning or None)
            except RungError as error:
                print(f"{row.what}: {error}", flush=True)
                continue
            least = bound(subject, counted)
            bounds.append(least.seconds)
            times.append(figure.us)
            share = least.seconds * 1e6 / figure.us
            said = f"bound {least.seconds * 1e6:9.2f} us ({share:4.0%}) {least.unit}"
            print(f"{row.what:<32} {figure.us:9.2f} us  {said}", flush=True)
        print(f"{name} {dtype} {shape}: tau {kendall(bounds, times):.2f} of {len(times)} rungs", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
