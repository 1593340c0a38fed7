"""Prompts read at once leave the caches and logits that transformers has, by ladders and by torch."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import pytest
import torch

import gpt2_models as models
import gpuless
from gpuless.compile import nvrtc
from gpuless.launch import Build
from rung import dtypes
from rung.models.family import Config, read_config
from rung.models.gpu import prompt_pass, recorded, row_transfer
from rung.models.gpu.batched_prefill import Prefill
from rung.models.gpu.engine import GpuSteps
from rung.models.gpu.launch_estimates import for_few_rows, tiles
from rung.models.gpu.prompt_pass import PromptPass
from rung.models.operations import Rungs, find, prefill_rungs, roles
from rung.models.weights import Linear, read_weights, stack
from rung.operation import Tensors
from rung.rungs import catalogue
from rung.rungs import cuda as rungs_cuda
from rung.rungs.cuda import CudaRung
from written import written

emulated = pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")
CAPACITY = 48
# What a GPU would run: kernels of the ladders, emulated.
KERNELS: Rungs = {
    "embedding": ("3",),
    "layernorm": ("9",),
    "residual_layernorm": ("11",),
    "matmul": ("8",),
    "matmul_gelu": ("2",),
    "gelu": ("2",),
    "relu": ("2",),
    "residual": ("3",),
    "attention": ("24",),
}
FUSED: Rungs = {**KERNELS, "layernorm_matmul": ("2",), "matmul_residual": ("2",)}
APART: Rungs = {name: rungs for name, rungs in KERNELS.items() if name != "residual_layernorm"}
EARLY = ("residual_layernorm", "matmul", "matmul_gelu", "attention")
DEPENDENT: Rungs = {**KERNELS, **{name: prefill_rungs("cuda", "bf16", 64)[name][:1] for name in EARLY}}
THREE_PRODUCTS: Rungs = {name: prefill_rungs("cuda", "f32", 64)[name] for name in ("matmul", "matmul_gelu")}
UNEQUAL = [models.some_ids(n, seed=n) for n in (5, 16, 1, 11)]


def state(folder: Path, dtype: torch.dtype, rows: int, where: str = "cpu") -> tuple[Config, Tensors]:
    """A session's tensors as far as reading prompts touches them; caches full of what must not be read."""
    config = read_config(folder / "config.json")
    weights = read_weights(folder, config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    tensors = stack(weights, dtype, torch.device(where))
    cache = (config.layers, rows, config.NH, CAPACITY, config.HS)
    tensors["wpe"] = tensors["wpe"][:CAPACITY]
    for name in ("k_cache", "v_cache"):
        tensors[name] = torch.full(cache, torch.nan, dtype=dtype, device=where)
    tensors["history"] = torch.full((rows, CAPACITY), -1, dtype=torch.int32, device=where)
    tensors["lengths"] = torch.zeros(rows, dtype=torch.int32, device=where)
    tensors["logits"] = torch.full((rows, config.vocabulary), torch.nan, device=where)
    return config, tensors


def read(folder: Path, dtype: torch.dtype, prompts: list[list[int]], where: str = "cpu", **how: object) -> Tensors:
    config, tensors = state(folder, dtype, len(prompts), where)
    Prefill(config, tensors, len(prompts), CAPACITY, **how).run(prompts)  # type: ignore[arg-type]
    return tensors


def assert_transformers(found: Tensors, folder: Path, prompts: list[list[int]], bound: float = 1e-5) -> None:
    """Logits, and keys and values of each prompt's own tokens."""
    model = models.reference(folder)
    for row, prompt in enumerate(prompts):
        with torch.inference_mode():
            right = model(torch.tensor([prompt]), use_cache=True)
        close(found["logits"][row], right.logits[0, -1], bound)
        for layer, cached in enumerate(right.past_key_values.layers):
            for name, part in (("k_cache", cached.keys), ("v_cache", cached.values)):
                close(found[name][layer, row, :, : len(prompt)], part[0], bound)
    assert found["lengths"].tolist() == [len(p) for p in prompts]
    for row, prompt in enumerate(prompts):
        assert found["history"][row, : len(prompt)].tolist() == prompt


def close(found: torch.Tensor, right: torch.Tensor, bound: float) -> None:
    assert float((found.float().cpu() - right).norm() / right.norm()) < bound


@pytest.mark.parametrize("prompts", [UNEQUAL, UNEQUAL[:1], [models.some_ids(40)]], ids=["unequal", "one", "long"])
def test_caches_and_logits_are_transformers(prompts: list[list[int]]) -> None:
    folder = models.saved()
    assert_transformers(read(folder, torch.float32, prompts), folder, prompts)


@emulated
@pytest.mark.parametrize("rungs", [KERNELS, FUSED, APART], ids=["kernels", "fused", "apart"])
def test_kernels_of_the_ladders_leave_the_same(rungs: Rungs) -> None:
    folder = models.saved(n_layer=2)
    assert_transformers(read(folder, torch.float32, UNEQUAL, rungs=rungs), folder, UNEQUAL)


@emulated
def test_programs_are_compiled_at_the_same_time_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config, tensors = state(models.saved(n_layer=2), torch.float32, 1)
    load, lock, running, most, loaded = gpuless.load, threading.Lock(), 0, 0, []

    def slowly(build: Build) -> object:
        nonlocal running, most
        with lock:
            running, most = running + 1, max(most, running + 1)
            loaded.append(build)
        time.sleep(0.1)  # in which another thread begins
        try:
            return load(build)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(recorded, "processors", lambda: 4)
    monkeypatch.setattr(gpuless, "load", slowly)
    rungs_cuda._emulated.cache_clear()
    Prefill(config, tensors, 1, CAPACITY, rungs=KERNELS).prepared(16)
    assert most > 1 and len(loaded) == len(set(loaded))


@emulated
def test_kernels_that_begin_before_their_input_is_there_leave_the_same() -> None:
    folder = models.saved(n_embd=64, n_head=4, n_inner=128, n_layer=2)
    config, tensors = state(folder, torch.bfloat16, 1)
    prompt = Prefill(config, tensors, 1, CAPACITY, rungs=DEPENDENT)
    prompt.run(UNEQUAL[:1])
    assert_transformers(tensors, folder, UNEQUAL[:1], 2e-2)
    reading = prompt.passes[16]
    assert isinstance(reading, PromptPass)
    for operation in ("residual_layernorm", "matmul", "matmul_gelu", "attention"):
        rung = catalogue.find(reading.rungs_in_use[operation])
        assert isinstance(rung, CudaRung) and all(launch.pdl for launch in rung.header.launches), operation


@emulated
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_new"])
@pytest.mark.parametrize("rungs", [None, KERNELS], ids=["libraries", "kernels"])
def test_every_activation_and_a_scale_by_layer(activation: str, rungs: Rungs | None) -> None:
    folder = models.saved(n_layer=2, activation_function=activation, scale_attn_by_inverse_layer_idx=True)
    assert_transformers(read(folder, torch.float32, UNEQUAL[:2], rungs=rungs), folder, UNEQUAL[:2])


@emulated
def test_heads_of_odd_width_and_rows_that_begin_anywhere() -> None:
    folder = models.saved(n_embd=36, n_head=4, n_inner=50, n_layer=2)
    rungs = {**KERNELS, "attention": ("29",)}
    assert_transformers(read(folder, torch.float32, UNEQUAL[:2], rungs=rungs), folder, UNEQUAL[:2])


@pytest.mark.slow
@emulated
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tensor_cores_in_16_bits(dtype: torch.dtype) -> None:
    folder = models.saved(n_layer=2)
    rungs = {**KERNELS, "matmul": ("14",), "matmul_gelu": ("3",), "attention": ("27",)}
    found = read(folder, dtype, UNEQUAL, rungs=rungs)
    assert_transformers(found, folder, UNEQUAL, 3e-2)


@emulated
def test_three_products_in_float32_are_float32s() -> None:
    folder = models.saved(n_layer=2)
    found = read(folder, torch.float32, UNEQUAL, rungs={**KERNELS, **THREE_PRODUCTS})
    assert_transformers(found, folder, UNEQUAL)


@pytest.mark.parametrize("split", [1, 2, 3, 8])
def test_a_product_shared_by_depth_is_the_same(split: int) -> None:
    operation, values = catalogue.operation("matmul"), {"B": 2, "T": 9, "C": 147, "OC": 37}
    x, weight, bias = (torch.randn(shape) for shape in ((2, 9, 147), (37, 147), (37,)))
    for given in ({"bias": bias}, {}):
        out = torch.full((2, 9, 37), torch.nan)
        tensors = {"x": x, "weight": weight, "out": out, **given}
        real, tuning = dtypes.dtype("f32"), {"SPLIT": split, "BM": 16, "BK": 16}
        catalogue.find("matmul/18").prepare(
            tensors, operation.complete(values), real, device="emulator", tuning=tuning
        ).run()
        close(out, torch.nn.functional.linear(x.double(), weight.double(), given.get("bias", bias * 0).double()), 1e-6)


def test_tiles_are_as_large_as_lets_every_multiprocessor_have_one() -> None:
    tune = tuple(catalogue.find("matmul/18").tune.items())
    large = {"BM": 128, "BN": 128, "num_warps": 8, "SPLIT": 1}
    assert tiles(tune, 1024, 3072, 768, 132) == large  # 192 tiles
    assert tiles(tune, 1024, 2304, 768, 132) == large  # 144
    assert tiles(tune, 512, 768, 3072, 132) == {"BM": 32, "BN": 64, "num_warps": 4, "SPLIT": 1}  # 192
    assert tiles(tune, 64, 768, 3072, 132) == {"BM": 32, "BN": 64, "num_warps": 4, "SPLIT": 8}  # 24, eight parts each
    assert tiles(tune, 64, 768, 768, 132)["SPLIT"] == 4  # parts no flatter than 192
    assert "SPLIT" not in tiles(tuple(catalogue.find("matmul_gelu/5").tune.items()), 64, 3072, 768, 132)


@pytest.mark.parametrize("rows", [1, 16, 64, 384, 512])
@pytest.mark.parametrize("depth, columns", [(768, 2304), (768, 768), (3072, 768), (1600, 6400), (768, 50257)])
def test_few_rows_get_values_that_the_rung_takes(rows: int, depth: int, columns: int) -> None:
    rung, real = catalogue.find("matmul/30"), dtypes.dtype("bf16")
    tuning = for_few_rows(tuple(rung.tune.items()), rows, columns, depth, 132)
    values = rung.operation.complete({"B": 1, "T": rows, "C": depth, "OC": columns})
    assert rung.refusal(values, real, tuning) is None
    assert tuning["GROUPS"] == 1 or rows > 64


@emulated
def test_caches_are_written_in_parts_when_products_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = models.saved(n_layer=5)
    monkeypatch.setattr(prompt_pass, "HELD", 2 * 4 * 16 * 3 * 64 * 4)  # two of five layers
    assert_transformers(read(folder, torch.float32, UNEQUAL), folder, UNEQUAL)


@emulated
def test_a_layer_is_seven_operations() -> None:
    steps = []
    for layers in (3, 4):
        config, tensors = state(models.saved(n_layer=layers), torch.float32, 1)
        steps.append(len(PromptPass(config, tensors, 1, 16, CAPACITY, KERNELS)._steps))
    assert steps[1] - steps[0] == 7


@emulated
def test_a_prompt_does_not_see_the_one_before() -> None:
    folder = models.saved()
    config, tensors = state(folder, torch.float32, 2)
    prefill = Prefill(config, tensors, 2, CAPACITY)
    for prompts in ([models.some_ids(16), models.some_ids(9)], UNEQUAL[:2], [models.some_ids(2), models.some_ids(3)]):
        prefill.run(prompts)
        assert_transformers(tensors, folder, prompts)


def test_behind_a_prompt_are_zeros_and_not_the_prompt_before() -> None:
    config, tensors = state(models.saved(), torch.float32, 3)
    prefill = Prefill(config, tensors, 3, CAPACITY)
    for lengths, bucket in (((16, 9, 16), 16), ((2, 15, 1), 16), ((17, 1, 32), 32), ((33, 48, 5), 48), ((1, 1, 1), 16)):
        prompts = [models.some_ids(n, seed=n) for n in lengths]
        prefill.run([tuple(prompt) for prompt in prompts])
        assert_transformers(tensors, models.saved(), prompts)
        padded = [[*prompt, *[0] * (bucket - len(prompt))] for prompt in prompts]
        assert prefill.passes[bucket].tokens.tolist() == tensors["history"][:, :bucket].tolist() == padded
    assert sorted(prefill.passes) == [16, 32, 48]


@emulated
def test_the_rung_that_serves_is_the_one_asked_for() -> None:
    config, tensors = state(models.saved(n_layer=2), torch.float32, 1)
    used = PromptPass(config, tensors, 1, 16, CAPACITY, KERNELS).rungs_in_use
    for operation in ("embedding", "layernorm", "residual_layernorm", "matmul", "matmul_gelu", "attention"):
        assert used[operation] == find(operation, KERNELS[operation][0]).full_name


@pytest.mark.parametrize("device", ["cuda", "emulator"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("tokens", [16, 1024])
def test_the_table_names_rungs_that_there_are(device: str, dtype: str, tokens: int) -> None:
    for operation, names in prefill_rungs(device, dtype, tokens).items():  # type: ignore[arg-type]
        assert operation in roles()
        rungs = [find(operation, name) for name in names]
        assert all(dtype in rung.dtypes for rung in rungs)
        assert all(("residual" in rung.binds) == ("residual_" in operation) for rung in rungs if "layernorm" in operation)


@pytest.mark.parametrize("real", ["f32", "f16", "bf16"])
def test_the_kernels_beside_the_ladders_compile_for_a_gpu(real: str) -> None:
    number, kept = dtypes.dtype(real), {"keep", "keep_in_eight_bits", "last"}
    kept |= {"embed", "embed_placed", "gate", "best_of_parts", "best_of_all"}  # of Llama's layer
    ways = itertools.product((False, True), repeat=2)  # keys and values in eight bits, there and here
    for build, kernels in (
        (recorded.build(number), kept),
        *((row_transfer.build(number, *w), {"copy_rows"}) for w in ways),
    ):
        cubin = nvrtc.compile_cubin(build, "sm_90")
        assert cubin.resources.keys() == kernels
        assert all((used.spill_stores, used.stack) == (0, 0) for used in cubin.resources.values())


# ---- on a GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-4), (torch.float16, 1e-2), (torch.bfloat16, 4e-2)], ids=str
)
def test_captured_on_a_gpu_caches_and_logits_are_transformers(dtype: torch.dtype, bound: float) -> None:
    folder = models.saved(n_embd=128, n_head=2)
    config, tensors = state(folder, dtype, len(UNEQUAL), "cuda")
    prefill = Prefill(config, tensors, len(UNEQUAL), CAPACITY)
    # The second and third run replay what the first has captured.
    for prompts in (UNEQUAL, UNEQUAL[::-1], [p[:1] for p in UNEQUAL]):
        prefill.run(prompts)
        assert_transformers(tensors, folder, prompts, bound)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_three_products_on_a_gpu_are_float32s() -> None:
    folder = models.saved(n_embd=256, n_layer=2)
    rungs = {**prefill_rungs("cuda", "f32", 64), **THREE_PRODUCTS}
    assert_transformers(read(folder, torch.float32, UNEQUAL, "cuda", rungs=rungs), folder, UNEQUAL, 1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_other_models_on_a_gpu(activation: str) -> None:
    folder = models.saved(n_embd=36, n_inner=50, activation_function=activation, scale_attn_by_inverse_layer_idx=True)
    for prompts in (UNEQUAL, [models.some_ids(40)]):
        assert_transformers(read(folder, torch.float32, prompts, "cuda"), folder, prompts, 1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_text_behind_a_long_prompt_is_transformers() -> None:
    folder = models.saved(n_positions=1024, n_embd=128, n_head=2)
    config = read_config(folder / "config.json")
    weights = read_weights(folder, config, lambda w: Linear(w.float().contiguous()), lambda v: v.float())
    ids = models.some_ids(900)
    ours = [step[0] for step in written(GpuSteps(config, weights, "float32"), [ids], [16])]
    assert ours == models.reference_greedy(folder, ids, 16)
