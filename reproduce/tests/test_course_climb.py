"""`rung climb --study course`: a model of rungs alone writes the reference's text at every step."""

from __future__ import annotations

import pytest
import torch

import gpt2_models as models
import gpuless
from rung.models.family import read_config
from rung.models.plan import TorchPlan
from rung.models.weights import Linear, read_weights
from rung_reproduce.climbs import course
from rung_reproduce.climbs.model import Climbed, Climber

NEW = 6
OPERATIONS = ("embedding", "layernorm", "matmul", "attention", "activation", "residual")
pytestmark = pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")


@pytest.fixture(scope="module")
def climber() -> Climber:
    folder = models.saved(n_layer=2)
    config = read_config(folder / "config.json")
    weights = read_weights(folder, config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    return Climber("tiny", config, weights, models.some_ids(7), NEW, device="emulator", study="course")


@pytest.mark.slow
@pytest.mark.parametrize("step", course.steps(), ids=lambda step: step.name)
def test_every_step_writes_the_reference_text_without_torch(
    climber: Climber, step: course.Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> torch.Tensor:
        raise AssertionError("an operation went through torch")

    for name in OPERATIONS:
        monkeypatch.setattr(TorchPlan, name, refused)
    row = Climbed(step.name, step.what, step.dtype)
    climber._take(step, row)
    assert row.verdict == "ok" and row.identical == NEW, row.reason


def test_keys_and_values_of_another_text_do_not_count(climber: Climber) -> None:
    variant = course.steps()[-1].variant
    assert variant is not None
    course_way = variant(climber, course.steps()[-1])
    first = list(course_way.write(3))
    course_way.logits(models.some_ids(20, seed=9))
    assert list(course_way.write(3)) == first == climber.text[7:10]


def test_steps_are_cumulative_and_rows_of_the_study(climber: Climber) -> None:
    steps = course.steps()
    assert [step.name for step in steps] == list(course.CHANGES)
    climber.result.rows.append(Climbed(steps[0].name, steps[0].what, "float32", rungs=("matmul/01_naive",)))
    row = climber.result.result(len(climber.result.rows) - 1, "random")
    assert row.options == {"prompt_tokens": 7, "new_tokens": NEW, "study": "course"}
    assert set(row.texts) == {"matmul/01_naive"}
