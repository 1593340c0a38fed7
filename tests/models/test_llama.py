"""Models with Llama's layer against transformers, on a CPU and on the emulator."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gpuless
import llama_models as models
import rung
from rung.errors import RungError
from rung.models import family
from rung.models.gpu import engine, session_table, slots, step_pass
from rung.models.gpu.step_pass import StepPass
from rung.models.operations import step_rungs
from rung.rungs import catalogue

emulated = pytest.mark.skipif(gpuless.available() is not None, reason="the emulator needs g++")
slow = pytest.mark.slow
# One of each kind; the others only in the slow tests.
FIRST = (0, 1, 2, 6, 9)
KINDS = [pytest.param(n, marks=() if n in FIRST else slow) for n in range(40)]


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found - right).norm() / right.norm())


def ids_of(count: int, seed: int, vocabulary: int = 300) -> list[int]:
    return torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_greedy(folder: Path, ids: list[int], tokens: list[int]) -> None:
    """The tokens are transformers', or those of equal logits."""
    right = models.reference_greedy(folder, ids, len(tokens))
    if tokens == right:
        return
    at = next(i for i, (a, b) in enumerate(zip(tokens, right, strict=True)) if a != b)
    logits = models.reference_logits(folder, [*ids, *right[:at]])[-1]
    assert float(logits[right[at]] - logits[tokens[at]]) < 1e-4 * float(logits.abs().max())


def assert_likely(folder: Path, model: rung.Model, prompts: list[list[int]], bound: float) -> None:
    """No token of the greedy texts is less likely than the likeliest by more than a share of the logits' spread."""
    for prompt, written in zip(prompts, model.generate(prompts, max_new_tokens=4, temperature=0), strict=True):
        logits = models.reference_logits(folder, [*prompt, *written.tokens])[len(prompt) - 1 : -1]
        lost = logits.amax(1) - logits.gather(1, torch.tensor(written.tokens)[:, None])[:, 0]
        assert float(lost.max()) < bound * float(logits.std())


@pytest.mark.parametrize("number", KINDS)
def test_random_models_are_transformers(number: int) -> None:
    kind, fields = models.drawn(number)
    folder = models.saved(kind, **fields)
    model = rung.load(folder, dtype="float32", device="cpu")
    ids = ids_of(40, number)
    right = models.reference_logits(folder, ids)
    assert error(model.logits(ids), right) < 2e-5
    prompts = [ids, ids[:3], ids[5:26]]
    for prompt, completion in zip(prompts, model.generate(prompts, max_new_tokens=12, temperature=0), strict=True):
        assert_greedy(folder, prompt, completion.tokens)
    alone, *_ = (model.score([text], context=96, stride=96)[0].logprob for text in (ids, ids))
    together = model.score([ids[3:17], ids, ids[1:]], context=96, stride=96)
    assert together[1].logprob == alone
    own = right.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None]).sum()
    assert alone == pytest.approx(float(own), rel=2e-5)


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 3e-2), ("int8", 5e-2)])
def test_other_formats_stay_close(dtype: str, bound: float) -> None:
    folder = models.saved("qwen3", head_dim=32, intermediate_size=128, initializer_range=0.06)
    model, ids = rung.load(folder, dtype=dtype, device="cpu"), ids_of(40, 3)
    right = models.reference_logits(folder, ids)
    assert error(model.logits(ids), right) < bound
    cache = model.transformer.new_cache(1, 96)
    parts = [ids[:20], ids[20:24], *([token] for token in ids[24:])]  # a pass, a step of several tokens, steps of one
    found = torch.cat([model.transformer.advance([part], cache) for part in parts])
    assert error(found, torch.cat((right[19:20], right[23:]))) < bound
    own = right.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None]).sum()
    assert model.score([ids])[0].logprob == pytest.approx(float(own), rel=bound)


