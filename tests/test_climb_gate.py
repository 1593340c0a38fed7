"""The climb's gate: numbers are held against the reference's at the same places of the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rung.cli import main
from rung.climb.model import DIVERGENCE, Climber, Row, Step
from rung.gpt2.load import INNER, load
from rung.gpt2.weights import Linear, read_weights


@pytest.fixture(scope="module")
def climber() -> Climber:
    model = load("inner", dtype="float32")
    weights = read_weights(INNER, model.config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    prompt = list(model.tokenizer.encode("Once upon a time there was a"))
    return Climber("inner", model.config, weights, prompt, 3, device="emulator")


@pytest.mark.parametrize("rung", ["01_recompute", "03_appended"])
def test_a_slow_rung_is_compared_where_it_was_asked(climber: Climber, rung: str) -> None:
    from rung.climb import model as generation

    way = generation._Decoded(climber, Step(rung, "", "float32", rung=rung))
    first, logits = way.logits(climber.text)
    ours, truth = logits.double().log_softmax(-1), climber.truth[first : first + len(logits)]
    assert len(ours) == len(truth) > 1
    assert float((truth.exp() * (truth - ours)).sum(-1).mean()) < DIVERGENCE["float32"]


def test_the_gate_lets_a_right_rung_by(climber: Climber) -> None:
    row = Row("01_recompute", "", "float32")
    from rung.climb import model as generation

    climber._gate(generation._Decoded(climber, Step("01", "", "float32", rung="01_recompute")), row)
    assert (row.verdict, row.reason) == ("ok", "") and row.identical == 3


def test_the_climb_is_drawn_in_colours_of_its_own(tmp_path: Path) -> None:
    """A file without a page around it has nobody who says what --ink is."""
    words = "climb --device emulator --model inner --plan none --rung 3 --dtype float32 -n 1 --seconds 0.5"
    picture, found = tmp_path / "climb.svg", tmp_path / "climb.json"
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--prompt", "Once", "--svg", str(picture), "-o", str(found), "--json"])
    assert not ended.value.code
    assert json.loads(found.read_text())["rows"][0]["verdict"] == "ok"
    assert "03 appended" in picture.read_text() and "var(--" not in picture.read_text()
