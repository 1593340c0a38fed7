"""A failure tells the call, the worst place with its neighbours, the pattern, and what separates it from right calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rung
from rung.check import judge
from rung.check.compare import Measured
from rung.check.judge import check, report_on
from rung.check.report import ALONE, CheckRequest, Report
from rung.dtypes import dtype
from rung.explain.diagnosis import Alternative, Diagnosis
from rung.explain.likeness import alternatives
from rung.rungs import catalogue

SOURCES = Path(rung.__file__).parents[1]


def diagnosed(out: Any, truth: Any, **about: Any) -> Diagnosis:
    found = Measured("out", out, truth, dtype("f32"), 1e-4).diagnosis(**about)
    assert found is not None and Diagnosis.from_json(json.loads(json.dumps(found.as_json()))).lines() == found.lines()
    return found


@pytest.mark.parametrize("convert", [torch.from_numpy, lambda array: array], ids=["torch", "numpy"])
def test_the_first_wrong_elements_are_listed_and_the_worst_is_named(convert: Callable[[Any], Any]) -> None:
    truth = np.arange(60, dtype=np.float64).reshape(3, 4, 5) + 1
    out = truth.astype(np.float32)
    out[2, 1, 4] = -7.0
    out[1, 0, 0:5:2] += 1.0
    told = diagnosed(convert(out), convert(truth))
    assert told.worst == (2, 1, 4) and told.wrong == 4
    assert [one["index"] for one in told.elements] == [[1, 0, 0], [1, 0, 2], [1, 0, 4], [2, 1, 4]]
    assert told.elements[3] == {"index": [2, 1, 4], "expected": 50.0, "got": -7.0}
    assert [row for row in told.map.rows if "#" in row] == ["#.#.#", "....#"]
    out[0, 0, 0] = np.nan
    assert diagnosed(convert(out), convert(truth)).worst == (0, 0, 0)


def test_of_many_wrong_elements_eight_are_listed_and_the_map_stays_small() -> None:
    truth = np.random.default_rng(1).standard_normal((2, 300, 1000))
    told = diagnosed(truth.astype(np.float32) + 1, truth)
    assert len(told.elements) == 8 and len(told.map.rows) <= 16 and set("".join(told.map.rows)) == {"#"}
    assert all(len(row) <= 32 for row in told.map.rows)


def columns(*which: int) -> Any:
    wrong = np.zeros((6, 64), bool)
    wrong[:, list(which)] = True
    return wrong


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (columns(*range(48, 64)), "c >= 48"),
        (columns(*range(0, 64, 16)), "c = 0, 16, 32, ..."),
        (columns(*(c for c in range(64) if c % 16)), "c is none of 0, 16, 32, ..."),
        (columns(*(c for c in range(64) if c % 32 >= 20)), "c % 32 >= 20"),
        (columns(7), "c = 7"),
        (columns(*range(64)) & (np.arange(6) >= 4)[:, None], "t >= 4"),
        (np.triu(np.ones((64, 64), bool), 1), "c > t"),
    ],
)
def test_where_values_are_wrong_is_a_condition(wrong: Any, where: str) -> None:
    truth = np.random.default_rng(1).standard_normal(wrong.shape)
    given = np.where(wrong, truth * 3 + truth**2, truth)
    told = diagnosed(given.astype(np.float32), truth, axes=("t", "c"))
    assert where in told.where and bool(where) == bool(told.where)


def test_how_values_are_wrong_has_a_kind() -> None:
    truth = np.random.default_rng(1).standard_normal((4, 8, 8))
    kinds = {
        "times": truth * 0.125,
        "transposed": np.swapaxes(truth, 1, 2),
        "shifted": np.roll(truth, 1, 2),
        "offset": truth + 0.5,
        "zero": truth * 0,
        "nan": truth * np.nan,
        "copied": truth[::-1] * 2,
        "like": truth**2,
        "values": truth**3 + 1,
    }
    for kind, given in kinds.items():
        other = [Alternative("the square", truth**2)]
        told = diagnosed(given.astype(np.float32), truth, inputs={"x": given.astype(np.float32)} if kind == "copied" else {}, alternatives=other)
        assert told.kind == kind, told
    near = np.roll(truth, 2, 2) * (1 + 2e-4 * np.cos(np.arange(truth.size).reshape(truth.shape)))
    assert diagnosed(np.roll(truth, 2, 2), truth).kind == "shifted" != diagnosed(near, truth).kind  # equal, not near
    unset = np.zeros_like(truth, bool)
    unset[:, 3] = True
    told = diagnosed(np.where(unset, np.nan, truth), truth, unset=unset, axes=("b", "t", "c"))
    assert told.kind == "unset" and told.where == "t = 3" and told.elements[0]["got"] is None


def test_what_was_added_to_whole_rows_or_parts_of_rows_is_told() -> None:
    truth = np.random.default_rng(1).standard_normal((3, 512))
    rows, parts = np.array([[1.0], [-2.0], [0.5]]), np.repeat(np.array([0.0, 3.0, -1.0, 4.0]), 128)
    for given, sign in ((truth + rows, "each row along n"), (truth + parts, "each part of 128 elements along n")):
        told = diagnosed(given.astype(np.float32), truth, axes=("b", "n"))
        assert told.kind == "rows" and sign in told.pattern, told.pattern
    given = truth + np.random.default_rng(2).standard_normal((3, 512))
    assert diagnosed(given.astype(np.float32), truth, axes=("b", "n")).kind == "values"


def test_numbers_where_0_is_expected_are_told() -> None:
    truth = np.tril(np.random.default_rng(1).standard_normal((9, 9)))
    given = np.where(truth == 0, 0.3, truth * 1.1 + 0.02)
    told = diagnosed(given.astype(np.float32), truth, axes=("t", "s"))
    assert "s > t" in told.pattern and "0 is expected" in told.pattern


def test_a_product_with_turned_tiles_is_known() -> None:
    of, random = catalogue.operation("matmul"), np.random.default_rng(1)
    values = of.complete({"B": 1, "T": 40, "C": 37, "OC": 50})
    inputs = {"x": random.standard_normal((1, 40, 37)), "weight": random.standard_normal((50, 37))}
    out = np.zeros((1, 40, 50))
    for n0 in range(0, 50, 32):
        for c0 in range(0, 37, 32):
            tile = np.zeros((32, 32))
            part = inputs["weight"][n0 : n0 + 32, c0 : c0 + 32]
            tile[: part.shape[0], : part.shape[1]] = part
            x = np.pad(inputs["x"][..., c0 : c0 + 32], ((0, 0), (0, 0), (0, 32)))[..., :32]
            out[..., n0 : n0 + 32] += (x @ tile)[..., : part.shape[0]]  # where it should be tile.T
    truth = of.reference(inputs, values)["out"]
    told = diagnosed(out.astype(np.float32), truth, alternatives=alternatives(of, values, inputs, "out", 4))
    assert told.kind == "like" and "32 x 32 tile of weight transposed" in told.pattern


@pytest.mark.slow
def test_a_number_that_is_hard_coded_is_told(tmp_path: Path) -> None:
    rung = catalogue.find("layernorm/07")
    (tmp_path / "own.cu").write_text(rung.source.replace("+ eps)", "+ 1e-5f)"))
    report = check(catalogue.rung_from_file(rung.operation, tmp_path / "own.cu"), "f32", device="emulator")
    assert report.verdict == "failed" and report.failure["needs"] == "eps == 1e-05", report
    assert report.failure["dims"].keys() == {"B", "T", "C"} and report.failure["scalars"].keys() == {"eps"}
    assert report.as_json()["failure"]["pairs"]


def test_an_error_of_the_checker_is_no_verdict_on_the_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Report:
        raise IndexError("of the checker")

    monkeypatch.setattr(judge, "judge", broken)
    report = report_on(CheckRequest("gelu/01_naive", "f32"))
    assert report.verdict == "skipped" and report.cause == "checker" and "IndexError" in report.reason


@pytest.mark.slow
def test_one_case_that_changes_numbers_can_be_checked_alone() -> None:
    rung = catalogue.find("softmax/6")
    report = report_on(CheckRequest(rung.full_name, "f32", case="scores far apart", effort=ALONE))
    assert report.verdict == "ok", report


def test_a_name_that_cannot_be_bound_is_told_without_torch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = catalogue.find("residual/1").source.replace("Real* a,", "Real* first,").replace("a[i]", "first[i]")
    (tmp_path / "own.cu").write_text(source)
    program = (
        "import sys\nfrom rung.cli import main\n"
        f"try: main(['check', 'residual', {str(tmp_path / 'own.cu')!r}, '--device', 'emulator'])\n"
        "except SystemExit as end: assert end.code == 1, end\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ})
    assert "'first'" in capfd.readouterr().out


@pytest.mark.slow
def test_a_wrong_result_out_of_shared_memory_that_nothing_has_written_says_where_it_is_read(tmp_path: Path) -> None:
    source = tmp_path / "mine.cu"
    source.write_text(
        """/*---
idea = "Through shared memory."
expect = "Nothing."
[bind]
n = "N"
[[launch]]
kernel = "mine"
grid = "ceil_div(N, 64)"
block = "64"
---*/
__global__ void mine(const float* x, float* out, long n) {
    __shared__ float tile[64];
    long i = blockIdx.x * 64L + threadIdx.x;
    if (i < n && threadIdx.x != 2) tile[threadIdx.x] = x[i];
    __syncthreads();
    if (i < n) out[i] = tile[threadIdx.x] < 0 ? 0 : tile[threadIdx.x];
}
"""
    )
    words = [sys.executable, "-m", "rung", "check", "relu", str(source), "--json"]
    ended = subprocess.run(words, capture_output=True, text=True, env={**os.environ})
    (finding,) = json.loads(ended.stdout)["findings"]
    assert finding["kind"] == "values" and "line 16" in finding["text"] and "'tile'" in finding["text"]
