"""Broken and cheating kernels: each must be caught, and for the right reason."""

from pathlib import Path

import pytest
import torch

from rung.check.report import Report
from rung.check.trial import check
from rung.rungs import catalogue

BROKEN = Path(__file__).parent / "broken"


def verdict_on(name: str, device: str = "emulator") -> Report:
    rung = catalogue.rung_from_file(catalogue.operation("residual"), BROKEN / name)
    return check(rung, "f32", device=device)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("partial_work.cu", "never written"),
        ("nan.cu", "NaN"),
        ("mutated_input.cu", "changed its input a"),
        ("out_of_bounds_write.cu", "out"),
        ("out_of_bounds_read.cu", "a"),
        ("stray_copy.cu", "past the end"),
        ("writes_before.cu", "before the start of out"),
        ("race.cu", "race"),
        ("divergent_barrier.cu", "__syncthreads"),
        ("too_coarse.cu", "values are off"),
        ("stale_output.py", "never written"),
        ("cached_replay.py", "values are off"),
    ],
)
def test_is_caught_on_the_emulator(name: str, reason: str) -> None:
    report = verdict_on(name)
    assert report.verdict == "failed"
    assert reason in report.reason


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("partial_work.cu", "never written"),
        ("nan.cu", "NaN"),
        ("mutated_input.cu", "changed its input a"),
        ("out_of_bounds_write.cu", "past the end of out"),
        ("stray_copy.cu", "past the end of out"),
        ("writes_before.cu", "before the start of out"),
        ("too_coarse.cu", "values are off"),
        ("stale_output.py", "never written"),
        ("cached_replay.py", "values are off"),
        ("side_stream.py", "never written"),
        ("side_stream_waits.py", "current stream"),
    ],
)
def test_is_caught_on_a_gpu(name: str, reason: str) -> None:
    report = verdict_on(name, "cuda")
    assert report.verdict == "failed"
    assert reason in report.reason
    torch.cuda.synchronize()


def test_the_same_checks_pass_an_honest_kernel() -> None:
    report = check(catalogue.find("residual/01_naive"), "f32", device="emulator")
    assert report.verdict == "ok", report.reason
    assert report.cases >= 6
    assert report.runs >= 2 * report.cases
    assert 0 < report.element < 1


def test_races_are_also_found_access_by_access() -> None:
    rung = catalogue.rung_from_file(catalogue.operation("residual"), BROKEN / "race.cu")
    report = check(rung, "f32", device="emulator", races=True)
    assert report.verdict == "failed"
    assert "sums" in report.reason and "race" in report.reason.lower()
