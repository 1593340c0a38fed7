"""Trains the small GPT-2 that ships inside rung, on one GPU, in minutes.

    python tools/train_story_model.py tokenizer --data stories.txt.xz --out DIR --excerpt FILE
    python tools/train_story_model.py train     --data stories.txt.xz --out DIR --state DIR --minutes 2
    python tools/train_story_model.py card      --out DIR

Fourteen megabytes of text are few: a model of ten million weights knows them by heart long before it has
used up the minutes. So the minutes go into larger, strongly regularised teachers of gpt2's size first, which
also read the text in randomly coarser and finer tokens (BPE dropout). The small model then learns their averaged
predictions, on the text and on texts that the first teacher writes. Its matrices are rounded to eight bits
(e4m3) in every step, so that the weights as stored are the ones that were trained. Two passages of every book are
never trained on: one chooses among weights ("validation"), the other gives the figures that are reported ("held-out").

`train` can be interrupted; the same command line goes on where the last saved state was. `--only 2` trains the
second teacher alone, on another GPU at the same time. BPE dropout draws from the tokenizers library's own unseeded
generator, everything else from --seed.
"""

from __future__ import annotations

import argparse
import copy
import csv
import hashlib
import json
import lzma
import math
import platform
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn

END = "<|endoftext|>"
PROMPTS = ("Once upon a time", "There was once a king who had three daughters.", "The old witch")
EXCERPT_BOOKS = (0, 13, 22, 44)  # Oz, Lang's Orange Fairy Book, Old Mother West Wind, Grimm
EXCERPT_CHARACTERS = 2200


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    context: int = 512
    vocabulary: int = 4096

    @property
    def heads(self) -> int:
        return self.width // 64

    @classmethod
    def named(cls, name: str, context: int, vocabulary: int) -> Shape:
        """From LAYERSxWIDTH."""
        layers, width = map(int, name.split("x"))
        return cls(layers, width, context, vocabulary)


@dataclass(frozen=True)
class Recipe:
    """How one model is trained."""

    shape: Shape
    minutes: float
    batch: int
    dropout: float
    seed: int
    subword_noise: float = 0.0  # part of the windows that start out with BPE dropout
    matrix_rate: float = 0.02  # Muon, for the weight matrices
    other_rate: float = 2e-3  # AdamW, for embeddings, biases and norms
    matrix_decay: float = 0.05
    warmup_steps: int = 150
    decay_from: float = 0.35  # part of the time after which the rate falls, linearly to 0
    averaging: float = 0.995  # weight of the past in the running mean of the weights


# ---------------------------------------------------------------- the text


@dataclass(frozen=True)
class Split:
    train: list[str]  # chapters and tales, or what the two passages leave of them
    validation: list[str]  # one passage of every book
    held_out: list[str]  # another one


def read_text(path: Path) -> tuple[str, str]:
    raw = path.read_bytes()
    data = lzma.decompress(raw) if path.suffix == ".xz" else raw
    return data.decode("utf-8"), hashlib.sha256(data).hexdigest()


def is_heading(paragraph: str) -> bool:
    words = paragraph.split()
    if len(paragraph) > 60 or not paragraph[0].isupper() or not paragraph[-1].isalnum():
        return False
    return all(w[0].isupper() or len(w) <= 4 for w in words)


