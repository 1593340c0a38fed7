"""rung inside transformers: attention, GELU and whole texts are its own, on a CPU and by kernels on the emulator."""

from collections.abc import Iterator

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import rung
from rung import RungError


@pytest.fixture
def model() -> Iterator[GPT2LMHeadModel]:
    torch.manual_seed(1)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=64, vocab_size=97, bos_token_id=0, eos_token_id=0)
    yield GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("which", ["best", "3"])
def test_attention_is_served_by_a_rung(model: GPT2LMHeadModel, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rung.transformers.register("rung", rung=which)
    ids = torch.randint(1, 97, (2, 9))
    with torch.no_grad():
        expected = model(ids).logits
        model.set_attn_implementation("rung")
        calls = []
        usual = rung.ops.attention
        monkeypatch.setattr(rung.ops, "attention", lambda **k: calls.append(k["rung"]) or usual(**k), raising=False)
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-5)
    assert calls == [which] * 2


def test_masks_caches_and_gradients_go_to_torch(model: GPT2LMHeadModel) -> None:
    rung.transformers.register()
    ids = torch.randint(1, 97, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    options = dict(attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0)
    expected, loss = model.generate(ids, **options), model(ids, labels=ids).loss
    loss.backward()
    gradient = model.transformer.wte.weight.grad.clone()
    model.zero_grad()
    model.set_attn_implementation("rung")
    assert torch.equal(model.generate(ids, **options), expected)
    model(ids, labels=ids).loss.backward()
    torch.testing.assert_close(model.transformer.wte.weight.grad, gradient, rtol=1e-4, atol=1e-6)


def test_new_gelu_is_a_rung_through_kernels(model: GPT2LMHeadModel) -> None:
    pytest.importorskip("kernels")
    ids = torch.randint(1, 97, (1, 5))
    with torch.no_grad():
        expected = model(ids).logits
        rung.transformers.kernelize(model, rung="2")
        used = []
        usual = rung.ops.gelu
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rung.ops, "gelu", lambda x, rung: used.append(rung) or usual(x, rung=rung), raising=False)
            torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-5)
    assert used == ["2", "2"]


def test_greedy_text_is_that_of_transformers(model: GPT2LMHeadModel) -> None:
    ids = torch.randint(1, 97, (3, 6))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    options = dict(attention_mask=mask, max_new_tokens=20, do_sample=False, pad_token_id=0)
    expected = model.generate(ids, **options)
    assert torch.equal(model.generate(ids, custom_generate=rung.generate, **options), expected)
    for end in {int(expected[0, 9]), int(expected[2, 12])}:  # a text that ends, and others that go on
        stopped = {**options, "eos_token_id": end, "pad_token_id": 96}
        assert torch.equal(
            model.generate(ids, custom_generate=rung.generate, **stopped), model.generate(ids, **stopped)
        )


def test_new_weights_are_seen(model: GPT2LMHeadModel) -> None:
    ids, options = torch.randint(1, 97, (1, 6)), dict(max_new_tokens=8, do_sample=False, pad_token_id=0)
    model.generate(ids, custom_generate=rung.generate, **options)
    with torch.no_grad():
        model.transformer.wte.weight.mul_(-1)
    assert torch.equal(model.generate(ids, custom_generate=rung.generate, **options), model.generate(ids, **options))


def test_sampled_text_follows_torchs_seed_and_the_settings(model: GPT2LMHeadModel) -> None:
    ids = torch.randint(1, 97, (1, 6))

    def sampled(seed: int, **more: object) -> list[int]:
        torch.manual_seed(seed)
        options = dict(max_new_tokens=12, do_sample=True, pad_token_id=0) | more
        return model.generate(ids, custom_generate=rung.generate, **options)[0].tolist()

    assert sampled(3) == sampled(3) != sampled(4)
    assert sampled(3, top_k=1) == model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[0].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [(dict(num_beams=3), "beams"), (dict(no_repeat_ngram_size=2), "NoRepeatNGram"),
     (dict(return_dict_in_generate=True), "returns only tokens")],
)  # fmt: skip
def test_what_rung_does_not_do_is_refused(model: GPT2LMHeadModel, options: dict[str, object], message: str) -> None:
    with pytest.raises(RungError, match=message):
        model.generate(torch.tensor([[1, 2]]), custom_generate=rung.generate, max_new_tokens=3, pad_token_id=0, **options)
