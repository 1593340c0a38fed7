"""Drafts: tokens proposed after a text, which the model reads in one step and keeps as long as it would choose them.

They come from a smaller model with the same vocabulary, or from what followed an earlier occurrence of the text's last
few tokens. Their number depends on the text alone, never on a clock or on other texts, so a seed gives the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rung.arrays import Array
from rung.errors import RungError
from rung.lazy import torch
from rung.models.cache import Cache, Column
from rung.models.sampling import Sampling, choose, distribution, likeliest, pick, uniform
from rung.models.tensors import integers
from rung.models.transformer import Drafting, Transformer

NGRAM = "ngram"
MOST = 7  # tokens per draft: with the text's last one they are the eight that a step takes at once
COLUMN = 0.2  # cost of one more token, as a share of a step's time (approximate)
GRAMS = (4, 3, 2)  # lengths of the n-grams that are searched in the text so far, the longest first
START = 0.7  # expected share of accepted proposals, before any are known
LEARN, RECOVER = 0.1, 1 / 64  # rates at which the estimate is updated, and decays while nothing is proposed
PROPOSING, ACCEPTING, REMAINING = 1, 2, 3  # uses of random numbers besides choosing, which is 0


class Columns(Protocol):
    """Few tokens of many texts in one call."""

    columns_at_once: int
    cache: Cache | None  # the texts' cache, if it has its own

    def step(self, columns: Sequence[Column], cache: Cache, outputs: int) -> Array:
        """Logits (outputs, V) of the columns that request them; keys and values go to the cache."""


class Pace:
    """How many tokens to propose for a text, estimated from how many it accepted."""

    def __init__(self, cost: float) -> None:
        self._cost, self._rate = cost, START

    def length(self) -> int:
        """The number that gives the most tokens per unit of time; 0 while drafts are not worthwhile."""
        tokens, best, most = 1.0, 0, 1.0
        for k in range(1, MOST + 1):
            tokens += self._rate**k
            if tokens / (1 + k * self._cost) > most:
                best, most = k, tokens / (1 + k * self._cost)
        if best == 0:
            self._rate += RECOVER * (START - self._rate)
        return best

    def saw(self, proposed: int, accepted: int) -> None:
        """Record how many were proposed, and how many of these were accepted."""
        self._rate = 1 - (1 - self._rate) * (1 - LEARN) ** accepted
        if accepted < proposed:
            self._rate *= 1 - LEARN


class Lookup:
    """Earlier occurrences of a text's last tokens, and the tokens that followed them."""

    def __init__(self) -> None:
        self._behind: dict[tuple[int, ...], int] = {}
        self._known = 0

    def propose(self, ids: Sequence[int], most: int) -> list[int]:
        """`ids` are the text so far: those of the previous call, and perhaps more."""
        for end in range(max(1, self._known), len(ids)):
            for n in GRAMS:
                if n <= end:
                    self._behind[tuple(ids[end - n : end])] = end
        self._known = len(ids)
        for n in GRAMS:
            at = self._behind.get(tuple(ids[-n:]))
            if at is not None:
                found: list[int] = []
                for i in range(at, at + most):  # a repetition may extend into the proposal itself
                    found.append(ids[i] if i < len(ids) else found[i - len(ids)])
                return found
        return []


@dataclass
class Draft:
    """Tokens proposed, and the distributions that they were drawn from; None where each was the only choice."""

    tokens: list[int] = field(default_factory=list)
    q: list[torch.Tensor] | None = None