def test_files_in_shards_of_odd_names_and_sizes_are_read_whole(tmp_path: Path) -> None:
    whole, parts = models.saved("qwen2"), models.saved("qwen2", shard_size="100KB")
    assert len(list(parts.glob("*.safetensors"))) > 1
    ids = ids_of(9, 1)
    first, second = (rung.load(folder, dtype="float32", device="cpu").logits(ids) for folder in (whole, parts))
    assert torch.equal(first, second)


def test_hidden_states_embeddings_and_what_is_inside_are_transformers() -> None:
    folder, ids = models.saved("qwen3", head_dim=24), ids_of(17, 5)
    model = rung.load(folder, dtype="float32", device="cpu")
    with torch.no_grad():
        right = models.reference(folder)(torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
    for ours, theirs in zip(model.hidden_states(ids), right.hidden_states, strict=True):
        assert error(ours, theirs) < 1e-5
    found = model.inside(ids)
    assert set(found) == {f"blocks.{i}.hook_resid_post" for i in range(3)}
    everything = model.inside(ids, "*")
    assert "hook_pos_embed" not in everything
    assert everything["blocks.1.mlp.hook_post"].shape == (1, 17, 96)
    assert error(everything["blocks.1.attn.hook_pattern"], right.attentions[1]) < 1e-5
    text = "Once upon a time"
    states = model.hidden_states(text, [-1])[0][0]
    torch.testing.assert_close(model.embed(text), states.mean(0))


def test_drafts_of_a_small_model_leave_greedy_text_as_it_is() -> None:
    large, small = models.saved(num_hidden_layers=4), models.saved(num_hidden_layers=1)
    model = rung.load(large, dtype="float32", device="cpu", draft=small)
    ids = ids_of(9, 2)
    assert_greedy(large, ids, model.generate([ids], max_new_tokens=30, temperature=0)[0].tokens)


def test_a_text_ends_with_any_of_several_end_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models.saved(), folder)
    ids = ids_of(6, 7)
    text = rung.load(folder, dtype="float32", device="cpu").generate([ids], max_new_tokens=20, temperature=0)[0].tokens
    late, early = text[12], text[5]
    for name, value in (("config.json", late), ("generation_config.json", [late, early])):
        fields = json.loads((folder / name).read_text()) | {"eos_token_id": value}
        (folder / name).write_text(json.dumps(fields))
    model = rung.load(folder, dtype="float32", device="cpu")
    assert set(model.config.eos) == {late, early}
    done = model.generate([ids], max_new_tokens=20, temperature=0)[0]
    assert done.finish_reason == "stop"
    assert done.tokens == text[: next(i for i, t in enumerate(text) if t in (late, early)) + 1][: len(done.tokens)]
    assert len(done.tokens) <= 6


@emulated
@pytest.mark.parametrize(
    ("plan", "kind", "fields"),
    [
        pytest.param("naive", "qwen3", {"head_dim": 24}),
        pytest.param("best", "qwen3", {"head_dim": 24}),
        pytest.param("fused", "llama", {"attention_bias": True, "rope_parameters": models.LLAMA3}, marks=slow),
        pytest.param("best", "mistral", {"sliding_window": 5}, marks=slow),
        pytest.param("naive", "mistral", {"sliding_window": 5}, marks=slow),
    ],
)
def test_plans_of_rungs_and_steps_of_operations_write_and_score(plan: str, kind: str, fields: dict[str, Any]) -> None:
    folder, ids = models.saved(kind, num_hidden_layers=2, **fields), ids_of(20, 11)
    model = rung.load(folder, device="emulator", plan=plan, dtype="float32")
    right = models.reference_logits(folder, ids)
    assert error(model.logits(ids), right) < 1e-5
    prompts = [ids, ids[:4]]
    for prompt, completion in zip(prompts, model.generate(prompts, max_new_tokens=5, temperature=0), strict=True):
        assert_greedy(folder, prompt, completion.tokens)
    own = right.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None]).sum()
    assert model.score([ids])[0].logprob == pytest.approx(float(own), rel=1e-5)
    if plan == "naive":
        assert {"rmsnorm", "rope", "swiglu"} <= model.plan.rungs_in_use.keys()


