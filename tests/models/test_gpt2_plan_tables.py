"""Every plan's logits are transformers', in every dtype; what a plan cannot do it says, and refuses what was asked for."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

import gpt2_models as models
import gpuless
import rung
from rung.errors import RungError
from rung.models.load import Model
from rung.models.operations import PLANS, find, plan_rungs, roles
from rung.rungs import catalogue

emulated = pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")
OF_LLAMA = {name for name in roles() if any(word in name for word in ("rms", "rope", "swiglu", "grouped"))}  # not of GPT-2
FUSED = {name: role.parts for name, role in roles().items() if role.parts}
PLAIN = [name for name in PLANS if name not in ("torch", "best")]
# How far logits may be off, of the largest: one layer, so that rounding is all there is.
BOUND = {"float32": 1e-4, "tf32": 4e-3, "float16": 4e-3, "bfloat16": 3e-2}
OTHERS = ("float16", "tf32")  # slow: bfloat16 and float32 take the same paths


@pytest.fixture(scope="module")
def folder() -> Path:
    return models.saved(n_layer=1, n_head=2)


def on_emulator(folder: Path, dtype: str = "float32", plan: str = "fused", **options: object) -> Model:
    return rung.load(folder, device="emulator", dtype=dtype, plan=plan, **options)  # type: ignore[arg-type]


def error(model: Model, ids: list[int], right: torch.Tensor) -> float:
    return float((model.logits(ids).cpu() - right).abs().max() / right.abs().max().clamp_min(1))


def windowed_logits(folder: Path, ids: list[int], window: int, first: int = 0) -> torch.Tensor:
    """transformers' own, under a mask that hides what lies before the window, but for the first tokens."""
    place = torch.arange(len(ids))
    hidden = (place > place[:, None]) | ((place <= place[:, None] - window) & (place >= first))
    mask = torch.zeros(1, 1, len(ids), len(ids)).masked_fill(hidden, -torch.inf)
    with torch.inference_mode():
        return models.reference(folder)(torch.tensor([ids]), attention_mask=mask).logits[0]


def windowed_greedy(folder: Path, ids: list[int], window: int, tokens: int, first: int = 0) -> list[int]:
    text = list(ids)
    for _ in range(tokens):
        text.append(int(windowed_logits(folder, text, window, first)[-1].argmax()))
    return text[len(ids) :]


# ---- the tables -----------------------------------------------------------------------------------------------------


def test_every_rung_of_every_table_exists() -> None:
    for plan in PLAIN:
        for operation, names in plan_rungs(plan).items():
            assert operation in roles()
            assert [find(operation, name).name for name in names] == list(names)


def test_the_tables_in_the_documents_are_these() -> None:
    lines = (Path(__file__).parents[2] / "docs" / "generation.md").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| plan |"))
    end = next(i for i, line in enumerate(lines) if line.startswith("| operation |"))
    end += sum(1 for _ in itertools.takewhile(lambda line: line.startswith("| "), lines[end:]))
    table = [line for line in lines[first:end] if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    start = next(i for i, row in enumerate(rows) if row[0] == "operation")
    written: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in rows[start][1:]}
    for operation, *cells in rows[start + 2 :]:
        for name, cell in zip(written, cells, strict=True):
            if cell:
                written[name][operation] = tuple(cell.split(", "))
    numbers = {
        plan: {o: tuple(str(find(o, n).number or n) for n in names) for o, names in plan_rungs(plan).items()}
        for plan in PLAIN
    }
    assert written == numbers
    assert {row[0].strip("`") for row in rows[2:start]} == set(PLANS)


def test_every_plan_has_a_rung_of_its_own_choice_for_every_dtype() -> None:
    for name in PLAIN:
        for operation in ("matmul", "attention"):
            rungs = [catalogue.find(f"{operation}/{rung}") for rung in plan_rungs(name)[operation]]
            assert {"f32", "tf32", "f16", "bf16"} <= {dtype for rung in rungs for dtype in rung.dtypes}, name


# ---- logits ---------------------------------------------------------------------------------------------------------


