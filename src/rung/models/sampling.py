"""From logits to a token. The rule is the same on every device: penalties, then temperature, then top-k, top-p and
min-p (each on the probabilities left by the one before), then the first token, in the order of the vocabulary, at which
the cumulative probability passes u. u is a function of seed, sequence and step alone, so that a sequence's text does
not depend on what else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real

import numpy as np

from rung.errors import RungError
from rung.lazy import torch

WORD = 0xFFFFFFFF
MOST_PENALTY = 1e6  # logits stay finite
COLDEST = 1e-5  # a lower temperature is greedy: its inverse would leave float32's range
SHARES = (0.1, 0.01, 1e-3, 1e-4, 0.0)  # of the largest probability: a nucleus is looked for among those above
NOT_FINITE = "the model's logits are no finite numbers; its weights are broken, or too large for its dtype."


def philox(key: int, counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox 4x32 with 10 rounds: four random words for a 64-bit key and a counter of four words."""
    k0, k1 = key & WORD, key >> 32 & WORD
    a, b, c, d = counter
    for _ in range(10):
        x, y = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (y >> 32) ^ b ^ k0, y & WORD, (x >> 32) ^ d ^ k1, x & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return a, b, c, d


def uniform(seed: int, sequence: int, step: int, use: int = 0) -> float:
    """The random number in [0, 1) that decides this step of this sequence; 24 bits, exact in float32."""
    return (philox(seed, (step, use, sequence, 0))[0] >> 8) / (1 << 24)


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. Temperature 0 is greedy."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # divides the logits of tokens in prompt and text
    presence_penalty: float = 0.0  # subtracted once from the logits of tokens in the text
    frequency_penalty: float = 0.0  # subtracted once per occurrence in the text

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "top_k" and value is None:
                continue
            if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
                raise RungError(f"{_flag(field.name)} is {value!r}; it must be a finite number.")
        self._must(self.temperature >= 0, "temperature", "must not be negative; 0 is greedy")
        if 0 < self.temperature < COLDEST:
            object.__setattr__(self, "temperature", 0.0)
        self._must(
            self.top_k is None or (isinstance(self.top_k, Integral) and self.top_k >= 1),
            "top_k",
            "must be at least 1 and whole; leave it out to keep all tokens",
        )
        self._must(0 < self.top_p <= 1, "top_p", "must lie above 0 and up to 1; 1 keeps all tokens")
        self._must(0 <= self.min_p < 1, "min_p", "must lie between 0 and 1; 0 keeps all tokens")
        tiny = 1 / MOST_PENALTY
        self._must(
            tiny <= self.repetition_penalty <= MOST_PENALTY,
            "repetition_penalty",
            f"must be above 0, from {tiny:g} to {MOST_PENALTY:g}; 1 changes nothing",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            self._must(abs(getattr(self, name)) <= MOST_PENALTY, name, f"must not exceed {MOST_PENALTY:g}; 0 is none")

    def _must(self, holds: bool, name: str, rule: str) -> None:
        if not holds:
            raise RungError(f"{_flag(name)} is {getattr(self, name)}; it {rule}.")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is chosen, as the logits are."""
        return self.temperature == 0 and not self.penalised

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


def _flag(name: str) -> str:
    return name.replace("_", "-")


class Penalties:
    """A text's tokens, and their penalties."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocabulary: int) -> None:
        self.sampling = sampling
        self.seen = np.zeros(vocabulary, bool)
        self.counts = np.zeros(vocabulary, np.float32)
        self.seen[list(prompt)] = True

    def add(self, token: int) -> None:
        """One more token of the text."""
        self.seen[token] = True
        self.counts[token] += 1

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """(..., V) -> (..., V)"""
        s = self.sampling
        if s.repetition_penalty != 1:
            harder = np.where(logits > 0, logits / s.repetition_penalty, logits * s.repetition_penalty)
            logits = np.where(self.seen, harder, logits)
        if s.presence_penalty or s.frequency_penalty:
            used = (self.counts > 0).astype(np.float32)
            logits = logits - s.presence_penalty * used - s.frequency_penalty * self.counts
        return logits


def distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """(B, V) logits -> probabilities of the tokens that may be chosen, the rest 0; not normalised after cutting."""
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    # Relative to the largest logit, so that a tiny temperature does not overflow.
    p = ((logits - logits.amax(-1, keepdim=True)) / max(sampling.temperature, COLDEST)).softmax(-1)
    if sampling.top_p < 1:
        p = _nucleus(p, sampling.top_p)
    if sampling.min_p > 0:
        p = p.masked_fill(p < sampling.min_p * p.amax(-1, keepdim=True), 0)
    return p


def _nucleus(p: torch.Tensor, top_p: float) -> torch.Tensor:
    # The most likely tokens whose sum reaches top_p, including the one that crosses it.
    # Sorting a whole vocabulary costs more than a small model's step, and the nucleus is rarely large.
    for size in (min(1024, p.shape[-1]), p.shape[-1]):
        largest, order = p.topk(size, dim=-1)
        before = largest.double().cumsum(-1) - largest
        if bool((before[:, -1] >= top_p).all()):
            break
    return torch.zeros_like(p).scatter_(-1, order, largest.masked_fill(before >= top_p, 0))


def choose(logits: np.ndarray, sampling: Sampling, uniforms: Sequence[float]) -> list[int]:
    """(B, V) logits on the host, one random number per row -> B tokens, without torch."""
    best = logits.argmax(-1)
    largest = np.take_along_axis(logits, best[:, None], -1)
    if not np.isfinite(largest).all():
        raise RungError(NOT_FINITE)
    if sampling.temperature == 0:
        return list(map(int, best))
    return [_pick(row, sampling, u) for row, u in zip(logits - largest, uniforms, strict=True)]


def _pick(logits: np.ndarray, sampling: Sampling, u: float) -> int:
    """The token of a row (V) whose largest logit is 0."""
    kept = np.arange(len(logits))
    if sampling.top_k is not None and sampling.top_k < len(logits):
        kept = np.flatnonzero(logits >= np.partition(logits, -sampling.top_k)[-sampling.top_k])
    p = np.exp(logits[kept] / max(sampling.temperature, COLDEST))
    p /= p.sum()
    if sampling.top_p < 1:
        for share in SHARES:
            some = np.flatnonzero(p >= share * p.max())
            if p[some].sum(dtype=np.float64) >= sampling.top_p:
                break
        some = some[np.argsort(-p[some], kind="stable")]
        before = np.cumsum(p[some], dtype=np.float64) - p[some]
        some = np.sort(some[before < sampling.top_p])
        kept, p = kept[some], p[some]
    if sampling.min_p > 0:
        some = np.flatnonzero(p >= sampling.min_p * p.max())
        kept, p = kept[some], p[some]
    cumulative = np.cumsum(p, dtype=np.float64)
    last = np.searchsorted(cumulative, cumulative[-1])  # as in `pick`
    return int(kept[min(np.searchsorted(cumulative, u * cumulative[-1], side="right"), last)])


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """(B, V) logits -> (B) tokens; RungError where there is no largest logit."""
    best = logits.max(-1)
    if not bool(best.values.isfinite().all()):
        raise RungError(NOT_FINITE)
    return best.indices


def pick(p: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """(B, V) probabilities, up to a factor, and one random number per row -> (B) tokens."""
    cumulative = p.double().cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    if bool(total.isnan().any()):
        raise RungError(NOT_FINITE)
    u = torch.tensor(uniforms, dtype=torch.float64, device=p.device)[:, None] * total
    chosen = torch.searchsorted(cumulative, u, right=True).squeeze(-1)
    # u < 1, but its product with the sum may round up to the sum; then take the last token with nonzero probability.
    return torch.minimum(chosen, torch.searchsorted(cumulative, total).squeeze(-1))
