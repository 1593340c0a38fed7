"""How well a model predicts a text: perplexity over windows that overlap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rung.errors import RungError
from rung.gpt2.load import Model


@dataclass(frozen=True)
class Perplexity:
    """The result over a whole text."""

    tokens: int
    predicted: int
    loss: float  # nats a predicted token

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)


def windows(tokens: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, fresh): each window's span, and how many tokens at its end no window before has seen."""
    done = 0
    for begin in range(0, tokens, stride):
        end = min(begin + context, tokens)
        yield begin, end, end - done
        done = end
        if end == tokens:
            return


def perplexity(
    model: Model, text: str, *, stride: int | None = None, context: int | None = None
) -> Perplexity:
    """Predict each token of the text once, from the tokens of its window before it."""
    context = model.config.context if context is None else context
    stride = max(1, context // 2) if stride is None else stride
    if not 2 <= context <= model.config.context:
        raise RungError(
            f"context is {context}; it must lie between 2 and the model's {model.config.context:,}."
        )
    if not 1 <= stride <= context:
        raise RungError(f"stride is {stride}; it must lie between 1 and the context, {context}.")
    ids = model.tokenizer.encode(text)
    if len(ids) < 2:
        raise RungError("the text is too short: perplexity needs two tokens at least.")
    total, predicted = 0.0, 0
    for begin, end, fresh in windows(len(ids), context, stride):
        window = torch.tensor(ids[begin:end])
        logits = model.logits(window)[:-1]
        wanted = min(fresh, end - begin - 1)  # nothing predicts a window's first token
        if wanted == 0:
            continue
        losses = torch.nn.functional.cross_entropy(logits[-wanted:], window[-wanted:], reduction="none")
        total += float(losses.double().sum())
        predicted += wanted
    return Perplexity(len(ids), predicted, total / predicted)
