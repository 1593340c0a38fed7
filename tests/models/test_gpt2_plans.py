"""The model on rungs: emulated CUDA kernels in place of torch, the logits unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gpt2_models as models
import gpuless
import rung
from rung.errors import RungError
from rung.models.load import Model

pytestmark = pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")

FIRST_LADDERS = ("embedding", "layernorm", "softmax", "gelu", "residual")


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    scale = theirs.abs().max().clamp_min(1)
    assert float((ours - theirs).abs().max() / scale) < 1e-4


def emulated(folder: Path | str, **kernels: str) -> Model:
    return rung.load(folder, device="emulator", dtype="float32", plan="torch", kernels=kernels)


@pytest.fixture(scope="module")
def folder() -> Path:
    return models.saved(n_layer=1)


def test_the_first_five_ladders_serve_the_model(folder: Path) -> None:
    model = emulated(folder, **dict.fromkeys(FIRST_LADDERS, "1"))
    ids = models.some_ids(9)
    close(model.logits(ids), models.reference_logits(folder, ids))
    assert model.generate([ids], temperature=0, max_new_tokens=3)[0].tokens == models.reference_greedy(
        folder, ids, 3
    )


def test_the_model_inside_runs_on_the_first_five_ladders() -> None:
    model = emulated("inner", **dict.fromkeys(FIRST_LADDERS, "2"))
    exact = rung.load("inner", dtype="float32", device="cpu")
    ids = exact.tokenizer.encode("Once upon a time")
    close(model.logits(ids), models.reference_logits(exact.folder, ids))


def test_the_naive_plan_runs_every_operation_on_a_rung(folder: Path) -> None:
    model = rung.load(folder, device="emulator", plan="naive")
    ids = models.some_ids(6)
    close(model.logits(ids), models.reference_logits(folder, ids))
    prompts = [ids, ids[:2]]
    for completion, prompt in zip(
        model.generate(prompts, temperature=0, max_new_tokens=3), prompts, strict=True
    ):
        assert completion.tokens == models.reference_greedy(folder, prompt, 3)


def test_results_do_not_share_memory(folder: Path) -> None:
    model = rung.load(folder, device="emulator", plan="naive")
    first = model.logits([1, 2, 3])
    copy = first.clone()
    model.logits([4, 5, 6])
    assert torch.equal(first, copy)


def test_a_rung_of_ones_own_is_switched_in(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.cu"
    own.write_text(
        """/*---
idea   = "Subtracts."
expect = "Wrong on purpose."
dtypes = ["f32"]
[[launch]]
kernel = "subtract"
grid   = "B * T"
block  = 32
---*/
#include "rung.cuh"
extern "C" __global__ void subtract(const Real* a, const Real* b, Real* out, int C) {
  for (int c = blockIdx.x * C + threadIdx.x; c < (blockIdx.x + 1) * C; c += 32) out[c] = a[c] - b[c];
}
"""
    )
    right, ids = models.reference_logits(folder, [1, 2, 3]), [1, 2, 3]
    assert float((emulated(folder, residual=str(own)).logits(ids) - right).abs().max()) > 0.1
    close(emulated(folder, residual="1").logits(ids), right)


def test_a_rung_that_does_not_exist_is_refused(folder: Path) -> None:
    with pytest.raises(RungError, match="layernorm has no rung '99'"):
        emulated(folder, layernorm="99")
    with pytest.raises(RungError, match="int8"):
        rung.load(folder, device="emulator", dtype="int8")