@emulated
@pytest.mark.parametrize("dtype", [pytest.param(d, marks=[pytest.mark.slow] * (d in OTHERS)) for d in BOUND])
@pytest.mark.parametrize("plan", PLAIN)
def test_logits_are_those_of_transformers(folder: Path, plan: str, dtype: str) -> None:
    ids = models.some_ids(7)
    model = on_emulator(folder, dtype, plan)
    assert error(model, ids, models.reference_logits(folder, ids)) < BOUND[dtype]
    used = model.plan.rungs_in_use
    short = {"float32": "f32", "tf32": "tf32", "float16": "f16", "bfloat16": "bf16"}[dtype]
    for operation in ("matmul", "attention"):
        served = catalogue.find(used[operation])
        assert short in served.dtypes
        assert served in [catalogue.find(f"{operation}/{name}") for name in plan_rungs(plan)[operation]]
    left = {"softmax", "relu", "local_attention", "cached_attention"}
    parts = {"gelu", "residual"} if plan == "fused" else set()
    assert used.keys() == set(plan_rungs(plan)) - left - parts - OF_LLAMA


@emulated
@pytest.mark.parametrize("plan", ["naive", "tiled", "fused"])
def test_a_batch_and_odd_widths(plan: str) -> None:
    folder = models.saved(n_layer=2, n_embd=60, n_head=3, vocab_size=401)
    rows = [models.some_ids(5, seed=seed) for seed in (1, 2)]
    logits = on_emulator(folder, plan=plan).transformer.logits(torch.tensor(rows))
    for ours, ids in zip(logits, rows, strict=True):
        right = models.reference_logits(folder, ids)
        assert float((ours - right).abs().max() / right.abs().max()) < BOUND["float32"]


@emulated
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_other_activations(activation: str) -> None:
    folder = models.saved(n_layer=1, activation_function=activation)
    model = on_emulator(folder, plan="fused")
    ids = models.some_ids(4)
    assert error(model, ids, models.reference_logits(folder, ids)) < BOUND["float32"]
    if activation == "relu":
        assert model.plan.rungs_in_use["relu"] == "relu/02_vectors"
    else:
        assert [note.partition(":")[0] for note in model.plan.notes] == ["gelu runs through torch"]


@emulated
@pytest.mark.parametrize("plan", ["tiled", "fused"])
def test_text_with_a_cache_is_that_of_transformers(folder: Path, plan: str) -> None:
    model = on_emulator(folder, plan=plan)
    prompts = [models.some_ids(6), models.some_ids(2)]
    for completion, prompt in zip(model.generate(prompts, temperature=0, max_new_tokens=4), prompts, strict=True):
        assert completion.tokens == models.reference_greedy(folder, prompt, 4)
    assert (
        model.plan.rungs_in_use["cached_attention"]
        == catalogue.find(f"cached_attention/{plan_rungs(plan)['cached_attention'][0]}").full_name
    )
    assert not any("attention" in note for note in model.plan.notes)


# ---- what no rung of the plan does ----------------------------------------------------------------------------------


@emulated
@pytest.mark.parametrize(
    ("plan", "dtype", "width", "heads", "note"),
    [
        ("flash", "float16", 48, 2, "attention/27_tensor_cores needs HS % 16 == 0; attention/29_triton serves."),
        ("flash", "bfloat16", 144, 1, "attention/27_tensor_cores needs HS <= 128; attention/09_joint_tiles stands in."),
        (
            "naive",
            "tf32",
            48,
            2,
            "attention/10_wmma_tf32 needs HS % 16 == 0 and sm >= 80; attention/29_triton stands in.",
        ),
        ("library", "float16", 48, 2, "attention/sdpa_flash runs on a GPU only; attention/sdpa_math serves."),
    ],
)
def test_a_rung_that_refuses_is_replaced_and_the_plan_says_so(
    plan: str, dtype: str, width: int, heads: int, note: str
) -> None:
    folder = models.saved(n_layer=1, n_embd=width, n_head=heads)
    model = on_emulator(folder, dtype, plan)
    ids = models.some_ids(5)
    assert error(model, ids, models.reference_logits(folder, ids)) < BOUND[dtype]
    assert model.plan.notes == [note]


