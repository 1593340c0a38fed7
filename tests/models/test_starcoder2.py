"""StarCoder2 against transformers, on a CPU, on the emulator and on a GPU."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import gpuless
import llama_models as models
import rung
from llama_models import assert_transformers, ids_of
from rung.errors import RungError
from rung.models import family

emulated = pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = [
    pytest.param("emulator", "best", marks=emulated),
    pytest.param("emulator", "naive", marks=emulated),
    *(pytest.param("cuda", plan, marks=[pytest.mark.gpu, no_gpu]) for plan in ("best", "fused")),
]


def saved(number: int, **fields: Any) -> Path:
    """A random model: one to four groups, biases or not, a window or not."""
    draw = random.Random(number)
    groups, shared = draw.choice(((1, 4), (2, 2), (1, 3), (4, 1)))
    size = draw.choice((8, 16, 32))
    return models.saved("starcoder2", **{
        "num_key_value_heads": groups, "num_attention_heads": groups * shared, "hidden_size": groups * shared * size,
        "intermediate_size": draw.choice((40, 67, 128)), "num_hidden_layers": draw.choice((2, 3)),
        "sliding_window": draw.choice((None, 3, 20)), "use_bias": draw.random() < 0.7,
        "tie_word_embeddings": draw.random() < 0.7, "norm_epsilon": draw.choice((1e-5, 1e-3)), **fields,
    })  # fmt: skip


@pytest.mark.parametrize("number", [pytest.param(n, marks=() if n < 6 else pytest.mark.slow) for n in range(30)])
def test_random_models_are_transformers(number: int) -> None:
    folder = saved(number)
    assert_transformers(rung.load(folder, dtype="float32", device="cpu"), folder, ids_of(40, number), 12)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "plan"), DEVICES)
def test_plans_of_rungs_and_recorded_passes_are_transformers(device: str, plan: str) -> None:
    folder = saved(1, num_hidden_layers=2, sliding_window=8)
    assert_transformers(rung.load(folder, dtype="float32", device=device, plan=plan), folder, ids_of(40, 1), 4)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_other_formats_stay_close(dtype: str) -> None:
    folder, ids = saved(3), ids_of(40, 3)
    right = models.reference_logits(folder, ids)
    found = rung.load(folder, dtype=dtype, device="cpu").logits(ids)
    assert (found - right).norm() / right.norm() < 5e-2


def test_another_activation_is_refused_by_name() -> None:
    with pytest.raises(RungError, match="hidden_act"):
        family.parse_config({**models.TINY, "model_type": "starcoder2", "hidden_act": "relu"}, "config.json")


def test_the_known_size_has_the_published_number_of_weights() -> None:
    config = family.config_of("starcoder2-3b")
    counts = [torch.Size(s.stored(config)).numel() * (config.layers if s.layered else 1)
              for s in config.family.tensors(config) if not s.same_as]  # fmt: skip
    assert sum(counts) == 3_030_371_328
