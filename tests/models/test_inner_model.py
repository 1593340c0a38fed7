"""The model inside the package: its files, its size, the figures on its card and the English it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

import rung

FOLDER = Path(rung.__file__).parent / "models" / "inner"
DATA = Path(__file__).parents[1] / "data"
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    return GPT2LMHeadModel.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@torch.no_grad()
def perplexity(model: GPT2LMHeadModel, tokenizer: Tokenizer, passages: list[str]) -> tuple[float, int]:
    total, count = 0.0, 0
    for passage in passages:
        ids = torch.tensor([tokenizer.token_to_id(END), *tokenizer.encode(passage).ids])
        for x, y in zip(
            ids[:-1].split(model.config.n_positions), ids[1:].split(model.config.n_positions), strict=True
        ):
            losses = torch.nn.functional.cross_entropy(model(x[None]).logits[0], y, reduction="none")
            total, count = total + losses.double().sum().item(), count + len(y)
    return float(torch.tensor(total / count, dtype=torch.float64).exp()), count


def part_known(text: str) -> float:
    """The share of a text's words that are among the 4,000 most frequent of the books."""
    known = set((DATA / "story_words.txt").read_text().split())
    words = re.findall(r"[a-z]+", text.lower())
    return sum(w in known for w in words) / max(1, len(words))


def test_everything_ships_and_is_small() -> None:
    assert {"config.json", "tokenizer.json", "model.safetensors", "README.md"} <= {
        p.name for p in FOLDER.iterdir()
    }
    assert sum(p.stat().st_size for p in FOLDER.iterdir()) < 12_000_000


def test_shape(model: GPT2LMHeadModel, tokenizer: Tokenizer) -> None:
    config = model.config
    assert config.n_embd == 64 * config.n_head
    assert config.vocab_size == tokenizer.get_vocab_size() == 4096
    assert config.eos_token_id == tokenizer.token_to_id(END)
    assert model.lm_head.weight is model.transformer.wte.weight


def test_weights_have_the_names_of_transformers_and_matrices_eight_bits(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    ours = load_file(FOLDER / "model.safetensors")
    GPT2LMHeadModel.from_pretrained(FOLDER, dtype=torch.bfloat16).save_pretrained(tmp_path)
    theirs = load_file(tmp_path / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        matrix = tensor.ndim == 2 and "wpe" not in name
        assert tensor.dtype == (torch.float8_e4m3fn if matrix else torch.bfloat16)
        assert torch.equal(tensor.bfloat16(), theirs[name])  # e4m3 is part of bfloat16


def test_perplexity_on_the_card(model: GPT2LMHeadModel, tokenizer: Tokenizer) -> None:
    card = (FOLDER / "README.md").read_text()
    stated = re.search(r"excerpt perplexity \| ([\d.]+) a token \(([\d,]+) tokens", card)
    assert stated, "the card states no perplexity of the excerpt"
    passages = (DATA / "held_out_stories.txt").read_text().removesuffix("\n").split(f"\n{END}\n")
    found, count = perplexity(model, tokenizer, passages)
    assert count == int(stated[2].replace(",", ""))
    assert found == pytest.approx(float(stated[1]), rel=5e-4)
    assert found < 60  # English children's prose; a model of word frequencies alone is far above 500


def test_card_agrees_with_the_training_record() -> None:
    card, record = (FOLDER / "README.md").read_text(), json.loads((FOLDER / "training.json").read_text())
    assert f"held-out perplexity | {record['held_out']['perplexity']:.3f} a token" in card
    assert record["data_sha256"] == "af6e4c0b2634d09d96086da7335412b4b936d7deb8abb07444ee3de7c82803d7"
    assert len(re.findall(r"^\| .+ \| \d+ \|$", card, flags=re.MULTILINE)) == 46


@pytest.mark.parametrize(
    "text", ["Once upon a time", "naïve \U0001f409 çà\tet là\n\n", " two  spaces", "1,001 nights!"]
)
def test_tokenizer_gives_any_text_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_greedy_continuation_is_english(model: GPT2LMHeadModel, tokenizer: Tokenizer) -> None:
    ids = torch.tensor([tokenizer.encode("Once upon a time").ids])
    text = tokenizer.decode(model.generate(ids, do_sample=False, min_new_tokens=80, max_new_tokens=80)[0].tolist())
    words = re.findall(r"[a-z]+", text.lower())
    assert part_known(text) >= 0.95, text
    assert len(words) >= 40, text
    assert len(set(words)) >= 15, text  # not one phrase over and over
    assert re.search(r"[a-z][.!?]", text), text  # a sentence ends


def test_random_weights_would_fail_the_check_of_english(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    config = GPT2Config.from_pretrained(FOLDER)
    text = tokenizer.decode(torch.randint(1, config.vocab_size, (80,)).tolist())
    assert part_known(text) < 0.7, text
