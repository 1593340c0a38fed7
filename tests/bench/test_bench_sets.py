"""What a set of operands is compared with when calls change what they are given."""

import numpy as np
import pytest

from rung.arrays import is_real, to_kind
from rung.bench.race import Pace, Timed
from rung.check.operands import Operands
from rung.dtypes import dtype
from rung.results.row import Row as Result
from rung.rungs import catalogue


def on_cpu(name: str, values: dict[str, int]) -> Operands:
    operation = catalogue.operation(name)
    names = [o.name for o in operation.operands if not o.optional]
    one = Operands(operation, operation.complete(values), dtype("f32"), names, 3, device="cpu")
    one.keep()
    return one


def test_a_replay_with_three_calls_is_held_to_what_three_calls_leave() -> None:
    one = on_cpu("sample", {"B": 4, "V": 40})
    once, thrice = one.reference(), one.reference(3)
    start = one.tensors["marks"].astype(np.int64)
    assert int(((once["marks"] - start) // 2).sum()) == 4, "a token for each row"
    step, marks = one.tensors, start
    for _ in range(3):
        found = one.operation.reference(
            {**{n: to_kind(t, "float64" if is_real(t) else "int64") for n, t in step.items()}, "marks": marks},
            one.values,
        )
        marks = found["marks"]
    assert np.array_equal(thrice["marks"], marks)
    assert not np.array_equal(thrice["marks"], once["marks"])


def test_a_rung_finds_the_operands_that_the_one_before_it_found() -> None:
    one = on_cpu("sample", {"B": 4, "V": 40})
    before = one.tensors["marks"].copy()
    one.tensors["marks"] += 2
    one.restore()
    assert np.array_equal(one.tensors["marks"], before)


def timed(flops: float, seconds: float) -> Timed:
    row = Timed("matmul", "matmul/05_register_tiles", "cuda", "f32", "some", {})
    row.cold_us, row.tflops = seconds * 1e6, flops / seconds / 1e12
    return row


def test_a_forecast_follows_the_largest_race_and_not_the_last() -> None:
    pace = Pace()
    assert pace.forecast("matmul/05_register_tiles", 1e12) == 0
    pace.learn([timed(4e10, 2e-3)])
    pace.learn([timed(1e7, 1e-4)])  # one row: a hundred times as long for each FLOP
    assert abs(pace.forecast("matmul/05_register_tiles", 8e10) - 4e-3) < 1e-6
    pace.learn([timed(4e11, 4e-2)])
    assert abs(pace.forecast("matmul/05_register_tiles", 8e10) - 8e-3) < 1e-6


def test_a_forecast_begins_with_what_is_stored_and_forecasts_count() -> None:
    """A race that is run alone has no smaller one before it: one call of a naive rung took seven minutes there."""
    values = {"B": 8, "T": 1024, "C": 1024, "NH": 16}
    rows = [
        Result(kind="bench", what="attention/03_launch", dtype="bf16", values=values, metrics={"cold_us": 2e4}),
        Result(kind="bench", what="attention/02_five_kernels", dtype="bf16", values=values, metrics={"forecast_s": 9.0}),
        Result(kind="bench", what="attention/02_five_kernels", dtype="bf16", values={"B": 1}, metrics={"cold_us": 1.0}),
        Result(kind="bench", what="gone/01_naive", dtype="bf16", values=values, metrics={"cold_us": 1.0}),
    ]
    operation = catalogue.operation("attention")
    larger = operation.complete({**values, "B": 16})
    pace = Pace(rows)
    flops = operation.cost(larger, 2).flops
    assert pace.forecast("attention/03_launch", flops) == pytest.approx(0.04)
    assert pace.forecast("attention/02_five_kernels", flops) == pytest.approx(18.0)