@emulated
@pytest.mark.parametrize(
    ("kernels", "dtype", "reason"),
    [
        (
            {"attention": "27"},
            "float16",
            r"attention/27_tensor_cores needs HS % 16 == 0; attention/29_triton would do\.",
        ),
        ({"attention": "24"}, "bfloat16", r"attention/24_output_in_registers has no bf16 version.*would do\."),
        ({"matmul": "14"}, "float32", r"matmul/14_mma_pipeline has no f32 version; .*; matmul/28_halves would do\."),
        ({"attention": "sdpa_flash"}, "float16", r"attention/sdpa_flash runs on a GPU only\."),
    ],
)
def test_a_rung_that_was_asked_for_is_refused_before_weights_are_read(
    monkeypatch: pytest.MonkeyPatch, kernels: dict[str, str], dtype: str, reason: str
) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("weights were read")

    folder = models.saved(n_layer=1, n_embd=48, n_head=2)
    monkeypatch.setattr("rung.models.plan.read_weights", unexpected)
    with pytest.raises(RungError, match=reason):
        on_emulator(folder, dtype, "naive", kernels=kernels)


@emulated
def test_a_stand_in_computes_the_same() -> None:
    from rung.dtypes import DTYPES

    adds = catalogue.find("layernorm/11")
    values = adds.operation.complete({"B": 1, "T": 1, "C": 5000})
    assert adds.refusal(values, DTYPES["f32"]) is not None
    assert adds.stand_in(values, DTYPES["f32"]) is None


