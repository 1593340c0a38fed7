"""Bounds from counts beside stored times of a GPU, by ladder: python3 benchmarks/bounds.py -o FILE layernorm ...

Each CUDA rung is counted at its ladder's headline shape; a rung that cannot be counted has a row with the reason. A row
of the present code is not counted again. docs/counters.md compares the orders. No GPU is needed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from counters import counted

from rung.results import codes, current, store
from rung.rungs import catalogue
from rung.show import counter_tables


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladders", nargs="*", help="only these (default: all)")
    parser.add_argument("-o", "--output", type=Path, help="the file of rows (default: the store)")
    parser.add_argument("--limit", type=float, default=1e9, help="start nothing new after this many seconds")
    chosen = parser.parse_args()
    began = time.monotonic()
    path = chosen.output or store.default_path()
    figures = next(f for gpu, f in current.by_gpu(store.published()).items() if gpu)
    rows = [r for r in (store.load(path) if path.exists() else []) if r.kind == "count" and codes.current(r)]
    for name in chosen.ladders or catalogue.operations():
        for figure in counter_tables.headline(figures, name):
            known = counter_tables.launches(figure.row)
            if any(counter_tables.launches(r) == known for r in rows):
                continue
            if time.monotonic() - began < chosen.limit:
                rows.append(store.append(counted(figure.row), path))
                said = rows[-1].reason or f"{rows[-1].metrics['count_s']:.1f} s"
                print(f"{figure.row.what} {figure.row.shape}: {said}", flush=True)
    print(counter_tables.bounds(figures, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
