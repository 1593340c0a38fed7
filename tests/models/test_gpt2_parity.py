"""rung's GPT-2 computes what transformers computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gpt2_models as models
import rung
from rung.models.cpu import build
from rung.models.load import Model

# Width, heads, layers: the widths are what kernels depend on.
SIZES = {
    "gpt2": (768, 12, 2),
    "gpt2-medium": (1024, 16, 2),
    "gpt2-large": (1280, 20, 1),
    "gpt2-xl": (1600, 25, 1),
}
VARIANTS = {
    "plain": {},
    "narrow MLP": {"n_inner": 96},
    "odd widths": {"n_embd": 60, "n_head": 5, "n_inner": 37, "vocab_size": 401, "n_positions": 61},
    "one head": {"n_head": 1, "n_layer": 1},
    "erf gelu": {"activation_function": "gelu"},
    "tanh gelu": {"activation_function": "gelu_pytorch_tanh"},
    "relu": {"activation_function": "relu"},
    "unscaled": {"scale_attn_weights": False},
    "scaled by layer": {"scale_attn_by_inverse_layer_idx": True},
    "reordered and upcast": {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True},
    "untied": {"tie_word_embeddings": False},
    "large epsilon": {"layer_norm_epsilon": 1e-2},
}


@pytest.fixture(params=["compiled", "torch"])
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which the CPU takes a step."""
    if request.param == "torch":
        monkeypatch.setattr(build, "begin", lambda *_: None)
    return str(request.param)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    scale = theirs.abs().max().clamp_min(1)
    assert float((ours - theirs).abs().max() / scale) < 1e-4