class DraftModel:
    """A smaller model that reads the texts, each in its own slot, and continues them."""

    def __init__(self, transformer: Transformer, slots: int, native: Columns | None = None) -> None:
        self._transformer, self._native = transformer, native
        self._context = transformer.config.context
        self._cache = (native and native.cache) or transformer.new_cache(slots, self._context)
        self._cache.begin(slots)
        self._tokens: list[list[int]] = [[] for _ in range(slots)]

    def forget(self, slot: int) -> None:
        """Start a new text: the remains of the old one would go through other products than the new tokens."""
        self._tokens[slot] = []

    def propose(self, slot: int, ids: Sequence[int], most: int, sampling: Sampling, u: Callable[[int], float]) -> Draft:
        """u(i) is the random number that draws the proposal's token i."""
        most = min(most, self._context - len(ids) + 1)
        if most <= 0:
            return Draft()
        cached, row = self._tokens[slot], self._cache.row(slot)
        same = min(len(cached), len(ids) - 1)
        if cached[:same] != ids[:same]:
            same = next(i for i in range(same) if cached[i] != ids[i])
        row.lengths = [same]
        tokens: list[int] = []
        q: list[torch.Tensor] = []
        unread = list(ids[same:])
        for i in range(most):
            logits = self._read(slot, unread, row)
            if sampling.temperature == 0:
                unread = [int(likeliest(logits))]
            else:
                q.append(normalised(distribution(logits, sampling))[0])
                unread = [int(pick(q[-1][None], [u(i)]))]
            tokens += unread
        self._tokens[slot] = [*ids, *tokens[:-1]]
        return Draft(tokens, q or None)

    def _read(self, slot: int, unread: Sequence[int], row: Cache) -> torch.Tensor:
        """Logits (1, V) after the tokens read."""
        if self._native is None or len(unread) > self._native.columns_at_once:
            return self._transformer.advance([unread], row)
        last = len(unread) - 1
        columns = [Column(t, slot, row.lengths[0] + i, 0 if i == last else -1) for i, t in enumerate(unread)]
        row.advance([len(unread)])
        logits: torch.Tensor = torch.as_tensor(self._native.step(columns, self._cache, 1))
        return logits


def drafting(source: Transformer | None, model: Transformer) -> Drafting:
    """RungError when `source` cannot draft for the model."""
    on_gpu = model.service.engine is not None
    # A GPU's step has the same number of rows whether they are needed or not, and takes the time of its chain of
    # layers.
    column = 0.0 if on_gpu else COLUMN
    if source is None:
        return Drafting(None, column)
    ours, theirs = model.config.vocabulary, source.config.vocabulary
    if ours != theirs:
        raise RungError(f"the draft has a vocabulary of {theirs:,}, the model one of {ours:,}; take one with the same.")
    cost = source.weights.nbytes() / model.weights.nbytes()
    return Drafting(source, column + max(cost, source.config.layers / model.config.layers if on_gpu else 0.0))


def normalised(p: torch.Tensor) -> torch.Tensor:
    """(B, V) -> (B, V), each row's sum 1, in float64."""
    p = p.double()
    return p / p.sum(-1, keepdim=True)


def follow(
    logits: Array,
    sampling: Sampling,
    proposed: Sequence[int],
    q: Sequence[torch.Tensor] | None,
    us: Sequence[Callable[[int], float]],
) -> list[int]:
    """The tokens after the rows of (n, V) logits; for all of them, or all but the last, there is a proposal.

    They end with the first that was not proposed, and are distributed as if there were no proposals. A proposal drawn
    from q (V) is kept with probability min(1, p / q), and otherwise replaced by a token drawn from the positive part of
    p - q. One that was the only choice (q is None) is compared with the token that is drawn anyway, which keeps it with
    probability p. us[i](use) gives a row's random numbers. The function waits for a GPU once or twice.
    """
    if q is None and isinstance(logits, np.ndarray):
        sampled = choose(logits, sampling, [u(0) for u in us])
    elif sampling.temperature == 0:
        sampled = likeliest(logits).tolist()
    elif q is None:
        sampled = pick(distribution(logits, sampling), [u(0) for u in us]).tolist()
    else:
        given = torch.stack(list(q))
        p = normalised(distribution(torch.as_tensor(logits, device=given.device), sampling))
        at = integers(proposed, p.device)[:, None]
        likely, guessed = torch.stack([p[: len(q)].gather(1, at), given.gather(1, at)])[:, :, 0].tolist()
        accepted = 0
        while accepted < len(q) and us[accepted](ACCEPTING) * guessed[accepted] < likely[accepted]:
            accepted += 1
        if accepted == len(q):
            return [*proposed, *(pick(p[accepted:], [us[accepted](0)]).tolist() if accepted < len(p) else ())]
        rest = (p[accepted : accepted + 1] - q[accepted]).clamp_(min=0)
        # The positive part of p - q may sum to zero if both are equal up to rounding.
        rest = torch.where(rest.sum() > 0, rest, p[accepted : accepted + 1])
        return [*proposed[:accepted], int(pick(rest, [us[accepted](REMAINING)]))]
    accepted = next((i for i, token in enumerate(proposed) if sampled[i] != token), len(proposed))
    return sampled[: accepted + 1]


def numbers(seed: int, sequence: int, step: int) -> Callable[[int], float]:
    """A step's random numbers by their use."""
    return lambda use: uniform(seed, sequence, step, use)
