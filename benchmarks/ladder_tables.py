"""Times every ladder at GPT-2's shapes on one GPU: the figures behind the tables of the ladders' READMEs.

    PYTHONPATH=src python benchmarks/ladder_tables.py --output results/h200 [--seconds 0.08] [--limit 300] [OP ...]

One process and one measurement of the ceilings for all; one file `bench-<op>.json` for each ladder, written
after every shape, so that a run that is cut short keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from rung import catalogue
from rung.errors import RungError
from rung.lab import bench, machine, results

LARGE = ("f32", "tf32", "f16", "bf16")
# op -> [(shape, dtypes, seconds that a single call may take)]
PLAN: dict[str, list[tuple[str, tuple[str, ...], float]]] = {
    "layernorm": [("b4t64", ("f32", "bf16"), 1), ("b8t1024", ("f32", "f16", "bf16"), 1), ("b64t1024", ("f32",), 1)],
    "gelu": [("b4t64", ("f32", "bf16"), 1), ("b8t1024", ("f32", "f16", "bf16"), 1), ("b8t1024c768", ("f32",), 1)],
    "residual": [("b4t64", ("f32", "bf16"), 1), ("b8t1024", ("f32", "bf16"), 1)],
    "embedding": [("b4t64", ("f32", "bf16"), 1), ("b8t1024", ("f32", "bf16"), 1)],
    "softmax": [("b4t64", ("f32", "bf16"), 1), ("b8t1024", ("f32", "bf16"), 1), ("vocabulary", ("f32",), 1)],
    "attention": [
        ("b4t64", LARGE, 0.2),
        ("b8t1024", LARGE, 0.2),
        *((f"n{n}", ("f32",), 0.2) for n in (256, 512, 1024, 2048, 4096, 8192)),
        ("b1h16n8192", ("bf16",), 0.2),
    ],
    "local_attention": [("b4t64", ("f32", "bf16"), 1), ("b8t1024", ("f32", "bf16"), 1)],
    "matmul": [
        ("b4t64", LARGE, 1),
        ("b8t1024", LARGE, 1),
        ("4096x768x3072", ("bf16",), 1),
        ("decode", ("f32", "bf16"), 1),
        ("lm head", ("bf16",), 1),
    ],
    "matmul_gelu": [("b4t64", ("f32", "bf16"), 1), ("b8t1024", ("f32", "bf16"), 1)],
    "matmul_residual": [("b4t64", ("f32", "bf16"), 1), ("b8t1024", ("f32", "bf16"), 1)],
    "layernorm_matmul": [("b4t64", ("f32", "bf16"), 1), ("b8t1024", ("f32", "bf16"), 1)],
    "decode": [(s, ("f32", "bf16"), 1) for s in ("gpt2", "gpt2-xl")],
    "copy": [("n64m", ("f32", "bf16"), 1)],
    "transpose": [("c8192x8192", ("f32", "bf16"), 1)],
    "divergence": [("n16m", ("f32",), 1)],
    "pointwise": [("n64m", ("f32",), 1)],
    "relu": [("n64m", ("f32", "f16"), 1)],
    "recompute": [("n64m", ("f32",), 1)],
    "reduce": [("b65536n1024", ("f32",), 1), ("b16n1m", ("f32",), 1)],
}


def main() -> None:
    """Run the plan, or the named operations of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("operations", nargs="*")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.08)
    parser.add_argument("--limit", type=float, default=330.0)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    ceilings = bench.measure_ceilings()
    print(f"copy {ceilings.bytes / 1e9:.0f} GB/s;", {k: f"{v / 1e12:.0f} TFLOP/s" for k, v in ceilings.flops.items()})
    for name in arguments.operations or PLAN:
        begun, failed = time.monotonic(), 0
        rows: list[dict[str, Any]] = []
        pace: dict[str, dict[str, float]] = {}
        for shape, dtypes, patience in PLAN[name]:
            for dtype in dtypes:
                if time.monotonic() - start > arguments.limit:
                    print(f"{name} {shape} {dtype}: left out, time is up", flush=True)
                    continue
                found = _one(name, shape, dtype, patience, ceilings, arguments.seconds, pace.setdefault(dtype, {}))
                failed += sum(r["verdict"] == "failed" for r in found)
                rows += found
            _write(arguments.output / f"bench-{name}.json", rows, ceilings)
        seconds = time.monotonic() - begun
        print(f"{name:18} {len(rows):4} rows {failed:2} failed {seconds:6.1f} s", flush=True)
        for row in rows:
            if row["verdict"] == "failed":
                print("   ", row["rung"], row["dtype"], row["shape"], row["reason"][:150], flush=True)


def _one(
    name: str,
    shape: str,
    dtype: str,
    patience: float,
    ceilings: bench.Ceilings,
    seconds: float,
    pace: dict[str, float],
) -> list[dict[str, Any]]:
    chosen = [r for r in catalogue.rungs(name) if dtype in r.dtypes]
    if not chosen:
        return []
    try:
        rows = bench.bench(
            chosen,
            shape=shape,
            values=chosen[0].operation.shapes[shape],
            dtype=dtype,
            ceilings=ceilings,
            seconds=seconds,
            pace=pace,
            patience=patience,
        )
    except (RungError, RuntimeError) as error:
        print(f"{name} {shape} {dtype}: {str(error).splitlines()[0][:150]}", flush=True)
        return []
    for row in rows:
        if row.cold_us and row.tflops:
            pace[row.rung] = 1e-12 / row.tflops
    return [dict(row.__dict__) for row in rows]


def _write(path: Path, rows: list[dict[str, Any]], ceilings: bench.Ceilings) -> None:
    known = {
        **results.stamp(),
        "machine": machine.facts(),
        "state": machine.state(),
        "ceilings": {"bytes": ceilings.bytes, "flops": dict(ceilings.flops)},
        "rows": rows,
    }
    path.write_text(json.dumps(known), encoding="utf-8")


if __name__ == "__main__":
    main()
