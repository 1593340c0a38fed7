"""Rows of results as a bench writes them, for tests of what is made of results."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rung.dtypes import DTYPES
from rung.results import store
from rung.results.row import Row
from rung.rungs import catalogue, identity

MACHINE = {
    "gpu": "NVIDIA H200",
    "driver": "580.1",
    "cuda": "13.0",
    "torch": "2.11.0",
    "sms": 132,
    "l2_bytes": 62914560,
    "memory_bytes": 150109880320,
}
TIME = "2026-01-01T00:00:00Z"
FIELDS = {f.name for f in fields(Row)}


def row(
    rung: str,
    us: float | None,
    *,
    dtype: str = "f32",
    shape: str = "b8t1024",
    library_us: float | None = None,
    **other: Any,
) -> Row:
    """One timed rung of a real ladder; nothing about its time is real. `other` are fields or metrics."""
    found = catalogue.find(rung)
    operation = found.operation
    values = operation.complete(operation.shapes[shape])
    cost = operation.cost(values, DTYPES[dtype].size)
    made = Row(
        kind="bench",
        what=found.full_name,
        dtype=dtype,
        shape=shape,
        values=values,
        texts={found.full_name: identity.text(found)},
        tuning=found.tuned(None),
        detail={"language": found.kind},
        machine=MACHINE,
        time=TIME,
        commit="abc",
    )
    if us is not None:
        made = made.with_metrics(
            cold_us=us, cold_p20_us=us * 0.99, cold_p80_us=us * 1.01, n=10, warm_us=us * 0.9,
            gbps=cost.bytes / us / 1e3, tflops=cost.flops / us / 1e6,
            vs_library=None if library_us is None else library_us / us,
        )  # fmt: skip
        made = replace(made, samples={"cold_us": [us * (1 + 0.001 * (i % 3)) for i in range(10)]})
    own = {name: value for name, value in other.items() if name in FIELDS}
    return replace(made, **own).with_metrics(**{n: v for n, v in other.items() if n not in FIELDS})


CEILINGS = Row(
    kind="ceilings",
    what="machine",
    metrics={"copy_bytes_per_s": 4.0e12, "f32_flops": 50e12, "tf32_flops": 400e12, "f16_flops": 750e12, "bf16_flops": 750e12},
    machine=MACHINE,
    time=TIME,
    commit="abc",
)  # fmt: skip


def document(path: Path, rows: list[Row], *, time: str = TIME) -> Path:
    """A file of these rows, and of the machine's ceilings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store.write(path, [CEILINGS, *(replace(r, time=time) if r.time == TIME else r for r in rows)])
    return path


def of_other_code(made: Row) -> Row:
    """The same figure, measured of code that the ladder no longer has."""
    return replace(made, texts=dict.fromkeys(made.texts, "0" * 16))
