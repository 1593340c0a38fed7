"""Random GPT-2s for tests, saved once a session as a Hugging Face folder, and transformers' view of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import rung
from rung.models.load import Model

TEXT = (
    "Once upon a time there was a king who had three sons, and the youngest was called Simpleton. "
    "Die Märchen erzählen von Prinzessinnen; 物語は続く。 A dragon 🐉 flew over the 🏰 castle! "
    "The wolf said: \"Little pig, little pig, let me come in.\" 'Not by the hair of my chin,' said the pig. "
) * 4
TINY = {"n_embd": 64, "n_head": 4, "n_layer": 3, "vocab_size": 400, "n_positions": 64}


@cache
def _home() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rung-gpt2-")


@cache
def tokenizer_file() -> Path:
    """A byte-level BPE of 400 tokens, <|endoftext|> the last."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([TEXT], vocab_size=399, special_tokens=[], show_progress=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    folder = Path(_home().name) / "tokenizer"
    folder.mkdir()
    tokenizer.save_model(str(folder))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.json").write_text(json.dumps(tokenizer.get_vocab(with_added_tokens=True)))
    return folder / "tokenizer.json"


def saved(**config: Any) -> Path:
    """The folder of a random GPT-2 with this config, TINY where nothing else is said."""
    return _saved(tuple(sorted({**TINY, **config}.items())))


@cache
def _saved(config: tuple[tuple[str, Any], ...]) -> Path:
    folder = Path(_home().name) / f"model{abs(hash(config))}"
    # Larger weights than a fresh model has: its logits would hardly differ from token to token.
    fields = {"initializer_range": 0.08, "eos_token_id": None, "bos_token_id": None, **dict(config)}
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(**fields))
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "ln_" in name:
            torch.nn.init.normal_(parameter, mean=float("ln_" in name and "weight" in name), std=0.1)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_file().read_bytes())
    return folder


@cache
def reference(folder: Path) -> GPT2LMHeadModel:
    """What transformers makes of a folder."""
    return GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


@cache
def ours(folder: Path, dtype: str = "float32") -> Model:
    """What rung makes of it."""
    return rung.load(folder, dtype=dtype, device="cpu")


def reference_logits(folder: Path, ids: Sequence[int]) -> torch.Tensor:
    """(T, V)"""
    return _reference_logits(folder, tuple(ids))


@cache
def _reference_logits(folder: Path, ids: tuple[int, ...]) -> torch.Tensor:
    with torch.inference_mode():
        return reference(folder)(torch.tensor([list(ids)])).logits[0]


def reference_greedy(folder: Path, ids: Sequence[int], tokens: int, *, use_cache: bool = True) -> list[int]:
    """The likeliest continuation by transformers."""
    return _reference_greedy(folder, tuple(ids), tokens, use_cache)


@cache
def _reference_greedy(folder: Path, ids: tuple[int, ...], tokens: int, use_cache: bool) -> list[int]:
    with torch.inference_mode():
        out = reference(folder).generate(
            torch.tensor([list(ids)]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=tokens,
            do_sample=False,
            use_cache=use_cache,
            pad_token_id=0,
            eos_token_id=None,
        )
    return out[0, len(ids) :].tolist()


def some_ids(count: int, vocabulary: int = 400, seed: int = 0) -> list[int]:
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (count,), generator=generator).tolist()
