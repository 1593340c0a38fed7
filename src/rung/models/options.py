"""Options of text generation, and its results."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Literal

from rung.errors import RungError
from rung.models.sampling import Sampling

Reason = Literal["stop", "length", "context", "interrupted"]  # context: the model's context is full
MOST_ALTERNATIVES = 100  # most likely tokens that are reported with a chosen one
MOST_SAMPLES = 1 << 18  # of one prompt, each of which is kept until the end
MOST_BIAS = 1e6  # logits stay finite
MOST_STOPS = 64  # tokens that end a text, checked in each step on a GPU


@dataclass(frozen=True)
class Options:
    """Everything that a run needs besides its prompts."""

    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 200
    min_tokens: int = 0  # before that, no stop token is chosen and no stop string is searched
    seed: int | None = None  # None: another one each time
    num_samples: int = 1
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    slide: bool = False
    echo: bool = False
    logprobs: bool = False
    top_logprobs: int = 0  # log-probabilities of this many most likely tokens, at each token
    prompt_logprobs: int | None = None  # the prompt's own, each with this many most likely tokens
    priority: int = 0  # lower is admitted earlier
    batch_size: int | None = None  # texts of this run at a time; None: as many as there are slots
    logit_bias: tuple[tuple[int, float], ...] = ()  # added to the logits of these tokens
    schema: str | None = None  # a JSON schema that the text follows
    trigger: str = ""  # the schema is followed after this text; what comes before and behind is free

    def __post_init__(self) -> None:
        """Types and ranges are checked here alone, whichever way the options came."""
        least: dict[str, int] = {"max_new_tokens": 0 if self.prompt_logprobs is not None else 1}
        least |= {"num_samples": 1, "min_tokens": 0, "top_logprobs": 0}
        if self.prompt_logprobs is not None:
            least["prompt_logprobs"] = 0
        if self.batch_size is not None:
            least["batch_size"] = 1
        for name, low in least.items():
            value = getattr(self, name)
            if not _whole(value) or value < low:
                raise RungError(f"{name} is {value!r}; it must be at least {low} and whole.")
        if self.num_samples > MOST_SAMPLES:
            raise RungError(f"num_samples is {self.num_samples}; at most {MOST_SAMPLES:,} are written in a run.")
        for name in ("top_logprobs", "prompt_logprobs"):
            if (getattr(self, name) or 0) > MOST_ALTERNATIVES:
                raise RungError(f"{name} is {getattr(self, name)}; at most {MOST_ALTERNATIVES} tokens are reported.")
        for name in ("slide", "echo", "logprobs"):
            if not isinstance(getattr(self, name), bool):
                raise RungError(f"{name} is {getattr(self, name)!r}; it must be True or False.")
        if not _whole(self.priority):
            raise RungError(f"priority is {self.priority!r}; it must be a whole number, lower is earlier.")
        if self.seed is not None and not (_whole(self.seed) and 0 <= self.seed < 1 << 64):
            raise RungError(f"seed is {self.seed!r}; it must be a whole number from 0 to 2^64 - 1.")
        if not all(isinstance(text, str) for text in self.stop):
            raise RungError(f"stop is {self.stop!r}; it must hold texts.")
        if not all(map(_whole, self.stop_tokens)):
            raise RungError(f"stop_tokens is {self.stop_tokens!r}; it must hold tokens, which are whole numbers.")
        if not (self.schema is None or isinstance(self.schema, str)):
            raise RungError(f"schema is {self.schema!r}; it must be a JSON schema, as an object or as text.")
        if self.schema is not None and self.slide:
            raise RungError("a text that follows a schema does not slide; leave one of the two out.")
        for token, bias in self.logit_bias:
            if not (_whole(token) and token >= 0 and isinstance(bias, Real) and abs(bias) <= MOST_BIAS):
                raise RungError(f"logit_bias has {token!r}: {bias!r}; it maps tokens to numbers up to {MOST_BIAS:g}.")

    def within(self, vocabulary: int) -> Options:
        """Without tokens that the model does not have: none of them can be chosen."""
        stops = tuple(token for token in self.stop_tokens if 0 <= token < vocabulary)
        wrong = next((token for token, _ in self.logit_bias if token >= vocabulary), None)
        if wrong is not None:
            raise RungError(f"logit_bias has token {wrong}, but the model only {vocabulary:,}.")
        return self if stops == self.stop_tokens else replace(self, stop_tokens=stops)

    @property
    def tells_logprobs(self) -> bool:
        """Whether log-probabilities of the chosen tokens are requested."""
        return bool(self.logprobs or self.top_logprobs)

    @property
    def changes_logits(self) -> bool:
        """Whether logits are changed before sampling, other than by penalties."""
        return bool(self.logit_bias or self.schema is not None or (self.min_tokens and self.stop_tokens))


@dataclass(frozen=True)
class Prompt:
    """A prompt as text and as tokens."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Chosen:
    """A token, its log-probability, and the most likely tokens at its place, the most likely first."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(repr=False)
class Completion:
    """The result of one sample of one prompt; printed, it is its text."""

    prompt: str
    text: str  # with the prompt in front if echo was requested
    tokens: list[int]  # those generated
    finish_reason: Reason
    sample: int
    seed: int
    prompt_tokens: int
    logprobs: list[float] | None = None
    top_logprobs: list[tuple[tuple[int, float], ...]] | None = None
    prompt_logprobs: list[Chosen | None] | None = None  # the first is None: nothing comes before it

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Completion({self.text!r}, {len(self.tokens)} tokens, finish_reason={self.finish_reason!r})"


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
