"""A plug-in for `llm`: `llm -m rung "Once upon a time"`, and `-m rung/gpt2` for gpt2's weights.

GPT-2 only continues texts: a conversation continues where its last text ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import llm
from pydantic import Field

from rung.models.load import Model, load

MODELS = {"rung": "inner", **{f"rung/{n}": n for n in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")}}


@llm.hookimpl  # type: ignore[untyped-decorator]
def register_models(register: Callable[..., None]) -> None:
    """Register the models with llm; each is loaded at its first prompt."""
    for model_id, name in MODELS.items():
        register(Continuation(model_id, name))


@cache
def _loaded(name: str, device: str, dtype: str) -> Model:
    return load(name, device=device, dtype=dtype)


class Continuation(llm.Model):  # type: ignore[misc]
    """A GPT-2 that continues the prompt."""

    can_stream = True

    class Options(llm.Options):  # type: ignore[misc]
        """What `-o` takes."""

        max_tokens: int = Field(default=200, ge=1, description="At most this many tokens.")
        temperature: float = Field(default=0.8, ge=0, description="0 takes the most likely token.")
        top_k: int | None = Field(default=None, ge=1, description="Sample from this many most likely tokens.")
        top_p: float = Field(
            default=1.0, gt=0, le=1, description="Sample from the most likely tokens that sum to this probability."
        )
        min_p: float = Field(
            default=0.0, ge=0, le=1, description="Drop tokens less likely than this times the most likely one."
        )
        repetition_penalty: float = Field(
            default=1.0, gt=0, description="Above 1, tokens that occurred become less likely."
        )
        seed: int | None = Field(default=None, ge=0, description="The same seed gives the same text.")
        stop: str | None = Field(default=None, description="End the text before this string.")
        device: str = Field(default="auto", description="auto, cpu or cuda.")
        dtype: str = Field(default="auto", description="auto, float32, bfloat16, int8.")

    def __init__(self, model_id: str, name: str) -> None:
        self.model_id, self.name = model_id, name

    def __str__(self) -> str:
        return f"rung: {self.model_id}"

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        """The continuation, piece by piece."""
        given = prompt.options.model_dump()
        model = _loaded(self.name, given.pop("device"), given.pop("dtype"))
        before = "".join(f"{r.prompt.prompt}{r.text()}" for r in (conversation.responses if conversation else ()))
        if given["stop"] is None:
            del given["stop"]
        pieces = model.stream(f"{before}{prompt.prompt}", **given)
        done = yield from pieces  # without streaming, llm joins them
        response.set_usage(input=done.prompt_tokens, output=len(done.tokens))
