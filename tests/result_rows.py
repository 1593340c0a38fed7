"""Rows of results as a bench writes them, for tests of what is made of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rung.dtypes import DTYPES
from rung.rungs import catalogue

MACHINE = {
    "gpu": "NVIDIA H200",
    "driver": "580.1",
    "cuda": "13.0",
    "torch": "2.11.0",
    "sms": 132,
    "l2_bytes": 62914560,
    "memory_bytes": 150109880320,
}
CEILINGS = {"bytes": 4.0e12, "flops": {"f32": 50e12, "tf32": 400e12, "f16": 750e12, "bf16": 750e12}}


def row(
    rung: str,
    us: float,
    *,
    dtype: str = "f32",
    shape: str = "b8t1024",
    library_us: float | None = None,
    **other: Any,
) -> dict[str, Any]:
    """One timed rung of a real ladder; nothing about its time is real."""
    found = catalogue.find(rung)
    operation = found.operation
    values = operation.complete(operation.shapes[shape])
    cost = operation.cost(values, DTYPES[dtype].size)
    return {
        "operation": operation.name,
        "rung": found.full_name,
        "kind": found.kind,
        "dtype": dtype,
        "shape": shape,
        "values": values,
        "digest": found.digest,
        "tuning": found.tuned(None),
        "verdict": "ok",
        "cold_us": us,
        "cold_p20_us": us * 0.99,
        "cold_p80_us": us * 1.01,
        "n": 10,
        "warm_us": us * 0.9,
        "gbps": cost.bytes / us / 1e3,
        "tflops": cost.flops / us / 1e6,
        "library_ratio": None if library_us is None else library_us / us,
        "cold_samples_us": [us * (1 + 0.001 * (i % 3)) for i in range(10)],
        "notes": [],
        **other,
    }


def document(
    path: Path, rows: list[dict[str, Any]], *, time: str = "2026-01-01T00:00:00Z", **other: Any
) -> Path:
    """A file as `rung bench -o` writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"time": time, "commit": "abc", "machine": MACHINE, "ceilings": CEILINGS, "rows": rows, **other}
    path.write_text(json.dumps(whole))
    return path
