"""The compiled step and passes: the same result for any number of threads and columns, on any processor."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpt2_models as models
import llama_models
import rung
from gpuless.base import disk_cache
from rung.errors import RungError
from rung.models import weights as quantize
from rung.models.cache import Column, Run
from rung.models.cpu import build, engine
from rung.models.cpu.engine import CpuSteps
from rung.models.family import Config, read_config
from rung.models.plan import TorchPlan
from rung.models.transformer import Transformer
from rung.models.weights import Weights, read_weights

pytestmark = pytest.mark.skipif(build.begin(build.DEFAULT) is None, reason="needs a C++ compiler")
DTYPES = ["float32", "bfloat16", "int8"]


# Odd widths and norms of heads; sizes that fit a processor's matrix unit.
ODD: dict[str, Any] = {"kind": "qwen3", "head_dim": 18, "hidden_size": 100, "intermediate_size": 67}
GROUPED: dict[str, Any] = {"kind": "qwen2", "hidden_size": 192, "num_attention_heads": 6, "intermediate_size": 128}


def gpt2(C: int, NH: int, F: int) -> dict[str, Any]:
    return {"n_embd": C, "n_head": NH, "n_inner": F}


def loaded(dtype: str, kind: str = "gpt2", **config: Any) -> tuple[Config, Weights, TorchPlan]:
    folder = models.saved(**config) if kind == "gpt2" else llama_models.saved(kind, **config)
    stored = getattr(torch, dtype)
    plan = TorchPlan(torch.device("cpu"), stored, torch.float32)
    parsed = read_config(folder / "config.json")
    return parsed, read_weights(folder, parsed, plan.matrix, plan.vector), plan


def stepped(found: CpuSteps, transformer: Transformer, steps: list[list[int]], rows: int = 2) -> list[torch.Tensor]:
    """Logits after each step: all tokens of a step at once, to the last row of the cache."""
    kind = transformer.weights.head.weight.dtype
    transformer.plan.cache_dtype = "float32" if kind == torch.float32 else "bfloat16"
    cache = transformer.new_cache(rows, 64)
    past, logits = 0, []
    for ids in steps:
        columns = [Column(token, rows - 1, past + i, i) for i, token in enumerate(ids)]
        logits.append(torch.from_numpy(found.step(columns, cache, len(ids))))
        past += len(ids)
    return logits


@pytest.mark.parametrize("fields", [gpt2(96, 3, 200), gpt2(160, 5, 1632), ODD])
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_columns_change_no_bit(dtype: str, fields: dict[str, Any]) -> None:
    config, weights, plan = loaded(dtype, **fields)
    library = engine.available(dtype)
    assert library is not None
    transformer = Transformer(config, weights, plan)
    ids = models.some_ids(13)
    one = torch.cat(stepped(CpuSteps(library, config, weights, 1), transformer, [[i] for i in ids]))
    for threads in (1, 2, 5):
        for split in ([13], [4, 9], [1, 5, 7], [2, 8, 3]):
            parts, at = [], 0
            for n in split:
                parts.append(ids[at : at + n])
                at += n
            found = stepped(CpuSteps(library, config, weights, threads), transformer, parts)
            assert torch.equal(torch.cat(found), one)


def passed(
    found: CpuSteps, transformer: Transformer, texts: list[list[int]], split: int = 1000, context: int = 64
) -> torch.Tensor:
    """Logits after each text, all texts in the same passes, this many tokens of each at a time."""
    kind = transformer.weights.head.weight.dtype
    transformer.plan.cache_dtype = "float32" if kind == torch.float32 else "bfloat16"
    cache, logits = transformer.new_cache(len(texts), context), torch.empty(len(texts), transformer.config.vocabulary)
    for at in range(0, max(map(len, texts)), split):
        rows = [row for row, ids in enumerate(texts) if len(ids) > at]
        runs = [Run(texts[row][at : at + split], row, at) for row in rows]
        logits[rows] = torch.from_numpy(found.read(runs, cache))
    return logits


# The second and the last fit a processor's matrix unit.
@pytest.mark.parametrize("fields", [gpt2(96, 3, 200), gpt2(128, 2, 576), ODD, GROUPED])
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_a_pass_threads_company_and_parts_change_no_bit(dtype: str, fields: dict[str, Any]) -> None:
    config, weights, plan = loaded(dtype, **fields)
    library = engine.available(dtype)
    assert library is not None
    transformer = Transformer(config, weights, plan)
    texts = [models.some_ids(n, seed=n) for n in (64, 1, 17, 30, 2, 63, 16)]
    one = CpuSteps(library, config, weights, 1)
    alone = torch.cat([passed(one, transformer, [ids]) for ids in texts])
    rated = [one.rate([ids], True)[0] for ids in texts if len(ids) > 1]
    for threads, split in ((1, 1000), (2, 13), (5, 40)):
        several = CpuSteps(library, config, weights, threads)
        assert torch.equal(passed(several, transformer, texts, split), alone)
        together = several.rate([ids for ids in reversed(texts) if len(ids) > 1], True)
        assert all(np.array_equal(a, b) for a, b in zip(reversed(together), rated, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fields", [gpt2(96, 3, 200), ODD])
def test_means_of_hidden_states_are_torchs_whatever_the_company(dtype: str, fields: dict[str, Any]) -> None:
    config, weights, plan = loaded(dtype, **fields)
    library = engine.available(dtype)
    assert library is not None
    texts = [models.some_ids(n, seed=n) for n in (1, 40, 17, 64)]
    native = CpuSteps(library, config, weights, 2)
    together = native.means(texts)
    assert np.array_equal(together[::-1], native.means(texts[::-1]))
    *parts, last = native.mean(texts[3], 20)
    assert parts == [None] * 4 and last is not None and np.allclose(last, together[3], rtol=1e-5, atol=1e-6)
    transformer, tolerance = Transformer(config, weights, plan), {"float32": 1e-5}.get(dtype, 2e-2)
    for ids, found in zip(texts, together, strict=True):
        right = transformer.hidden(torch.tensor([ids]))[0].float().mean(0)
        assert float((torch.from_numpy(found) - right).norm() / right.norm()) < tolerance


def test_prompts_of_several_passes_and_windows_are_transformers() -> None:
    folder = models.saved(n_positions=1100, n_layer=1)
    ids = models.some_ids(1090)
    model = rung.load(folder, dtype="float32", device="cpu")
    cache = model.transformer.new_cache(1, 1100)
    cache.begin(1)
    right = models.reference_logits(folder, ids)
    for part in (ids[:1050], ids[1050:]):
        found = model.transformer.advance([part], cache)[0]
        assert float((found - right[cache.lengths[0] - 1]).abs().max() / right.abs().max()) < 1e-5
    near = rung.load(folder, dtype="float32", window=37, device="cpu")
    cache.begin(1)
    found = near.transformer.advance([ids[:700]], cache)[0]
    right = near.logits(ids[:700])[-1]
    assert float((found - right).abs().max() / right.abs().max()) < 1e-5


def test_one_model_rates_and_writes_from_several_threads() -> None:
    model, texts = rung.load(models.saved(), dtype="float32", device="cpu"), [models.some_ids(50, seed=i) for i in range(8)]
    scores = [score.logprob for score in model.score(texts)]
    written = [model.generate([ids[:20]], temperature=0)[0].tokens for ids in texts]
    with ThreadPoolExecutor(8) as pool:
        several = pool.map(lambda ids: model.score([ids])[0].logprob, texts * 4)
        writing = pool.map(lambda ids: model.generate([ids[:20]], temperature=0)[0].tokens, texts)
        assert list(several) == scores * 4 and list(writing) == written


LEVELS = {
    "x86-64": "sse2",
    "x86-64-v3": "avx2",
    "x86-64-v4": "avx512bw",
    "cooperlake": "avx512_bf16",
    "sapphirerapids": "amx_tile",
}


@pytest.mark.parametrize("level", [pytest.param(x, marks=[] if x == "x86-64-v3" else pytest.mark.slow) for x in LEVELS])
@pytest.mark.parametrize("fields", [{}, ODD, GROUPED])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_level_of_vectors_computes_the_same(dtype: str, fields: dict[str, Any], level: str) -> None:
    compiler = shutil.which("g++")
    if platform.machine() != "x86_64" or compiler is None or LEVELS[level] not in build._processor().split():
        pytest.skip("g++ and an x86 of that level only")
    flags = [f.replace("native", level).replace("-O3", "-O1") for f in build.FLAGS]  # -O1: quickly compiled
    steps, passes = (build.compilation(compiler, flags, dtype, source) for source in (build.DECODE, build.PASSES))
    library = None if steps is None else steps.wait()
    assert library is not None
    bound = engine._bind(library)
    assert bound is not None
    plain = engine.Code(bound, lambda: passes)
    config, weights, plan = loaded(dtype, **fields)
    transformer = Transformer(config, weights, plan)
    ids = models.some_ids(9)
    native = CpuSteps(plain, config, weights, 2)
    found = stepped(native, transformer, [ids[:5], ids[5:]])
    right = transformer.logits(torch.tensor([ids]))[0]
    tolerance = {"float32": 1e-5, "bfloat16": 2e-2, "int8": 2e-2}[dtype]
    assert float((torch.cat(found) - right).abs().max() / right.abs().max()) < tolerance
    ids = models.some_ids(60)
    right = transformer.logits(torch.tensor([ids]))[0]
    read = passed(native, transformer, [ids, ids[:7]], 21)
    assert float((read - right[[-1, 6]]).abs().max() / right.abs().max()) < tolerance
    own = right[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert float((torch.from_numpy(native.rate([ids[:9], ids], False)[1])[:, 0] - own).abs().max()) < 10 * tolerance


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_the_compiler_decides_changes_no_bit(dtype: str) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ only")
    flags = [f.replace("-O3", "-O1") for f in build.FLAGS]
    steps, passes = (build.compilation(compiler, flags, dtype, source) for source in (build.DECODE, build.PASSES))
    bound = engine._bind(steps.wait()) if steps else None
    usual = engine.available(dtype)
    assert bound is not None and usual is not None
    config, weights, plan = loaded(dtype, **ODD)
    transformer = Transformer(config, weights, plan)
    ids = models.some_ids(40)
    one, other = (CpuSteps(code, config, weights, 1) for code in (usual, engine.Code(bound, lambda: passes)))
    assert torch.equal(*(torch.cat(stepped(found, transformer, [ids[:5], ids[5:9]])) for found in (one, other)))
    assert torch.equal(*(passed(found, transformer, [ids, ids[:7]], 21) for found in (one, other)))


@pytest.mark.parametrize("width", [9001, 9024])
def test_integer_sums_do_not_overflow(width: int) -> None:
    # Every input at its largest, every weight at 127, and a row longer than 32 bits can take at once.
    config, weights, plan = loaded("int8", n_inner=width, activation_function="relu", n_layer=1)
    layer = weights.layers[0]
    layer.fc = quantize.to_int8(torch.zeros(width, 64))
    layer.fc.bias = torch.ones(width)
    layer.mlp_proj = quantize.to_int8(torch.ones(64, width) * torch.linspace(-2, 2, 64)[:, None])
    layer.mlp_proj.bias = torch.zeros(64)
    library = engine.available("int8")
    assert library is not None
    transformer = Transformer(config, weights, plan)
    native = CpuSteps(library, config, weights, 2)
    found = stepped(native, transformer, [[1, 2, 3, 4, 5]])[0]
    right = transformer.logits(torch.tensor([[1, 2, 3, 4, 5]]))[0]
    assert float((found - right).abs().max() / right.abs().max()) < 1e-3
    assert float((passed(native, transformer, [[1, 2, 3, 4, 5]]) - right[-1]).abs().max() / right.abs().max()) < 1e-3


@pytest.fixture
def anew() -> Iterator[None]:
    """The compiler is looked for again, in the test and after it."""
    build.begin.cache_clear()
    yield
    build.begin.cache_clear()


@pytest.mark.usefixtures("anew")
def test_without_a_working_compiler_torch_does_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    for compiler in ("/bin/false", "/no/such/compiler"):
        build.begin.cache_clear()
        monkeypatch.setenv("RUNG_CXX", compiler)
        assert engine.available("float32") is None
        model = rung.load(models.saved(), dtype="float32", device="cpu")
        ids = models.some_ids(5)
        completion = model.generate([ids], temperature=0, max_new_tokens=8)[0]
        assert completion.tokens == models.reference_greedy(models.saved(), ids, 8)
        assert any("compiler" in note for note in model.plan.notes)
    assert not list((tmp_path / "native").glob(".*"))


@pytest.mark.usefixtures("anew")
def test_a_short_prompt_compiles_steps_alone_and_a_long_one_says_what_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *passes.cpp*) exit 1;; esac\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    monkeypatch.setenv("RUNG_CXX", str(compiler))
    ids = models.some_ids(20)
    native = tmp_path / "native"
    model = rung.load(models.saved(), dtype="float32", device="cpu")
    completion = model.generate([ids[:5]], temperature=0, max_new_tokens=8)[0]
    assert completion.tokens == models.reference_greedy(models.saved(), ids[:5], 8)
    assert [entry.stem.split("-")[0] for entry in native.glob("*.json")] == ["decode"]
    with pytest.raises(RungError, match="RUNG_CXX"):
        model.generate([ids], temperature=0, max_new_tokens=8)
    assert model.generate([ids[:5]], temperature=0, max_new_tokens=8)[0].tokens == completion.tokens


@pytest.mark.usefixtures("anew")
def test_another_compiler_of_the_same_name_compiles_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler, keys = tmp_path / "g++", []
    for version in ("12", "12", "13.2"):
        if not compiler.is_file() or version not in compiler.read_text():
            compiler.write_text(f"#!/bin/sh\n# {version}\nexit 1\n")
            compiler.chmod(0o755)
        monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
        build.begin.cache_clear()
        monkeypatch.setenv("RUNG_CXX", str(compiler))
        found = build.begin(build.DEFAULT)
        assert found is not None and found.wait() is None
        keys.append(found.key)
    assert keys[0] == keys[1] != keys[2]


def test_a_cache_made_under_any_umask_can_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        assert [disk_cache.folder("native") for _ in range(2)] == [tmp_path / "cache" / "native"] * 2
    finally:
        os.umask(before)


def test_a_program_that_ends_early_tells_what_it_waited_for_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "RUNG_CACHE": str(tmp_path)}
    code = "from rung.models.cpu import build; print(build.begin(build.DEFAULT).made)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert Path(done.stdout.strip()).parent == tmp_path / "native"
    assert done.stderr.startswith("rung: ") and done.stderr.count("\n") == 1
    assert not list((tmp_path / "native").iterdir())
