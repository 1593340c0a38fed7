"""The engine writes what the CPU writes, its kernels emulated."""

from __future__ import annotations

import pytest
import torch

from rung.errors import RungError
from rung.gpt2.gpu.engine import Engine
from rung.gpt2.gpu.session import MOST_STOPS
from rung.gpt2.load import INNER, Model, load
from rung.gpt2.sampling import Sampling
from rung.gpt2.weights import Linear, Weights, read_weights


@pytest.fixture(scope="module")
def model() -> Model:
    return load("inner", dtype="float32")


@pytest.fixture(scope="module")
def weights(model: Model) -> Weights:
    return read_weights(INNER, model.config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())


@pytest.fixture(scope="module")
def engine(model: Model, weights: Weights) -> Engine:
    return Engine(model.config, weights, "float32", "emulator", rung="6")


def prompts(model: Model, *texts: str) -> list[list[int]]:
    return [list(model.tokenizer.encode(text)) for text in texts]


def on_cpu(model: Model, given: list[list[int]], count: int, **how: object) -> list[list[int]]:
    run = model.generate(given, max_new_tokens=count, stop_tokens=(), **how)  # type: ignore[call-overload]
    return [list(c.tokens) for c in run]


def columns(steps: list[list[int]]) -> list[list[int]]:
    return [list(column) for column in zip(*steps, strict=True)]


@pytest.mark.parametrize("rung", ["1", "3", "6", "10"])
def test_greedy_text_is_the_cpus(model: Model, weights: Weights, rung: str) -> None:
    given = prompts(model, "Once upon a time")
    one = Engine(model.config, weights, "float32", "emulator", rung=rung)
    assert columns(list(one.write(given, [3]))) == on_cpu(model, given, 3, temperature=0)


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.8},
        {"temperature": 1.2, "top_k": 20},
        {"temperature": 1.2, "top_p": 0.8, "min_p": 0.01},
        {"temperature": 0.9, "top_k": 100, "top_p": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
        {"temperature": 0, "repetition_penalty": 1.5},
    ],
)
def test_sampled_text_is_the_cpus(model: Model, engine: Engine, how: dict[str, float]) -> None:
    given = prompts(model, "The king")
    ours = engine.write(given, [5], sampling=Sampling(**how), seed=9)  # type: ignore[arg-type]
    assert columns(list(ours)) == on_cpu(model, given, 5, seed=9, **how)


def test_a_batch_of_unequal_prompts_is_each_alone(model: Model, engine: Engine) -> None:
    given = prompts(model, "Once", "The old woman went into the forest and")
    together = columns(list(engine.write(given, [4, 4])))
    assert together == on_cpu(model, given, 4, temperature=0)


def test_tensor_cores_write_the_same_text_for_many(model: Model, weights: Weights) -> None:
    many = Engine(model.config, weights, "bfloat16", "emulator")
    given = prompts(model, "Once upon", "The king", "A dog", "In the forest", "She said")
    assert columns(list(many.write(given, [3] * 5))) == on_cpu(model, given, 3, temperature=0)


def test_a_stop_token_ends_one_sequence_and_the_others_go_on(model: Model, engine: Engine) -> None:
    given = prompts(model, "Once upon a time", "The king")
    free = columns(list(engine.write(given, [5, 5])))
    stop = next(t for t in free[0][:3] if t not in free[1])
    at = free[0].index(stop)
    ended = columns(list(engine.write(given, [5, 5], stop_tokens=[stop])))
    assert ended[0] == free[0][: at + 1] + [-1] * (4 - at)
    assert ended[1] == free[1]


def test_limits_are_each_sequences_own(model: Model, engine: Engine) -> None:
    given = prompts(model, "Once", "The king")
    steps = columns(list(engine.write(given, [2, 4])))
    assert [sum(t >= 0 for t in row) for row in steps] == [2, 4]


def test_a_full_cache_ends_the_text(model: Model, engine: Engine) -> None:
    context = model.config.context
    steps = list(engine.write([[5] * (context - 1)], [9]))
    assert [row[0] >= 0 for row in steps[:2]] == [True, True]
    assert all(row[0] == -1 for row in steps[2:])


def test_more_stop_tokens_than_a_step_looks_for_are_refused(engine: Engine) -> None:
    with pytest.raises(RungError, match="stop tokens"):
        list(engine.write([[1]], [2], stop_tokens=range(MOST_STOPS + 1)))


@pytest.mark.parametrize("rung", ["1", "2", "3"])
def test_logits_of_a_text_that_no_one_would_write(model: Model, weights: Weights, rung: str) -> None:
    given, text = prompts(model, "Once upon a time")[0], prompts(model, " xylophone dog the")[0][:3]
    one = Engine(model.config, weights, "float32", "emulator", rung=rung)
    wanted = model.transformer.logits(torch.tensor([[*given, *text]]))[0, -len(text) :]
    torch.testing.assert_close(one.logits_after(given, text), wanted, rtol=1e-4, atol=1e-4)
