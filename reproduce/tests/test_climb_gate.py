"""The climb's gate: numbers are held against the reference's at the same places of the text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rung.models.folders import INNER
from rung.models.load import load
from rung.models.weights import Linear, read_weights
from rung.results.row import Row as Result
from rung.show import model_chart
from rung_reproduce.climbs import model
from rung_reproduce.climbs.model import DIVERGENCE, Climb, Climbed, Climber, Step
from rung_reproduce.show.charts import write_svg
from rung_reproduce.show.model_chart import chart
from verbs import rung


@pytest.fixture(scope="module")
def climber() -> Climber:
    model = load("inner", dtype="float32", device="cpu")
    weights = read_weights(INNER, model.config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    prompt = list(model.tokenizer.encode("Once upon a time there was a"))
    return Climber("inner", model.config, weights, prompt, 3, device="emulator")


@pytest.mark.parametrize("rung", ["01_recompute", "03_appended"])
def test_a_slow_rung_is_compared_where_it_was_asked(climber: Climber, rung: str) -> None:
    from rung_reproduce.climbs import model as generation

    variant = generation._Decoded(climber, Step(rung, "", "float32", rung=rung))
    first, logits = variant.logits(climber.text)
    ours, truth = logits.double().log_softmax(-1), climber.truth[first : first + len(logits)]
    assert len(ours) == len(truth) > 1
    assert float((truth.exp() * (truth - ours)).sum(-1).mean()) < DIVERGENCE["float32"]


def test_the_gate_lets_a_right_rung_by(climber: Climber) -> None:
    row = Climbed("01_recompute", "", "float32")
    from rung_reproduce.climbs import model as generation

    climber._gate(generation._Decoded(climber, Step("01", "", "float32", rung="01_recompute")), row)
    assert (row.verdict, row.reason) == ("ok", "") and row.identical == 3


def test_an_emulated_climb_tells_no_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "climb --device emulator --model inner --plan none --rung 3 --dtype float32 -n 1 --prompt Once"
    picture, found = tmp_path / "climb.svg", tmp_path / "climb.jsonl"
    assert rung(*words.split(), "--svg", str(picture), "-o", str(found)) == 0 and not picture.exists()
    (row,) = (json.loads(line) for line in found.read_text().splitlines())
    assert row["verdict"] == "ok" and row["metrics"]["same_tokens"] == 1
    assert not {"tokens_per_s", "first_ms", "of_bandwidth"} & {n for n, v in row["metrics"].items() if v is not None}
    captured = capsys.readouterr()
    assert not re.search(r"[0-9] tokens/s|[0-9] ?%", captured.out + captured.err)


def test_the_climb_is_drawn_in_colours_of_its_own(tmp_path: Path) -> None:
    """A file without a page around it has nobody who says what --ink is."""
    climbed = Climb("gpt2", 8, 16, "torch float32", 4e12)
    climbed.rows.append(Climbed("03_appended", "", "float32", tokens_per_second=500.0, of_bandwidth=0.25))
    picture = tmp_path / "climb.svg"
    write_svg(chart(model_chart.steps([climbed.result(0, "random")])), picture)
    assert "03 appended" in picture.read_text() and "var(--" not in picture.read_text()


def test_a_step_that_was_timed_alone_stands_in_its_place_of_the_climb() -> None:
    def timed(part: str, step: int) -> Result:
        row = Result(kind="climb", what="gpt2", part=part, dtype="bfloat16", detail={"step": step, "idea": ""})
        return row.with_metrics(tokens_per_s=1.0)

    rows = [
        timed("decode 14_pacing", 0),
        timed("plan naive", 1),
        timed("decode 04_one_row, one graph", 6),
        timed("decode 04_one_row", 5),
        timed("plan torch", 0),
    ]
    order = ["plan torch", "plan naive", "decode 04_one_row", "decode 04_one_row, one graph", "decode 14_pacing"]
    assert [row.part for row in model_chart.steps(rows)] == order


def test_a_rung_is_launched_alone_and_in_the_other_way_that_it_allows() -> None:
    steps = {step.name: step for step in model.steps(["bfloat16"], plans=[])}
    ways = [(step.rung, step.graph, step.steps) for name, step in steps.items() if name.startswith("decode 04_one_row")]
    assert ways == [("04_one_row", False, 1), ("04_one_row", True, 1)]
    assert steps["decode 05_dependent_launch"].steps == 1 and steps["decode 05_dependent_launch, ahead"].steps == 8
    assert steps["decode 16_clusters"].graph and not any("batch" in name for name in steps)