def greedy(model: Model, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    return [c.tokens for c in model.generate(prompts, temperature=0, max_new_tokens=tokens)]


@pytest.mark.parametrize("size", [size if size == "gpt2" else pytest.param(size, marks=pytest.mark.slow) for size in SIZES])
def test_every_width_gives_the_same_logits_and_the_same_greedy_text(size: str, step: str) -> None:
    C, NH, layers = SIZES[size]
    folder = models.saved(n_embd=C, n_head=NH, n_layer=layers, n_positions=128)
    model = rung.load(folder, dtype="float32", device="cpu")
    ids = models.some_ids(40)
    close(model.logits(ids), models.reference_logits(folder, ids))
    prompt = ids[:8]
    assert greedy(model, [prompt], 64) == [models.reference_greedy(folder, prompt, 64)]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_the_config_is_honoured(variant: str, step: str) -> None:
    folder = models.saved(**VARIANTS[variant])
    model = rung.load(folder, dtype="float32", device="cpu")
    ids = models.some_ids(50)
    close(model.logits(ids), models.reference_logits(folder, ids))
    assert greedy(model, [ids[:5]], 40) == [models.reference_greedy(folder, ids[:5], 40)]


def test_the_cache_changes_nothing(step: str) -> None:
    folder = models.saved(n_positions=128)
    model = rung.load(folder, dtype="float32", device="cpu")
    ids = models.some_ids(8)
    cached = greedy(model, [ids], 64)[0]
    for _ in range(64):
        ids.append(int(model.logits(ids)[-1].argmax()))
    assert cached == ids[8:]
    assert cached == models.reference_greedy(folder, ids[:8], 64, use_cache=False)


@pytest.mark.parametrize("batch_size", [3, 32])
def test_prompts_of_unequal_length_in_a_batch_are_continued_as_if_alone(batch_size: int, step: str) -> None:
    folder = models.saved(n_positions=128)
    model = rung.load(folder, dtype="float32", device="cpu")
    prompts = [models.some_ids(length, seed=length) for length in (1, 30, 3, 9, 64)]
    together = model.generate(prompts, temperature=0, max_new_tokens=64, batch_size=batch_size)
    for prompt, completion in zip(prompts, together, strict=True):
        assert completion.tokens == models.reference_greedy(folder, prompt, 64)


def test_generation_reaches_the_last_position_of_the_context(step: str) -> None:
    folder = models.saved()  # a context of 64
    model = rung.load(folder, dtype="float32", device="cpu")
    prompts = [models.some_ids(length, seed=length) for length in (50, 64, 3)]
    completions = model.generate(prompts, temperature=0, max_new_tokens=200)
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.finish_reason == "context"
        # The last position predicts one token more, which is given but no longer read.
        assert len(prompt) + len(completion.tokens) == 64 + 1
        ids = prompt + completion.tokens
        close(model.logits(ids[:64]), models.reference_logits(folder, ids[:64]))
        if len(prompt) < 64:
            assert completion.tokens[:-1] == models.reference_greedy(folder, prompt, 64 - len(prompt))
        assert completion.tokens[-1] == int(models.reference_logits(folder, ids[:64])[-1].argmax())


def test_sliding_goes_on_with_the_newer_half_of_the_context(step: str) -> None:
    folder = models.saved()
    model = rung.load(folder, dtype="float32", device="cpu")
    prompts = [models.some_ids(60), models.some_ids(10, seed=1)]
    first, second = model.generate(prompts, temperature=0, max_new_tokens=40, slide=True)
    assert (len(first.tokens), len(second.tokens)) == (40, 40)
    ids = prompts[0] + first.tokens
    start = 0
    for end in range(60, 100):
        start = start if end - start <= 64 else end - 32
        assert ids[end] == int(models.reference_logits(folder, ids[start:end])[-1].argmax())
    assert second.tokens == models.reference_greedy(folder, prompts[1], 40)


@pytest.mark.parametrize(("stride", "context"), [(None, None), (16, 48), (64, 64)])
def test_perplexity_is_that_of_transformers(stride: int | None, context: int | None) -> None:
    folder = models.saved()
    model = models.ours(folder)
    found = model.score(models.TEXT, stride=stride, context=context)
    ids = torch.tensor(model.tokenizer.encode(models.TEXT))
    # The recipe of transformers' documentation, with the mean taken over tokens.
    width, step = context or 64, stride or 32
    total, count, done = 0.0, 0, 0
    for begin in range(0, len(ids), step):
        end = min(begin + width, len(ids))
        window, labels = ids[None, begin:end], ids[None, begin:end].clone()
        labels[:, : -(end - done)] = -100
        predicted = int((labels[:, 1:] != -100).sum())
        with torch.inference_mode():
            if predicted:
                total += float(models.reference(folder)(window, labels=labels).loss) * predicted
        count, done = count + predicted, end
        if end == len(ids):
            break
    assert found.predicted == count
    assert found.perplexity == pytest.approx(float(torch.tensor(total / count).exp()), rel=1e-4)


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 2e-3), ("int8", 2e-3)])
def test_smaller_weights_stay_close(dtype: str, bound: float, step: str) -> None:
    folder = models.saved(n_embd=768, n_head=12, n_layer=2, n_positions=128)
    exact, rounded = models.ours(folder), rung.load(folder, dtype=dtype, device="cpu")
    for ids in (models.some_ids(5), models.some_ids(60)):
        right = exact.logits(ids)[-1].log_softmax(-1)
        cache = rounded.transformer.new_cache(1, 128)
        cache.begin(1)
        for part in (ids[:-2], ids[-2:-1], ids[-1:]):
            logits = rounded.transformer.advance([part], cache)[0]
        kl = torch.nn.functional.kl_div(logits.log_softmax(-1), right, log_target=True, reduction="sum")
        assert float(kl) < bound * float(exact.logits(ids)[-1].var())


def test_a_folder_written_by_transformers_is_read(tmp_path: Path) -> None:
    from transformers import GPT2TokenizerFast

    models.reference(models.saved()).save_pretrained(tmp_path)
    vocabulary = models.tokenizer_file().parent
    theirs = GPT2TokenizerFast(str(vocabulary / "vocab.json"), str(vocabulary / "merges.txt"))
    theirs.save_pretrained(tmp_path)
    model = rung.load(tmp_path, dtype="float32", device="cpu")
    assert model.tokenizer.encode(models.TEXT) == theirs.encode(models.TEXT)
    assert model.tokenizer.decode(theirs.encode(models.TEXT)) == models.TEXT
    completion = model.generate("Once upon", temperature=0, max_new_tokens=5)
    assert completion.tokens == models.reference_greedy(tmp_path, theirs.encode("Once upon"), 5)
