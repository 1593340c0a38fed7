"""A GPU's compiler fuses a product and a sum, which rounds once: what that does to a result is found without a GPU."""

from pathlib import Path

import pytest

from rung.check.judge import check
from rung.rungs import catalogue

BROKEN = Path(__file__).parents[1] / "broken"


@pytest.mark.slow
def test_two_passes_that_round_a_score_differently_are_refused() -> None:
    report = check(
        catalogue.rung_from_file(catalogue.operation("softmax"), BROKEN / "fused_score.cu"), "f32", device="emulator"
    )
    assert report.verdict == "failed" and report.case == "scores far apart"
    assert "over the cap" in report.reason


@pytest.mark.slow
def test_passes_that_round_a_score_alike_are_right() -> None:
    assert check(catalogue.find("softmax/06"), "f32", device="emulator").verdict == "ok"
