"""How likely a text is: the log-probability of each token given those before it, over windows for long texts. A text's
figures are the same, bit for bit, in any batch: in a CPU's pass each token is computed independently, and on a GPU each
window goes through a pass of fixed size, chosen by its length, with independent rows.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from rung.arrays import Array
from rung.errors import RungError


@dataclass(frozen=True)
class Rated:
    """Figures of a window's tokens from the second on, each given those before it: three rows of T - 1."""

    logprobs: Array  # nats
    ranks: Array  # how many tokens were more likely
    entropies: Array  # nats

    def last(self, count: int) -> Rated:
        if count == len(self.logprobs):
            return self
        part = slice(len(self.logprobs) - count, None)
        return Rated(self.logprobs[part], self.ranks[part], self.entropies[part])


class Rater(Protocol):
    """Scores windows of tokens; the results come in the windows' order. A window's last token is predicted but not
    read, so a window may have one token more than the model's context.
    """

    def rate(self, windows: Iterable[Sequence[int]], *, whole: bool = True) -> Iterator[Rated]:
        """Unless `whole`, ranks and entropies are not requested and may be left empty."""
        ...


@dataclass(frozen=True)
class Score:
    """A text's figures. With `per_token` the lists have an entry for each token, None for one that is not predicted."""

    tokens: int
    predicted: int
    logprob: float  # nats, over all predicted tokens
    bytes: int | None = None  # of the text in UTF-8, where it is known
    token_ids: tuple[int, ...] | None = None
    token_logprobs: tuple[float | None, ...] | None = None
    token_ranks: tuple[int | None, ...] | None = None
    token_entropies: tuple[float | None, ...] | None = None

    def __str__(self) -> str:
        return f"perplexity {self.perplexity:.4f} ({self.loss:.4f} nats per token) over {self.tokens:,} tokens"

    @property
    def loss(self) -> float:
        """Nats per predicted token; NaN if there is none."""
        return -self.logprob / self.predicted if self.predicted else math.nan

    @property
    def perplexity(self) -> float:
        """exp(loss), infinity where that is beyond a float."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """Bits that the model needs per byte of the text."""
        return -self.logprob / math.log(2) / self.bytes if self.bytes else None

    def as_json(self) -> dict[str, object]:
        """Plain data; what is unknown is left out."""
        lists = {
            name: list(value)
            for name in ("token_ids", "token_logprobs", "token_ranks", "token_entropies")
            if (value := getattr(self, name)) is not None
        }
        ratio = self.bits_per_byte
        return {
            "tokens": self.tokens,
            "predicted": self.predicted,
            "logprob": self.logprob,
            **({"perplexity": self.perplexity} if self.predicted else {}),
            **({"bits_per_byte": ratio} if ratio is not None and self.predicted else {}),
            **lists,
        }


@dataclass(frozen=True)
class Text:
    """Tokens to score, and their number of bytes of text, if known."""

    ids: Sequence[int]
    bytes: int | None = None


def windows(tokens: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, fresh): each window's span, and how many tokens at its end are in no earlier window."""
    done = 0
    for begin in range(0, tokens, stride):
        end = min(begin + context, tokens)
        yield begin, end, end - done
        done = end
        if end == tokens:
            return


def spans(context: int | None, stride: int | None, longest: int) -> tuple[int, int]:
    """The context and the stride to use (default: the model's whole context, and half of it)."""
    context = longest if context is None else context
    stride = max(1, context // 2) if stride is None else stride
    if not 2 <= context <= longest:
        raise RungError(f"context is {context}; it must lie between 2 and the model's {longest:,}.")
    if not 1 <= stride <= context:
        raise RungError(f"stride is {stride}; it must lie between 1 and the context, {context}.")
    return context, stride


def scores(
    rater: Rater, texts: Iterable[Text], *, context: int, stride: int, per_token: bool = False, first: int | None = None
) -> Iterator[Score]:
    """Each text's score, in the order of the texts and as soon as it is known.

    `first` is a token to put before each text, so that its own first token is predicted as well.
    """
    waiting: deque[tuple[Text, list[int]]] = deque()  # each with its windows' fresh tokens

    def cut() -> Iterator[Sequence[int]]:
        for text in texts:
            ids = text.ids if first is None else [first, *text.ids]
            fresh = []
            for begin, end, new in windows(len(ids), context, stride) if len(ids) > 1 else ():
                scored = min(new, end - begin - 1)  # a window's first token is not predicted
                if scored:
                    fresh.append(scored)
                    yield ids[begin:end]
            waiting.append((text, fresh))
        return

    # A text is complete once its last window is scored; the rater may have read further ahead by then.
    rated: list[Rated] = []
    for one in itertools.chain(rater.rate(cut(), whole=per_token), [None]):
        if one is not None:
            rated.append(one)
        while waiting and len(rated) >= len(waiting[0][1]):
            text, fresh = waiting.popleft()
            parts = [r.last(count) for r, count in zip(rated, fresh, strict=False)]
            del rated[: len(fresh)]
            yield _score(text, parts, per_token)


def _score(text: Text, parts: Sequence[Rated], per_token: bool) -> Score:
    logprobs = [p for part in parts for p in part.logprobs.tolist()]
    if not per_token:
        return Score(len(text.ids), len(logprobs), math.fsum(logprobs), text.bytes)
    ranks = [r for part in parts for r in part.ranks.tolist()]
    entropies = [e for part in parts for e in part.entropies.tolist()]
    unknown: list[None] = [None] * (len(text.ids) - len(logprobs))
    return Score(
        len(text.ids),
        len(logprobs),
        math.fsum(logprobs),
        text.bytes,
        tuple(text.ids),
        (*unknown, *logprobs),
        (*unknown, *ranks),
        (*unknown, *entropies),
    )