@emulated
@pytest.mark.parametrize(
    ("dtype", "count", "own"),
    [
        ("bfloat16", 2, {"rmsnorm_matmul", "matmul_residual"}),
        ("bfloat16", 9, {"rmsnorm_matmul", "matmul_residual"}),
        ("bfloat16", 17, {"rmsnorm", "matmul", "rmsnorm_residual"}),
        pytest.param("float32", 9, {"rmsnorm", "matmul", "rmsnorm_residual"}, marks=slow),
    ],
)
def test_the_rungs_of_a_gpu_write_few_texts_and_many(
    dtype: str, count: int, own: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[set[str]] = []

    class Seen(StepPass):
        def end(self, x: torch.Tensor) -> None:
            super().end(x)
            used.append(set(self.rungs_in_use))

    monkeypatch.setattr("rung.models.gpu.session.StepPass", Seen)
    # The emulator's own table leaves products to torch.
    monkeypatch.setattr(step_pass, "step_rungs", lambda device, dtype, rows: step_rungs("cuda", dtype, rows))
    folder, ids = models.saved("qwen3", num_hidden_layers=2, head_dim=32, intermediate_size=128), ids_of(20, 3)
    prompts = [ids[: 4 + i % 9] for i in range(count)]
    model = rung.load(folder, device="emulator", plan="best", dtype=dtype)
    assert_likely(folder, model, prompts, 1e-4 if dtype == "float32" else 0.1)
    assert used and all(found == own | {"rope_cached_attention"} for found in used)


@pytest.mark.slow
@emulated
def test_rows_grow_with_their_texts_and_the_newest_wait_when_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[int, int]] = []
    waited: list[int] = []

    class Small(slots.GpuBackend):
        def __init__(self, transformer: Any, engine: Any, count: int, **given: Any) -> None:
            super().__init__(transformer, engine, 8, exact=False, room=128)
            usual = self._sessions.open

            def watched(rows: int, reach: int = 0) -> Any:
                opened.append((rows, self._engine.capacity(reach)))
                return usual(rows, reach)

            self._sessions.open = watched  # type: ignore[method-assign]

        def _set_back(self, bank: Any) -> None:
            waited.append(len(bank.active))
            super()._set_back(bank)

    monkeypatch.setattr(slots, "GpuBackend", Small)
    monkeypatch.setattr(session_table, "LEAST_TOKENS", 16)
    monkeypatch.setattr(session_table, "GROWN_AHEAD", 16)
    monkeypatch.setattr(engine, "GRANULE", 16)
    folder, ids = models.saved("qwen3", num_hidden_layers=1), ids_of(20, 3)
    model = rung.load(folder, device="emulator", plan="best", dtype="float32")
    prompts = [ids[: 4 + i] for i in range(6)]
    for prompt, text in zip(prompts, model.generate(prompts, max_new_tokens=30, temperature=0), strict=True):
        assert_greedy(folder, prompt, text.tokens)
    assert max(rows * tokens for rows, tokens in opened) <= 128
    assert len({tokens for _, tokens in opened}) > 1 and waited


@emulated
def test_large_products_of_many_rows_are_the_librarys_and_attentions_blocks_are_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[dict[str, str]] = []
    tuned: list[dict[str, int] | None] = []
    tuning = StepPass._tuning

    class Seen(StepPass):
        def _tuning(self, operation: str, rung: Any, values: Any) -> dict[str, int] | None:
            tuned.append(tuning(self, operation, rung, values))
            return tuned[-1]

        def end(self, x: torch.Tensor) -> None:
            super().end(x)
            used.append(self.rungs_in_use)

    monkeypatch.setattr("rung.models.gpu.session.StepPass", Seen)
    monkeypatch.setattr(step_pass, "step_rungs", lambda device, dtype, rows: step_rungs("cuda", dtype, rows))
    few, groups = catalogue.find("matmul/30"), catalogue.find("rope_cached_attention/2")
    for rung_, small in (
        (few, replace(few.header.model, fits=("not step or OC * C < 64 * 128",))),
        (groups, replace(groups.header.model, untuned=(("B * NKV >= 2 * 17", {"WARPS": 4, "LOADS": 2}),))),
    ):
        monkeypatch.setattr(rung_, "header", replace(rung_.header, model=small))
    folder, ids = models.saved("qwen3", num_hidden_layers=1, head_dim=32, intermediate_size=128), ids_of(20, 3)
    prompts = [ids[: 4 + i % 9] for i in range(17)]
    model = rung.load(folder, device="emulator", plan="best", dtype="bfloat16")
    assert_likely(folder, model, prompts, 0.1)
    assert used and all("matmul/30_dependent_launch" not in found["matmul"] for found in used)
    assert {"WARPS": 4, "LOADS": 2} in tuned