def split_text(text: str, seed: int) -> Split:
    """A passage of 1 % (validation) and one of 1.5 % (held-out) of every book, in different halves of it."""
    split = Split([], [], [])
    for number, book in enumerate(text.split(f"\n{END}\n")):
        chance = random.Random(f"{seed}/{number}")
        paragraphs = [p for p in book.strip("\n").split("\n\n") if p.strip()]
        halves = [range(len(paragraphs) // 2), range(len(paragraphs) // 2, len(paragraphs))]
        chance.shuffle(halves)
        chosen: dict[int, int] = {}
        for kind, (passages, part, half) in enumerate(
            ((split.validation, 0.010, halves[0]), (split.held_out, 0.015, halves[1]))
        ):
            target = max(1500, int(part * len(book)))
            first = half.start + chance.randrange(max(1, len(half) * 3 // 4))
            last, length = first, 0
            while last < half.stop and length < target:
                length += len(paragraphs[last]) + 2
                chosen[last] = kind
                last += 1
            passages.append("\n\n".join(paragraphs[first:last]))
        piece: list[str] = []
        for i, paragraph in enumerate(paragraphs):
            if piece and (i in chosen or is_heading(paragraph)):
                split.train.append("\n\n".join(piece))
                piece = []
            if i not in chosen:
                piece.append(paragraph)
        if piece:
            split.train.append("\n\n".join(piece))
    return split


def excerpt(held_out: Sequence[str]) -> list[str]:
    """The opening of a few held-out passages: small enough to live beside the tests."""
    openings = []
    for number in EXCERPT_BOOKS:
        paragraphs = held_out[number % len(held_out)].split("\n\n")
        size = 1
        while size < len(paragraphs) and len("\n\n".join(paragraphs[: size + 1])) <= EXCERPT_CHARACTERS:
            size += 1
        openings.append("\n\n".join(paragraphs[:size]))
    return openings


def train_tokenizer(texts: Sequence[str], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str], dropout: float | None = None) -> Tensor:
    """All texts one after the other, each after an end-of-text token."""
    tokenizer.model.dropout = dropout
    end = tokenizer.get_vocab()[END]
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(list(texts)):
        ids.append(end)
        ids.extend(encoding.ids)
    tokenizer.model.dropout = None
    return torch.tensor(ids)


class Windows:
    """Draws training windows: three of four begin anywhere, the fourth at a paragraph."""

    def __init__(self, stream: Tensor, newline: int, context: int, device: torch.device) -> None:
        starts = torch.nonzero((stream[:-1] == newline) & (stream[1:] == newline)).flatten() + 2
        self.context = context
        self.last = len(stream) - context - 1
        self.stream = stream.to(device)
        self.paragraphs = starts[starts <= self.last].to(device)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        device = self.stream.device
        start = torch.randint(self.last + 1, (count,), generator=generator, device=device)
        chosen = torch.randint(len(self.paragraphs), (count // 4,), generator=generator, device=device)
        start[: count // 4] = self.paragraphs[chosen]
        window = self.stream[start[:, None] + torch.arange(self.context + 1, device=device)]
        return window[:, :-1], window[:, 1:]


def evaluation_rows(tokenizer: Tokenizer, passages: Sequence[str], context: int) -> tuple[Tensor, Tensor]:
    """Each passage after an end-of-text token, cut into rows of `context`; targets are -100 where padded."""
    inputs, targets = [], []
    for passage in passages:
        ids = [tokenizer.get_vocab()[END], *tokenizer.encode(passage).ids]
        for start in range(0, len(ids) - 1, context):
            x, y = ids[start : start + context], ids[start + 1 : start + context + 1]
            inputs.append(x[: len(y)] + [0] * (context - len(y)))
            targets.append(y + [-100] * (context - len(y)))
    return torch.tensor(inputs), torch.tensor(targets)


# ---------------------------------------------------------------- the model, named as transformers names it


def rounded(weight: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The weight as it will be stored; gradients pass as if it were not rounded."""
    return weight if dtype is None else weight + (weight.to(dtype).to(weight.dtype) - weight).detach()


class Conv1D(nn.Module):
    """A linear layer whose weight is (in, out), as GPT-2 stores it."""

    def __init__(self, fan_in: int, fan_out: int, std: float, stored: torch.dtype | None) -> None:
        super().__init__()
        self.stored = stored
        self.weight = nn.Parameter(torch.randn(fan_in, fan_out) * std)
        self.bias = nn.Parameter(torch.zeros(fan_out))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, rounded(self.weight, self.stored).t(), self.bias)


class Attention(nn.Module):
    def __init__(self, shape: Shape, dropout: float, stored: torch.dtype | None) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, dropout
        self.c_attn = Conv1D(shape.width, 3 * shape.width, 0.02, stored)
        self.c_proj = Conv1D(shape.width, shape.width, 0.02 / math.sqrt(2 * shape.layers), stored)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.heads, 64).permute(2, 0, 3, 1, 4)  # each (B, NH, T, 64)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        y = self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return F.dropout(y, self.dropout, self.training)


class Feedforward(nn.Module):
    def __init__(self, shape: Shape, dropout: float, stored: torch.dtype | None) -> None:
        super().__init__()
        self.dropout = dropout
        self.c_fc = Conv1D(shape.width, 4 * shape.width, 0.02, stored)
        self.c_proj = Conv1D(4 * shape.width, shape.width, 0.02 / math.sqrt(2 * shape.layers), stored)

    def forward(self, x: Tensor) -> Tensor:
        y = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return F.dropout(y, self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, shape: Shape, dropout: float, stored: torch.dtype | None) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.width)
        self.attn = Attention(shape, dropout, stored)
        self.ln_2 = nn.LayerNorm(shape.width)
        self.mlp = Feedforward(shape, dropout, stored)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT2(nn.Module):
    """`stored` is the format that its matrices are rounded to in every pass."""

    def __init__(self, shape: Shape, dropout: float = 0.0, stored: torch.dtype | None = None) -> None:
        super().__init__()
        self.shape, self.dropout, self.stored = shape, dropout, stored
        self.wte = nn.Embedding(shape.vocabulary, shape.width)
        self.wpe = nn.Embedding(shape.context, shape.width)
        self.h = nn.ModuleList(Block(shape, dropout, stored) for _ in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.width)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.01)

    def forward(self, ids: Tensor) -> Tensor:
        wte = rounded(self.wte.weight, self.stored)
        x = F.embedding(ids, wte) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        x = F.dropout(x, self.dropout, self.training)
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), wte)


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def compiled(
    function: Callable[..., Tensor], device: torch.device, attempt: Callable[[Callable[..., Tensor]], object]
) -> Callable[..., Tensor]:
    """Compiled on a GPU; the function itself where there is none, or where an attempt to use it fails."""
    if device.type == "cuda":
        fast = torch.compile(function, dynamic=False)
        try:
            attempt(fast)
            return fast
        except Exception as error:  # slower training is better than none
            print(f"torch.compile failed, going on without: {type(error).__name__}: {error}", flush=True)
    return function


@torch.no_grad()
def token_losses(model: GPT2, rows: tuple[Tensor, Tensor], half: bool = True) -> Tensor:
    """Negative log-likelihood in nats of every target that is not padding."""
    device = model.wte.weight.device
    model.eval()
    losses = []
    for x, y in zip(torch.split(rows[0], 16), torch.split(rows[1], 16), strict=True):
        with torch.autocast(device.type, torch.bfloat16, enabled=half and device.type == "cuda"):
            logits = model(x.to(device)).float()
        y = y.to(device)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none", ignore_index=-100)
        losses.append(loss[y.flatten() != -100])
    return torch.cat(losses)


# ---------------------------------------------------------------- the optimiser


def orthogonalised(matrices: Tensor) -> Tensor:
    """Moves the singular values of a batch of matrices towards 1: five quintic Newton-Schulz steps."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    result: Tensor = x if wide else x.mT
    return result.float()


class Optimiser:
    """Muon for the blocks' matrices (query, key and value apart), AdamW for everything else."""

    def __init__(self, model: GPT2, recipe: Recipe) -> None:
        self.recipe = recipe
        matrices = [p for p in model.h.parameters() if p.ndim == 2]
        known = {id(p) for p in matrices}
        self.others = [p for p in model.parameters() if id(p) not in known]
        self.groups: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for p in matrices:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.momenta: dict[tuple[int, ...], Tensor] = {}
        self.adam = torch.optim.AdamW(
            [
                {"params": [p for p in self.others if p.ndim == 2], "weight_decay": 0.01},
                {"params": [p for p in self.others if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=recipe.other_rate,
            betas=(0.9, 0.98),
            fused=self.others[0].is_cuda,
        )

    @staticmethod
    def pieces(t: Tensor) -> tuple[Tensor, ...]:
        return t.chunk(3, dim=1) if t.shape[1] == 3 * t.shape[0] else (t,)

    @torch.no_grad()
    def step(self, factor: float) -> None:
        nn.utils.clip_grad_norm_(self.others, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.recipe.other_rate * factor
        self.adam.step()
        rate = self.recipe.matrix_rate * factor
        for shape, parameters in self.groups.items():
            gradient = torch.stack([g for p in parameters if p.grad is not None for g in self.pieces(p.grad)])
            momentum = self.momenta.setdefault(shape, torch.zeros_like(gradient))
            momentum.lerp_(gradient, 0.05)
            update = orthogonalised(gradient.lerp_(momentum, 0.95))
            scale = math.sqrt(max(1.0, update.shape[-1] / update.shape[-2]))  # (in, out)
            targets = [t for p in parameters for t in self.pieces(p.data)]
            torch._foreach_mul_(targets, 1 - rate * self.recipe.matrix_decay)
            torch._foreach_add_(targets, list(update.unbind()), alpha=-rate * scale)
        for parameters in (self.others, *self.groups.values()):
            for p in parameters:
                p.grad = None

    def state(self) -> dict[str, Any]:
        return {"adam": self.adam.state_dict(), "momenta": self.momenta}

    def load(self, state: dict[str, Any]) -> None:
        self.adam.load_state_dict(state["adam"])
        self.momenta = state["momenta"]


# ---------------------------------------------------------------- training


# count, generator, progress -> ids, what follows each, and the teachers' probabilities where there are teachers
Draw = Callable[[int, torch.Generator, float], tuple[Tensor, ...]]


@dataclass
class Trained:
    weights: dict[str, Tensor]
    record: dict[str, Any]


def save_state(path: Path, state: dict[str, Any]) -> None:
    partial = path.with_suffix(".part")
    torch.save(state, partial)
    partial.replace(path)


def rate_factor(recipe: Recipe, step: int, progress: float) -> float:
    warm = min(1.0, (step + 1) / recipe.warmup_steps)
    left = (1 - progress) / (1 - recipe.decay_from)
    return warm * max(0.01, min(1.0, left))


def train_model(
    name: str,
    recipe: Recipe,
    draw: Draw,
    validation: tuple[Tensor, Tensor],
    state_file: Path,
    device: torch.device,
    *,
    stored: torch.dtype | None = None,
    taught: bool = False,
) -> Trained:
    """Trains by the clock; the weights kept are the running mean that did best on the validation rows."""
    seconds = 60 * recipe.minutes
    torch.manual_seed(recipe.seed)
    generator = torch.Generator(device).manual_seed(recipe.seed)
    model = GPT2(recipe.shape, recipe.dropout, stored).to(device)
    optimiser = Optimiser(model, recipe)
    parameters: list[Tensor] = list(model.parameters())
    average = copy.deepcopy(model).requires_grad_(False)
    averaged: list[Tensor] = list(average.parameters())
    step, elapsed, caution = 0, 0.0, 1.0
    best: tuple[float, dict[str, Tensor]] = (math.inf, {})
    curve: list[dict[str, float]] = []

    if state_file.exists():
        saved = torch.load(state_file, map_location=device, weights_only=True)
        if saved["done"]:
            print(f"{name}: already trained, validation loss {saved['best'][0]:.4f}", flush=True)
            return Trained(saved["best"][1], saved["record"])
        model.load_state_dict(saved["model"])
        average.load_state_dict(saved["average"])
        optimiser.load(saved["optimiser"])
        generator.set_state(saved["generator"].cpu())
        step, elapsed, caution = saved["step"], saved["elapsed"], saved["caution"]
        best, curve = (saved["best"][0], saved["best"][1]), saved["curve"]
        print(f"{name}: resumed at step {step}, {elapsed:.0f} s", flush=True)

    def plain(x: Tensor, y: Tensor) -> Tensor:
        with autocast(device):
            logits = model(x)
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    def as_taught(x: Tensor, y: Tensor, p: Tensor) -> Tensor:
        with autocast(device):
            logits = model(x)
        guess = F.log_softmax(logits.float(), dim=-1)
        truth = -guess.gather(-1, y[..., None]).mean()
        return 0.1 * truth - 0.9 * (p.float() * guess).sum(-1).mean()

    def attempt(loss_of: Callable[..., Tensor]) -> None:
        for _ in range(2):
            torch.autograd.backward(loss_of(*draw(recipe.batch, generator, 0.0)))
        model.zero_grad(set_to_none=True)

    def synchronise() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    model.train()
    began = time.perf_counter()
    loss_of = compiled(as_taught if taught else plain, device, attempt)
    synchronise()
    preparation = time.perf_counter() - began
    print(f"{name}: {sum(p.numel() for p in parameters):,} weights, ready after {preparation:.0f} s", flush=True)

    clock = time.perf_counter() - elapsed
    every = seconds / 24
    next_look = elapsed + every
    running, since = torch.zeros((), device=device), 0
    while elapsed < seconds:
        progress = min(1.0, elapsed / seconds)
        loss = loss_of(*draw(recipe.batch, generator, progress))
        torch.autograd.backward(loss)
        optimiser.step(caution * rate_factor(recipe, step, progress))
        # A short memory at first, else the start would weigh on the mean for long.
        with torch.no_grad():
            torch._foreach_lerp_(averaged, parameters, max(1 - recipe.averaging, 1 / (step + 1)))
        running += loss.detach()
        step, since = step + 1, since + 1
        if since % 20 == 0:
            synchronise()
        elapsed = time.perf_counter() - clock
        if elapsed < next_look and elapsed < seconds:
            continue
        next_look = elapsed + every
        held_out_loss = token_losses(average, validation).mean().item()
        if not math.isfinite(held_out_loss):
            caution /= 2
            if caution < 0.1 or not best[1]:
                raise SystemExit(f"{name}: the loss became {held_out_loss} at step {step}; lower the learning rate.")
            print(f"{name}: loss {held_out_loss} at step {step}: back to the best weights, half the rate", flush=True)
            model.load_state_dict(best[1])
            average.load_state_dict(best[1])
            optimiser = Optimiser(model, recipe)
        elif held_out_loss < best[0]:
            best = (held_out_loss, {k: v.clone() for k, v in average.state_dict().items()})
        curve.append(
            {
                "step": step,
                "seconds": round(elapsed, 1),
                "train": round((running / since).item(), 4),
                "validation": round(held_out_loss, 4),
            }
        )
        running.zero_()
        since = 0
        rate = step * recipe.batch * recipe.shape.context / elapsed
        print(f"{name} {json.dumps(curve[-1])} {rate / 1e6:.2f} M tokens/s", flush=True)
        if len(curve) % 4 == 0:
            save_state(
                state_file,
                {
                    "done": False,
                    "model": model.state_dict(),
                    "average": average.state_dict(),
                    "optimiser": optimiser.state(),
                    "generator": generator.get_state(),
                    "step": step,
                    "elapsed": elapsed,
                    "caution": caution,
                    "best": list(best),
                    "curve": curve,
                },
            )
        model.train()
        elapsed = time.perf_counter() - clock
    record = {
        "recipe": asdict(recipe),
        "optimiser": "Muon (momentum 0.95) for the blocks' matrices, AdamW (0.9, 0.98) for the rest",
        "weights": sum(p.numel() for p in parameters),
        "steps": step,
        "tokens": step * recipe.batch * recipe.shape.context,
        "seconds": round(elapsed, 1),
        "preparation_seconds": round(preparation, 1),
        "validation_loss": round(best[0], 4),
        "curve": curve,
    }
    save_state(state_file, {"done": True, "best": list(best), "record": record})
    return Trained(best[1], record)


@torch.no_grad()
def average_prediction(teachers: Sequence[GPT2], rows: Tensor) -> Tensor:
    """(B, T) -> (B, T, V): the mean of what the teachers give each token that may follow."""
    with autocast(rows.device):
        total = sum(F.softmax(teacher(rows).float(), dim=-1) for teacher in teachers)
    assert isinstance(total, Tensor)
    return (total / len(teachers)).bfloat16()


@dataclass
class Lesson:
    """Text with the teachers' predictions, made once: a window may begin at any of `starts`."""

    x: Tensor  # (N)
    y: Tensor  # (N)
    p: Tensor  # (N, V)
    starts: Tensor

    def draw(self, count: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        chosen = torch.randint(len(self.starts), (count,), generator=generator, device=self.x.device)
        at = self.starts[chosen][:, None] + torch.arange(context, device=self.x.device)
        return self.x[at], self.y[at], self.p[at]


def lesson_on_text(teachers: Sequence[GPT2], stream: Tensor, context: int) -> Lesson:
    """Every token but the first is predicted from half a context at least."""
    x, half = stream[:-1], context // 2
    p = torch.empty(len(x), teachers[0].shape.vocabulary, dtype=torch.bfloat16, device=x.device)
    firsts = torch.arange(0, len(x) - context + 1, half, device=x.device)
    firsts = torch.cat([firsts, firsts.new_tensor([len(x) - context])])
    for some in torch.split(firsts, 64):
        found = average_prediction(teachers, x[some[:, None] + torch.arange(context, device=x.device)])
        for first, one in zip(some.tolist(), found, strict=True):
            skipped = half if first else 0
            p[first + skipped : first + context] = one[skipped:]
    return Lesson(x, stream[1:], p, torch.arange(len(x) - context + 1, device=x.device))


def own_words(folder: Path, windows: Windows, texts: int, seconds: float, seed: int) -> Tensor:
    """(R, context) tokens: training text of an eighth of a window, which the model of the folder continues."""
    import rung

    device, began = windows.stream.device, time.perf_counter()
    generator = torch.Generator(device).manual_seed(seed)
    model = rung.load(folder, device=device.type, dtype="bfloat16")
    rows: list[list[int]] = []
    given = windows.context // 8
    while not rows or time.perf_counter() - began < seconds:
        prompts = windows.draw(texts, generator)[0][:, :given].tolist()
        written = model.generate(
            prompts,
            temperature=1.0,
            top_p=1.0,
            seed=seed + len(rows),
            stop_tokens=(),
            max_tokens=windows.context - given,
        )
        rows += [[*prompt, *one.tokens] for prompt, one in zip(prompts, written, strict=True)]
    took = time.perf_counter() - began
    print(f"own words: {len(rows) * windows.context:,} tokens in {took:.0f} s", flush=True)
    return torch.tensor(rows, device=device)


def lesson_on_rows(teachers: Sequence[GPT2], rows: Tensor) -> Lesson:
    """What follows a row's last token is drawn from the prediction itself."""
    vocabulary = teachers[0].shape.vocabulary
    p = torch.empty(*rows.shape, vocabulary, dtype=torch.bfloat16, device=rows.device)  # (R, context, V)
    for part, some in zip(torch.split(p, 64), torch.split(rows, 64), strict=True):
        part.copy_(average_prediction(teachers, some))
    last = torch.multinomial(p[:, -1].float(), 1)
    y = torch.cat([rows[:, 1:], last], dim=1)
    context = rows.shape[1]
    return Lesson(
        rows.flatten(), y.flatten(), p.flatten(0, 1), torch.arange(0, rows.numel(), context, device=rows.device)
    )


def best_ensemble(losses: Sequence[Tensor]) -> tuple[tuple[int, ...], float]:
    """All teachers together or one alone, whichever predicts the validation rows best."""
    everyone = tuple(range(len(losses)))
    candidates = [everyone, *((i,) for i in everyone)]

    def loss(chosen: tuple[int, ...]) -> float:
        likelihood = torch.stack([(-losses[i]).exp() for i in chosen]).mean(0)
        return -likelihood.log().mean().item()

    return min(((c, loss(c)) for c in candidates), key=lambda pair: pair[1])


# ---------------------------------------------------------------- what comes out


def transformers_config(shape: Shape, dropout: float) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": shape.vocabulary,
        "n_positions": shape.context,
        "n_ctx": shape.context,
        "n_embd": shape.width,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "attn_pdrop": dropout,
        "embd_pdrop": dropout,
        "resid_pdrop": dropout,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "use_cache": True,
        "dtype": "bfloat16",
    }


def save_model(out: Path, weights: dict[str, Tensor], recipe: Recipe, stored: torch.dtype | None) -> None:
    """All in bfloat16, but for the matrices that were trained in another format."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, weight in weights.items():
        matrix = weight.ndim == 2 and name != "wpe.weight"
        dtype = stored if stored and matrix else torch.bfloat16
        tensors[f"transformer.{name}"] = weight.to("cpu", dtype).contiguous()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = transformers_config(recipe.shape, recipe.dropout)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_model(out: Path, shape: Shape, device: torch.device) -> GPT2:
    tensors = load_file(out / "model.safetensors")
    model = GPT2(shape)
    model.load_state_dict({k.removeprefix("transformer."): v.float() for k, v in tensors.items()})
    return model.to(device).eval()


def figures(model: GPT2, tokenizer: Tokenizer, passages: Sequence[str]) -> dict[str, float | int]:
    losses = token_losses(model, evaluation_rows(tokenizer, passages, model.shape.context), half=False).double()
    size = sum(len(p.encode()) for p in passages)
    return {
        "passages": len(passages),
        "bytes": size,
        "tokens": len(losses),
        "loss": round(losses.mean().item(), 5),
        "perplexity": round(losses.mean().exp().item(), 4),
        "bits_per_byte": round(losses.sum().item() / math.log(2) / size, 4),
    }


@torch.no_grad()
def continuation(model: GPT2, tokenizer: Tokenizer, prompt: str, temperature: float, count: int, seed: int) -> str:
    device = model.wte.weight.device
    generator = torch.Generator().manual_seed(seed)
    ids = tokenizer.encode(prompt).ids
    for _ in range(count):
        logits = model(torch.tensor([ids[-model.shape.context :]], device=device))[0, -1].float().cpu()
        if temperature == 0:
            new = int(logits.argmax())
        else:
            top = (logits / temperature).topk(40)
            pick = torch.multinomial(top.values.softmax(-1), 1, generator=generator)
            new = int(top.indices[pick])
        if new == tokenizer.token_to_id(END):
            break
        ids.append(new)
    return str(tokenizer.decode(ids))


def samples(model: GPT2, tokenizer: Tokenizer) -> Iterator[str]:
    for prompt in PROMPTS:
        yield f"### greedy\n{continuation(model, tokenizer, prompt, 0.0, 100, 0)}\n"
        for seed in (1, 2):
            text = continuation(model, tokenizer, prompt, 0.8, 200, seed)
            yield f"### temperature 0.8, top-k 40, seed {seed}\n{text}\n"


def write_card(out: Path) -> None:
    record = json.loads((out / "training.json").read_text())
    config = json.loads((out / "config.json").read_text())
    with (Path(__file__).parent / "story_books.tsv").open(newline="") as file:
        books = list(csv.DictReader(file, delimiter="\t"))
    held_out, small, student = record["held_out"], record["excerpt"], record["models"]["student"]
    teachers = [m for name, m in record["models"].items() if name != "student"]
    minutes = sum(m["seconds"] for m in record["models"].values()) / 60
    size = (out / "model.safetensors").stat().st_size
    eight = record.get("stored") is not None
    formats = "in 8 bits (e4m3; norms, biases and positions in bfloat16)" if eight else "in bfloat16"
    story = record["samples"][1].split("\n", 1)[1].strip().replace("\n", "\n> ")
    lines = [
        "# The story model",
        "",
        f"A GPT-2 of {round(student['weights'] / 1e6)} million weights that tells fairy tales. It ships inside rung, so"
        " that",
        "text comes out with nothing downloaded, and serves as the fixture of end-to-end tests. It knows no",
        "facts and follows no instructions; its stories wander, and carry the attitudes of books a century old.",
        "",
        "| what | value |",
        "| --- | --- |",
        f"| shape | {config['n_layer']} layers, width {config['n_embd']}, {config['n_head']} heads of 64,"
        f" context {config['n_positions']}, tied embeddings |",
        f"| weights | {student['weights']:,} {formats}, {size:,} bytes |",
        f"| tokens | byte-level BPE, {config['vocab_size']:,}, made from the same books |",
        f"| held-out perplexity | {held_out['perplexity']:.3f} a token, {held_out['bits_per_byte']:.3f} bits a byte"
        f" ({held_out['tokens']:,} tokens, a passage of each book) |",
        f"| excerpt perplexity | {small['perplexity']:.4f} a token"
        f" ({small['tokens']:,} tokens; tests/data/held_out_stories.txt) |",
        f"| trained on | {record['gpu']}, torch {record['versions']['torch']}, {record['date']},"
        f" {minutes:.1f} minutes in all, seed {record['seed']} |",
        "",
        "Perplexities are those of the weights as stored, computed in float32: each passage after",
        f"one end-of-text token, in windows of {config['n_positions']} that do not overlap.",
        "",
        "## How it was trained",
        "",
        "`tools/train_story_model.py`, on 13.9 MB of text. Of each book one passage (1 %) chose among",
        "weights and another (1.5 %) gave the figures above; neither was trained on. Some tales stand in",
        "several of the books in different tellings, which flatters the figures a little.",
        "",
    ]
    if teachers:
        widths = " and ".join(f"{m['weights'] / 1e6:.0f} million" for m in teachers)
        losses = " and ".join(f"{m['validation_loss']:.3f}" for m in teachers)
        student_tokens = f"{student['tokens'] / 1e6:,.0f}"
        lines += [
            f"Teachers of {widths} weights came first (validation loss {losses} nats a token;"
            f" taught with: {record['ensemble_loss']:.3f}).",
            "The small model then learned that prediction (nine parts) and the text itself (one part):"
            f" {student_tokens} million",
            f"tokens, validation loss {student['validation_loss']:.3f}; two fifths of them from"
            f" {record.get('own_words', 0):,} tokens that the first teacher wrote.",
            "Settings and loss curves are in `training.json`.",
            "",
        ]
    lines += [
        "## What it writes",
        "",
        "Temperature 0.8, top-k 40, the first sample, not chosen:",
        "",
        f"> {story}",
        "",
        "## The books",
        "",
        "All are in the public domain in the United States (published before 1929), transcribed by",
        "volunteers of Project Gutenberg; PG is the number there. The weights are under the licence",
        "of this repository.",
        "",
        "| title | author | year | PG |",
        "| --- | --- | --- | --- |",
        *(f"| {b['title']} | {b['author']} | {b['year']} | {b['gutenberg']} |" for b in books),
    ]
    (out / "README.md").write_text("\n".join(lines) + "\n")


# ---------------------------------------------------------------- the verbs


def make_tokenizer(args: argparse.Namespace) -> None:
    text, _ = read_text(args.data)
    split = split_text(text, args.seed)
    tokenizer = train_tokenizer(split.train, args.vocabulary)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer.json"), pretty=False)
    count = len(encode(tokenizer, split.train))
    size = sum(map(len, split.train))
    print(f"{tokenizer.get_vocab_size()} tokens; {size:,} characters for training are {count:,} tokens")
    if args.excerpt:
        args.excerpt.write_text(f"\n{END}\n".join(excerpt(split.held_out)) + "\n")
    if args.words:
        words = Counter(re.findall(r"[a-z]+", "\n".join(split.train).lower()))
        args.words.write_text("\n".join(sorted(w for w, _ in words.most_common(4000))) + "\n")


def train(args: argparse.Namespace) -> None:
    started = time.perf_counter()
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    args.state.mkdir(parents=True, exist_ok=True)
    text, digest = read_text(args.data)
    split = split_text(text, args.seed)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    vocabulary = tokenizer.get_vocab_size()
    shape = Shape.named(args.shape, args.context, vocabulary)
    stored = torch.float8_e4m3fn if args.eight_bits else None
    recipes = {}
    for i, number in enumerate(args.teachers, start=1):
        name, _, dropout = number.partition(":")
        big = Shape.named(name, args.context, vocabulary)
        recipes[f"teacher {i}"] = Recipe(
            big, args.teacher_minutes, args.batch // 2, float(dropout), args.seed + i, 0.5, matrix_decay=0.1
        )
    student = Recipe(shape, args.minutes, args.batch, 0.05 if recipes else 0.1, args.seed, matrix_decay=0.02)
    newline = tokenizer.encode("\n").ids[0]

    def windows(dropout: float | None = None) -> Windows:
        return Windows(encode(tokenizer, split.train, dropout), newline, args.context, device)

    def state(name: str) -> Path:
        path: Path = args.state / f"{name.replace(' ', '')}.pt"
        return path

    clean = windows()
    missing = any(not state(name).exists() for name in recipes)
    noisy = [windows(0.1) for _ in range(4 if missing else 0)]
    validation = evaluation_rows(tokenizer, split.validation, args.context)
    print(
        f"{device}: {len(clean.stream):,} tokens, prepared in {time.perf_counter() - started:.0f} s",
        flush=True,
    )

    trained: dict[str, Trained] = {}
    teachers: list[GPT2] = []
    for i, (name, recipe) in enumerate(recipes.items(), start=1):
        if args.only not in (None, i):
            continue
        chance = random.Random(recipe.seed)

        def draw(
            count: int,
            generator: torch.Generator,
            progress: float,
            chance: random.Random = chance,
            recipe: Recipe = recipe,
        ) -> tuple[Tensor, ...]:
            # Noise ends after 60 % of the time: text is only ever read in its regular tokens later.
            noise = recipe.subword_noise * max(0.0, 1 - progress / 0.6)
            source = chance.choice(noisy) if noisy and chance.random() < noise else clean
            return source.draw(count, generator)

        trained[name] = train_model(name, recipe, draw, validation, state(name), device)
        teacher = GPT2(recipe.shape)
        teacher.load_state_dict(trained[name].weights)
        teachers.append(teacher.to(device).eval().requires_grad_(False))
    if args.large and args.only in (None, 1):
        save_model(args.large, trained["teacher 1"].weights, recipes["teacher 1"], None)
        (args.large / "tokenizer.json").write_bytes(args.tokenizer.read_bytes())
    if args.only is not None:
        return
    chosen, ensemble_loss = best_ensemble([token_losses(t, validation) for t in teachers]) if teachers else ((), None)
    draw_student: Draw = lambda count, generator, progress: clean.draw(count, generator)  # noqa: E731
    if teachers:
        print(f"taught by teachers {[i + 1 for i in chosen]}: validation loss {ensemble_loss:.4f}", flush=True)
        used = [teachers[i] for i in chosen]
        texts_lesson = lesson_on_text(used, clean.stream, args.context)
        own: Tensor | None = None
        if args.large and args.writing:
            try:
                own = own_words(args.large, clean, args.texts, args.writing, args.seed)
            except Exception as error:  # the books alone are better than no model
                print(f"no own words: {type(error).__name__}: {error}", flush=True)
        own_lesson = None if own is None else lesson_on_rows(used, own)
        print(f"lessons made after {time.perf_counter() - started:.0f} s", flush=True)

        def draw_student(count: int, generator: torch.Generator, progress: float) -> tuple[Tensor, ...]:
            fewer = 0 if own_lesson is None else round(0.4 * count)
            parts = [texts_lesson.draw(count - fewer, args.context, generator)]
            if own_lesson is not None:
                parts.append(own_lesson.draw(fewer, args.context, generator))
            return tuple(torch.cat(part) for part in zip(*parts, strict=True))

    trained["student"] = train_model(
        "student", student, draw_student, validation, state(f"student {args.shape}"), device,
        stored=stored, taught=bool(teachers),
    )  # fmt: skip

    save_model(args.out, trained["student"].weights, student, stored)
    if args.tokenizer.resolve() != (args.out / "tokenizer.json").resolve():
        (args.out / "tokenizer.json").write_bytes(args.tokenizer.read_bytes())
    torch.set_float32_matmul_precision("highest")
    model = load_model(args.out, shape, device)
    texts = list(samples(model, tokenizer))
    record = {
        "seed": args.seed,
        "stored": "float8_e4m3fn" if args.eight_bits else None,
        "date": time.strftime("%Y-%m-%d"),
        "gpu": torch.cuda.get_device_name() if device.type == "cuda" else "no GPU",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: __import__(name).__version__ for name in ("tokenizers", "safetensors")},
        },
        "data_sha256": digest,
        "training_tokens": len(clean.stream),
        "subword_noise": "BPE dropout 0.1, four readings, unseeded",
        "own_words": 0 if not teachers or own is None else own.numel(),
        "held_out": figures(model, tokenizer, split.held_out),
        "excerpt": figures(model, tokenizer, excerpt(split.held_out)),
        "teachers_used": [i + 1 for i in chosen],
        "ensemble_loss": ensemble_loss,
        "teachers_held_out": [figures(t, tokenizer, split.held_out) for t in teachers],
        "models": {name: one.record for name, one in trained.items()},
        "samples": texts,
    }
    (args.out / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    write_card(args.out)
    print(json.dumps({"held_out": record["held_out"], "excerpt": record["excerpt"]}))
    print("\n".join(texts))
    print(f"{time.perf_counter() - started:.0f} s in all")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the story model that ships inside rung.")
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("tokenizer", help="make tokenizer.json from the training part of the text")
    verb.set_defaults(run=make_tokenizer)
    verb.add_argument("--data", type=Path, required=True)
    verb.add_argument("--out", type=Path, required=True)
    verb.add_argument("--vocabulary", type=int, default=4096)
    verb.add_argument("--excerpt", type=Path, help="also write the small held-out excerpt here")
    verb.add_argument("--words", type=Path, help="also write the 4,000 most frequent words here")
    verb.add_argument("--seed", type=int, default=1)
    verb = verbs.add_parser("train", help="train the teachers and the model; resumes from --state")
    verb.set_defaults(run=train)
    verb.add_argument("--data", type=Path, required=True)
    verb.add_argument("--tokenizer", type=Path, required=True)
    verb.add_argument("--out", type=Path, required=True)
    verb.add_argument("--state", type=Path, required=True, help="folder for what a resumed run needs")
    verb.add_argument("--seed", type=int, default=1)
    verb.add_argument("--shape", default="5x384", help="layers x width of the model")
    verb.add_argument("--minutes", type=float, default=2.0, help="of training the model, compiling not counted")
    verb.add_argument("--eight-bits", action="store_true", help="train and store the matrices in e4m3")
    verb.add_argument("--context", type=int, default=512)
    verb.add_argument("--batch", type=int, default=64, help="windows a step; teachers take half")
    verb.add_argument("--teachers", nargs="*", default=["12x768:0.25", "12x768:0.35"], help="layers x width : dropout")
    verb.add_argument("--teacher-minutes", type=float, default=3.5, help="the same for each teacher")
    verb.add_argument("--only", type=int, help="train this teacher (1, 2, ...) and nothing else")
    verb.add_argument("--large", type=Path, help="write the first teacher as a model here; it then writes texts, too")
    verb.add_argument("--writing", type=float, default=20.0, help="seconds that it writes for; 0: not at all")
    verb.add_argument("--texts", type=int, default=256, help="texts that it writes at a time")
    verb = verbs.add_parser("card", help="write README.md anew from training.json")
    verb.set_defaults(run=lambda args: write_card(args.out))
    verb.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
