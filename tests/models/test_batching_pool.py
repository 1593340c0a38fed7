"""Several engines as one: workers in processes of their own write the same texts, also when one of them dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import gpt2_models as models
import rung
from rung.errors import RungError
from rung.models.batching.worker_pool import Setup
from rung.models.load import Model

HOW: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 40, "seed": 6, "logprobs": True}
PROMPTS = [models.some_ids(3 + i % 40, 400, seed=i) for i in range(60)]


@pytest.fixture(scope="module")
def folder() -> Any:
    return models.saved(n_positions=128)


@pytest.fixture
def spread(folder: Any) -> Iterator[Model]:
    model = rung.load(folder, dtype="float32", device="cpu")
    setup = Setup({"model": str(folder), "dtype": "float32"}, slots=4)
    model.engine.prepare(4)
    model.spread([setup, setup])
    yield model
    assert model._pool is not None
    model._pool.close()


@pytest.mark.slow
def test_texts_of_several_processes_are_those_of_one_though_one_is_killed(folder: Any, spread: Model) -> None:
    expected = models.ours(folder).generate(PROMPTS, **HOW)
    assert spread.generate(PROMPTS, **HOW) == expected
    assert spread._pool is not None
    victim = spread._pool.workers[0]
    run = spread.run(PROMPTS, **HOW)
    assert len(victim.texts) == 0
    for count, _ in enumerate(run):
        if count == 20:
            assert victim.texts, "the worker had something to lose"
            os.kill(victim.process.pid, signal.SIGKILL)
    assert run.completions == expected
    assert not victim.alive and sum(one.alive for one in spread._pool.workers) == 1


@pytest.mark.slow
def test_a_worker_that_cannot_load_says_why(folder: Any) -> None:
    model = rung.load(folder, dtype="float32", device="cpu")
    with pytest.raises(RungError, match="no folder /nowhere"):
        model.spread([Setup({"model": "/nowhere"})])
