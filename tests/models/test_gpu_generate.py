"""Generation on a GPU: graphs, tokens through pinned memory, and every rung of decode in the engine."""

from __future__ import annotations

import time

import pytest
import torch

from rung.models.folders import INNER
from rung.models.gpu.engine import GpuSteps
from rung.models.load import Model, load
from rung.models.sampling import Sampling
from rung.models.weights import Linear, Weights, read_weights
from rung.rungs import catalogue
from written import written

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def model() -> Model:
    return load("inner", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def weights(model: Model) -> Weights:
    return read_weights(INNER, model.config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())


def cpu_text(model: Model, ids: list[int], count: int, **how: object) -> list[int]:
    return list(model.generate([ids], max_new_tokens=count, stop_tokens=(), **how)[0].tokens)  # type: ignore[call-overload]


@pytest.mark.parametrize("rung", [r.name for r in catalogue.rungs("decode", libraries=False) if "f32" in r.dtypes])
def test_float32_text_is_the_cpus_for_128_tokens(model: Model, weights: Weights, rung: str) -> None:
    if "int8" in rung:
        pytest.skip("eight bits are not float32")
    ids = list(model.tokenizer.encode("Once upon a time"))
    engine = GpuSteps(model.config, weights, "float32", rung=rung)
    assert [step[0] for step in written(engine, [ids], [128])] == cpu_text(model, ids, 128, temperature=0)


def test_sampled_text_is_the_cpus(model: Model, weights: Weights) -> None:
    ids = list(model.tokenizer.encode("The king"))
    how = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "repetition_penalty": 1.1}
    engine = GpuSteps(model.config, weights, "float32")
    ours = [step[0] for step in written(engine, [ids], [64], sampling=Sampling(**how), seed=3)]  # type: ignore[arg-type]
    assert ours == cpu_text(model, ids, 64, seed=3, **how)


def test_a_second_text_is_not_touched_by_the_first(model: Model, weights: Weights) -> None:
    engine = GpuSteps(model.config, weights, "float32")
    ids = [list(model.tokenizer.encode(text)) for text in ("Once upon a time", "The king")]
    for step, _ in enumerate(written(engine, ids[:1], [100])):  # left while the GPU is steps ahead
        if step == 5:
            break
    assert [s[0] for s in written(engine, ids[1:], [50])] == cpu_text(model, ids[1], 50, temperature=0)


def test_a_length_not_met_before_costs_the_torch_plan_no_plan_of_cudnns() -> None:
    model = load("inner", device="cuda", plan="torch", dtype="bfloat16")
    ids = list(model.tokenizer.encode("Once upon a time"))

    def seconds(count: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        model.generate([ids], max_new_tokens=count, stop_tokens=(), temperature=0)
        return time.perf_counter() - began

    seconds(8)  # libraries are loaded
    first = seconds(64)
    assert seconds(64) > 0.4 * first  # the same lengths again: were the first ones so much slower?
