"""Random models with Llama's layer for tests, saved once a session as Hugging Face folders, and transformers' view of
them."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import gpt2_models
import rung

TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 400, "max_position_embeddings": 96, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "initializer_range": 0.12, "eos_token_id": None, "bos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}


@cache
def _home() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rung-llama-")


def saved(kind: str = "llama", shard_size: str = "1GB", **fields: Any) -> Path:
    """The folder of a random model of this type, TINY where nothing else is said."""
    return _saved(kind, shard_size, json.dumps({**TINY, **fields}, sort_keys=True))


@cache
def _saved(kind: str, shard_size: str, fields: str) -> Path:
    folder = Path(_home().name) / f"model{abs(hash((kind, shard_size, fields)))}"
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **json.loads(fields)), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    model.save_pretrained(folder, max_shard_size=shard_size)
    (folder / "tokenizer.json").write_bytes(gpt2_models.tokenizer_file().read_bytes())
    return folder


@cache
def reference(folder: Path) -> Any:
    """What transformers makes of a folder."""
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


@torch.no_grad()
def reference_logits(folder: Path, ids: Sequence[int]) -> torch.Tensor:
    """(T, V)"""
    return reference(folder)(torch.tensor([list(ids)])).logits[0]


def reference_greedy(folder: Path, ids: Sequence[int], count: int) -> list[int]:
    given = torch.tensor([list(ids)])
    text = reference(folder).generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return text[0, len(ids) :].tolist()


def ids_of(count: int, seed: int) -> list[int]:
    return torch.randint(300, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def assert_transformers(model: rung.Model, folder: Path, ids: list[int], count: int) -> None:
    """Logits, greedy texts in company, and a score, in float32."""
    right = reference_logits(folder, ids)
    assert (model.logits(ids).cpu() - right).norm() / right.norm() < 2e-5
    prompts = [ids, ids[:3], ids[5:26]]
    for prompt, text in zip(prompts, model.generate(prompts, max_new_tokens=count, temperature=0), strict=True):
        logits = reference_logits(folder, [*prompt, *text.tokens])[len(prompt) - 1 : -1]
        lost = logits.amax(1) - logits.gather(1, torch.tensor(text.tokens)[:, None])[:, 0]
        assert float(lost.max()) < 1e-4 * float(logits.abs().max())
    own = right.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None]).sum()
    assert model.score([ids], context=96, stride=96)[0].logprob == pytest.approx(float(own), rel=2e-5)


def drawn(number: int) -> tuple[str, dict[str, Any]]:
    """A random type and its fields: odd sizes, one to eight groups, biases or not, scaled positions or not."""
    draw = random.Random(number)
    kind = draw.choice(("llama", "llama", "mistral", "qwen2", "qwen3"))
    groups, shared = draw.choice((1, 2, 3, 4, 8)), draw.choice((1, 2, 3, 4))
    if groups * shared > 8:
        shared = 1
    size = draw.choice((64, 80, 96, 128) if draw.random() < 0.3 else (8, 16, 18, 32, 64))
    heads = groups * shared
    fields: dict[str, Any] = {
        "num_key_value_heads": groups, "num_attention_heads": heads, "head_dim": size,
        "hidden_size": heads * (size if kind == "qwen2" else draw.choice((9, 16, 25))),
        "intermediate_size": draw.choice((40, 67, 128, 131)), "num_hidden_layers": draw.choice((1, 2, 3)),
        "vocab_size": draw.choice((301, 400, 512)), "tie_word_embeddings": draw.random() < 0.5,
        "rms_norm_eps": draw.choice((1e-6, 1e-5)), "initializer_range": draw.choice((0.06, 0.12)),
        "rope_parameters": draw.choice((
            {"rope_type": "default", "rope_theta": draw.choice((1e4, 5e5))}, LLAMA3, LINEAR,
        )),
    }  # fmt: skip
    if kind == "llama":
        fields |= {"attention_bias": draw.random() < 0.3, "mlp_bias": draw.random() < 0.3}
    elif kind == "mistral":
        fields["sliding_window"] = draw.choice((None, 5, 16, 70))
    elif kind == "qwen3":
        fields["attention_bias"] = draw.random() < 0.3
    return kind, fields