@emulated
def test_a_model_too_wide_for_a_fused_rung_goes_by_its_parts(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    fused = catalogue.find("layernorm/11")
    monkeypatch.setattr(fused, "needs", ("C <= 32",))
    monkeypatch.setattr(fused, "siblings", list)  # later rungs add the residual as well
    model = on_emulator(folder)
    ids = models.some_ids(4)
    assert error(model, ids, models.reference_logits(folder, ids)) < BOUND["float32"]
    assert model.plan.notes == ["layernorm/11_fused_residual needs C <= 32; torch serves."]
    assert "residual_layernorm" not in model.plan.rungs_in_use and "residual" in model.plan.rungs_in_use


@emulated
@pytest.mark.parametrize("swapped", ["matmul", "gelu", "residual", "layernorm"])
def test_a_swapped_rung_serves_where_a_fused_one_would(folder: Path, swapped: str) -> None:
    model = on_emulator(folder, kernels={swapped: "1"})
    ids = models.some_ids(3)
    assert error(model, ids, models.reference_logits(folder, ids)) < BOUND["float32"]
    used = model.plan.rungs_in_use
    assert used[swapped] == f"{swapped}/01_naive"
    split = {fused for fused, parts in FUSED.items() if swapped in parts} - OF_LLAMA
    assert not split & used.keys() and FUSED.keys() - split - OF_LLAMA <= used.keys()
    assert len(model.plan.notes) == len(split) and all(f"given for {swapped}" in n for n in model.plan.notes)


def test_rungs_at_the_wrong_place_are_refused(folder: Path) -> None:
    with pytest.raises(RungError, match="it serves as residual_layernorm=11"):
        on_emulator(folder, kernels={"layernorm": "11"})
    with pytest.raises(RungError, match="it serves as layernorm=8"):
        on_emulator(folder, kernels={"residual_layernorm": "8"})
    with pytest.raises(RungError, match="give a window"):
        on_emulator(folder, kernels={"local_attention": "3"})
    with pytest.raises(RungError, match="runs on local_attention"):
        on_emulator(folder, kernels={"attention": "3"}, window=4)
    with pytest.raises(RungError, match="best attends to all tokens"):
        on_emulator(folder, plan="best", window=4)
    with pytest.raises(RungError, match="window is 0"):
        rung.load(folder, window=0, device="cpu")


# ---- a window -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 3, 8])
def test_a_window_on_the_cpu(window: int) -> None:
    folder = models.saved()
    ids = models.some_ids(12)
    model = rung.load(folder, dtype="float32", window=window, device="cpu")
    assert error(model, ids, windowed_logits(folder, ids, window)) < 1e-5
    # Twelve tokens through torch, then one after the other through the compiled step, where there is one.
    assert model.generate([ids], temperature=0, max_new_tokens=6)[0].tokens == windowed_greedy(folder, ids, window, 6)


def test_the_cpu_without_a_compiler_has_the_window_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rung.models.cpu.plan.available", lambda *_: None)
    folder = models.saved()
    prompts = [models.some_ids(9), models.some_ids(4)]
    model = rung.load(folder, dtype="float32", window=3, device="cpu")
    for one in model.generate(prompts, temperature=0, max_new_tokens=5, batch_size=2):
        assert one.tokens == windowed_greedy(folder, prompts[one.prompt_tokens == 4], 3, 5)


@pytest.mark.slow
@emulated
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("plan", PLAIN)
def test_a_window_on_rungs(folder: Path, plan: str, dtype: str) -> None:
    ids = models.some_ids(11)
    model = on_emulator(folder, dtype, plan, window=4)
    assert error(model, ids, windowed_logits(folder, ids, 4)) < BOUND[dtype]
    assert model.plan.rungs_in_use["local_attention"].startswith("local_attention/")


@emulated
def test_text_through_a_window_of_rungs(folder: Path) -> None:
    ids = models.some_ids(6)
    model = on_emulator(folder, plan="flash", window=3, kernels={"local_attention": "1"})
    assert model.generate([ids], temperature=0, max_new_tokens=4)[0].tokens == windowed_greedy(folder, ids, 3, 4)
    assert model.plan.rungs_in_use["local_attention"] == "local_attention/01_one_kernel"


@emulated
def test_a_window_that_covers_the_context_changes_nothing(folder: Path) -> None:
    ids = models.some_ids(12)
    whole, through = rung.load(folder, dtype="float32", device="cpu"), rung.load(folder, dtype="float32", window=64, device="cpu")
    assert torch.equal(whole.logits(ids), through.logits(ids))
    for plan in ("naive", "fused"):
        full = on_emulator(folder, plan=plan).logits(ids)
        assert error(on_emulator(folder, plan=plan, window=64), ids, full) < 1e-5


@pytest.mark.parametrize(("device", "plan"), [("cpu", None), ("emulator", "naive"), ("emulator", "fused")])
def test_first_tokens_are_seen_beside_the_window(folder: Path, device: str, plan: str | None) -> None:
    if device == "emulator" and gpuless.available() is not None:
        pytest.skip("the emulator needs g++")
    prompts = [models.some_ids(9), models.some_ids(5)]
    model = rung.load(folder, device=device, dtype="float32", plan=plan, window=3, global_tokens=2)
    right = windowed_logits(folder, prompts[0], 3, 2)
    assert error(model, prompts[0], right) < 1e-5
    assert error(model, prompts[0], windowed_logits(folder, prompts[0], 3)) > 1e-3  # they count
    for one in model.generate(prompts, temperature=0, max_new_tokens=4):
        assert one.tokens == windowed_greedy(folder, prompts[one.prompt_tokens == 5], 3, 4, 2)
    if plan is not None:
        used, notes = model.plan.rungs_in_use, model.plan.notes
        assert (
            used["local_attention"] == f"local_attention/{'07_global_keys' if plan == 'naive' else '08_global_tiles'}"
        )
        assert "cached_attention" in used and not any("attention" in note for note in notes)


def test_global_tokens_want_a_window(folder: Path) -> None:
    with pytest.raises(RungError, match=r"1 tokens cannot be global; .* a window"):
        rung.load(folder, global_tokens=1, device="cpu")


# ---- on a GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("plan", PLAIN)
@pytest.mark.parametrize(("width", "heads"), [(768, 12), (1024, 16), (1280, 20), (1600, 25), (1280, 16)])
def test_every_width_on_a_gpu(width: int, heads: int, plan: str, dtype: str) -> None:
    folder = models.saved(
        n_embd=width, n_head=heads, n_layer=2, vocab_size=5003, n_positions=256, initializer_range=0.02
    )
    ids = models.some_ids(67, 5003)
    model = rung.load(folder, device="cuda", dtype=dtype, plan=plan)
    assert error(model, ids, models.reference_logits(folder, ids)) < BOUND[dtype]
    through = rung.load(folder, device="cuda", dtype=dtype, plan=plan, window=16)
    assert error(through, ids, windowed_logits(folder, ids, 16)) < BOUND[dtype]
    if dtype == "float32":
        text = model.generate([ids[:9]], temperature=0, max_new_tokens=8)[0].tokens
        assert text == models.reference_greedy(folder, ids[:9], 8)