@emulated
def test_a_step_is_launches_of_rungs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[StepPass] = []

    class Seen(StepPass):
        def by_torch(self, *given: object) -> torch.Tensor:
            raise AssertionError("a step calls torch")

        def end(self, x: torch.Tensor) -> None:
            super().end(x)
            passes.append(self)

    monkeypatch.setattr("rung.models.gpu.session.StepPass", Seen)
    folder, ids = models.saved("qwen3", num_hidden_layers=2, head_dim=24), ids_of(20, 11)
    rung.load(folder, device="emulator", plan="best", dtype="float32").generate([ids], max_new_tokens=3, temperature=0)
    assert passes
    for one in passes:
        assert {name.partition("/")[0] for name in one.rungs_in_use.values()} == {
            "rmsnorm_matmul", "matmul_residual", "rope_cached_attention",
        }  # fmt: skip
        assert len(one._steps) == 5 * 2 + 5  # five in a layer; the embedding, the head, the likeliest token in two, or in other two


def test_a_text_begins_as_its_tokenizer_says(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models.saved(bos_token_id=399), folder)
    settings = json.loads((folder / "tokenizer.json").read_text())
    begin = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    settings["post_processor"] = {
        "type": "TemplateProcessing", "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [399], "tokens": ["<|endoftext|>"]}
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    model = rung.load(folder, dtype="float32", device="cpu")
    ids = model.tokenizer.encode("Once upon")
    assert 399 not in ids
    score = model.score("Once upon", per_token=True)
    assert score.token_ids == (399, *ids)
    same = model.generate([[399, *ids]], max_new_tokens=6, temperature=0)[0].tokens
    assert model.generate("Once upon", max_new_tokens=6, temperature=0).tokens == same


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
        ("llama", {"rope_scaling": [2]}, "rope_scaling"),
        ("llama", {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ("llama", {"rope_parameters": {"rope_theta": 0.0}}, "rope_theta"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "sliding_window"),
        ("mistral", {"num_key_value_heads": 3}, "3"),
        ("llama", {"head_dim": 7}, "head_dim"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"rms_norm_eps": "small"}, "rms_norm_eps"),
        ("llama", {"vocab_size": None}, "vocab_size"),
        ("gemma", {}, "gemma"),
    ],
)
def test_options_and_types_that_it_lacks_are_refused_by_name(
    kind: str, fields: dict[str, Any], named: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**models.TINY, "model_type": kind, **fields}))
    with pytest.raises(RungError, match=named):
        rung.load(tmp_path, device="cpu")


def test_known_sizes_have_the_published_number_of_weights() -> None:
    millions = {"llama-3.2-1b": 1235.8, "qwen3-0.6b": 596.0, "smollm2-135m": 134.5, "tinyllama-1.1b": 1100.0}
    for name, count in millions.items():
        config = family.config_of(name)
        shapes = (spec.stored(config) for item in family.find("llama").tensors(config) for spec in [item])
        layered = [spec.layered for spec in family.find("llama").tensors(config)]
        total = sum(
            math.prod(shape) * (config.layers if many else 1)
            for shape, many, spec in zip(shapes, layered, family.find("llama").tensors(config), strict=True)
            if not spec.same_as
        )
        assert total / 1e6 == pytest.approx(count, rel=1e-3)
