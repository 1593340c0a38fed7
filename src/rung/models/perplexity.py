"""How well a model predicts a text: perplexity over windows that overlap."""

from __future__ import annotations

from rung.errors import RungError
from rung.models.load import Model
from rung.models.score import Score


def perplexity(model: Model, text: str, *, stride: int | None = None, context: int | None = None) -> Score:
    """Predict each token of the text once, from the tokens of its window before it."""
    found = model.score(text, stride=stride, context=context)
    if not found.predicted:
        raise RungError("the text is too short: perplexity needs two tokens at least.")
    return found
