"""The compiled step: the same result for any number of threads and columns, on any processor."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gpt2_models as models
import rung
from rung.gpt2 import quantize
from rung.gpt2.config import Config, read_config
from rung.gpt2.cpu import build, engine
from rung.gpt2.cpu.engine import Column, Engine
from rung.gpt2.model import Transformer
from rung.gpt2.torch_plan import TorchPlan
from rung.gpt2.weights import Weights, read_weights

pytestmark = pytest.mark.skipif(build.begin() is None, reason="needs a C++ compiler")
DTYPES = ["float32", "bfloat16", "int8"]


def loaded(dtype: str, **config: object) -> tuple[Config, Weights, TorchPlan]:
    folder = models.saved(**config)
    stored = getattr(torch, dtype)
    plan = TorchPlan(torch.device("cpu"), stored, torch.float32)
    parsed = read_config(folder / "config.json")
    return parsed, read_weights(folder, parsed, plan.matrix, plan.vector), plan


def stepped(
    found: Engine, transformer: Transformer, steps: list[list[int]], rows: int = 2
) -> list[torch.Tensor]:
    """Logits after each step: all tokens of a step at once, to the last row of the cache."""
    kind = transformer.weights.head.weight.dtype
    transformer.plan.cache_dtype = torch.float32 if kind == torch.float32 else torch.bfloat16
    cache = transformer.new_cache(rows, 64)
    past, logits = 0, []
    for ids in steps:
        columns = [Column(token, rows - 1, past + i, i) for i, token in enumerate(ids)]
        logits.append(found.step(columns, cache, len(ids)))
        past += len(ids)
    return logits


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_columns_change_no_bit(dtype: str) -> None:
    config, weights, plan = loaded(dtype, n_embd=96, n_head=3, n_inner=200)
    library = engine.available()
    assert library is not None
    transformer = Transformer(config, weights, plan)
    ids = models.some_ids(13)
    one = torch.cat(stepped(Engine(library, config, weights, 1), transformer, [[i] for i in ids]))
    for threads in (1, 2, 5):
        for split in ([13], [4, 9], [1, 5, 7]):
            parts, at = [], 0
            for n in split:
                parts.append(ids[at : at + n])
                at += n
            found = stepped(Engine(library, config, weights, threads), transformer, parts)
            assert torch.equal(torch.cat(found), one)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_processor_without_avx512_computes_the_same(
    dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    compiler = shutil.which("g++")
    if platform.machine() != "x86_64" or compiler is None:
        pytest.skip("g++ for x86 only")
    library = tmp_path_factory.getbasetemp() / "decode-v3.so"
    if not library.exists():
        flags = [f.replace("native", "x86-64-v3") for f in build.FLAGS]
        subprocess.run([compiler, *flags, str(build.SOURCE), "-o", str(library)], check=True)
    plain = engine._bind(library)
    assert plain is not None
    config, weights, plan = loaded(dtype)
    transformer = Transformer(config, weights, plan)
    ids = models.some_ids(9)
    found = stepped(Engine(plain, config, weights, 2), transformer, [ids[:5], ids[5:]])
    right = transformer.logits(torch.tensor([ids]))[0]
    tolerance = {"float32": 1e-5, "bfloat16": 2e-2, "int8": 2e-2}[dtype]
    assert float((torch.cat(found) - right).abs().max() / right.abs().max()) < tolerance


def test_integer_sums_do_not_overflow() -> None:
    # Every input at its largest, every weight at 127, and a row longer than 32 bits can take at once.
    config, weights, plan = loaded("int8", n_inner=9001, activation_function="relu", n_layer=1)
    layer = weights.layers[0]
    layer.fc = quantize.to_int8(torch.zeros(9001, 64))
    layer.fc.bias = torch.ones(9001)
    layer.mlp_proj = quantize.to_int8(torch.ones(64, 9001) * torch.linspace(-2, 2, 64)[:, None])
    layer.mlp_proj.bias = torch.zeros(64)
    library = engine.available()
    assert library is not None
    transformer = Transformer(config, weights, plan)
    found = stepped(Engine(library, config, weights, 2), transformer, [[1, 2, 3, 4, 5]])[0]
    right = transformer.logits(torch.tensor([[1, 2, 3, 4, 5]]))[0]
    assert float((found - right).abs().max() / right.abs().max()) < 1e-3


def test_without_a_working_compiler_torch_does_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    for compiler in ("/bin/false", "/no/such/compiler"):
        monkeypatch.setattr(build, "_begun", None)
        monkeypatch.setattr(build, "_tried", False)
        monkeypatch.setenv("RUNG_CXX", compiler)
        assert engine.available() is None
        model = rung.load(models.saved(), dtype="float32")
        ids = models.some_ids(5)
        completion = model.generate([ids], temperature=0, max_new_tokens=8)[0]
        assert completion.tokens == models.reference_greedy(models.saved(), ids, 8)
    assert not list((tmp_path / "native").glob(".*"))


def test_a_program_that_ends_early_leaves_no_half_made_library(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": "src", "RUNG_CACHE": str(tmp_path)}
    code = "from rung.gpt2.cpu import build; print(build.begin().made)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert Path(done.stdout.strip()).parent == tmp_path / "native" and done.stderr == ""
    assert not list((tmp_path / "native").iterdir())
