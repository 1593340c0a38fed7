"""A failure tells the call, the worst place with its neighbours, the pattern, and what separates it from right calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rung
from rung.check import judge
from rung.check.compare import Measured, pattern
from rung.check.judge import check, report_on
from rung.check.report import ALONE, CheckRequest, Report
from rung.dtypes import dtype
from rung.rungs import catalogue

SOURCES = Path(rung.__file__).parents[1]


def test_the_worst_place_comes_with_its_neighbours() -> None:
    truth = torch.arange(60, dtype=torch.float64).reshape(3, 4, 5) + 1
    out = truth.float()
    out[2, 1, 4] = -7.0
    told = Measured("out", out, truth, dtype("f32"), 1e-4).details()
    assert told["worst"] == [2, 1, 4] and told["wrong"] == 1
    assert len(told["pairs"]) == 5
    assert {"index": [2, 1, 4], "expected": 50.0, "got": -7.0} in told["pairs"]
    out[0, 0, 0] = torch.nan
    assert Measured("out", out, truth, dtype("f32"), 1e-4).details()["worst"] == [0, 0, 0]


def columns(*which: int) -> torch.Tensor:
    wrong = torch.zeros(6, 64, dtype=torch.bool)
    wrong[:, list(which)] = True
    return wrong


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (columns(*range(48, 64)), ["column", "48"]),
        (columns(*range(0, 64, 32)), ["32th column"]),
        (columns(7), ["column 7"]),
        (columns(*range(64)) & (torch.arange(6) >= 4)[:, None], ["axis 0", "from 4"]),
    ],
)
def test_where_values_are_wrong_has_a_name(wrong: torch.Tensor, words: list[str]) -> None:
    truth = torch.randn(6, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    told = pattern(torch.where(wrong, 9.0, truth), truth, wrong)
    assert all(word in told for word in words), told


def test_how_values_are_wrong_has_a_name() -> None:
    truth = torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    everywhere = torch.ones_like(truth, dtype=torch.bool)
    assert "0.125 times" in pattern(truth * 0.125, truth, everywhere)
    assert "transposed" in pattern(truth.transpose(1, 2), truth, everywhere)
    assert "shifted" in pattern(truth.roll(1, 2), truth, everywhere)
    assert pattern(torch.zeros_like(truth), truth, everywhere) == ""


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
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": str(SOURCES)})
    assert "'first'" in capfd.readouterr().out


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
    ended = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCES)})
    (finding,) = json.loads(ended.stdout)["findings"]
    assert finding["kind"] == "values" and "line 16" in finding["text"] and "'tile'" in finding["text"]
