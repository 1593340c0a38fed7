"""A model's forward pass: a family's layers over the operations of a plan."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rung.lazy import torch
from rung.models.cache import Cache
from rung.models.family import Config
from rung.models.plan import Plan
from rung.models.score import Rated
from rung.models.tensors import empty, integers, plain_torch
from rung.models.weights import Weights

TOKENS_AT_ONCE = 64  # whose logits are in memory at the same time: 13 MB for GPT-2


class Transformer:
    """Tokens in, logits out."""

    def __init__(self, config: Config, weights: Weights, plan: Plan) -> None:
        self.config, self.weights, self.plan = config, weights, plan
        self.service = plan.serve(config, weights)
        self.drafting: Drafting | None = None  # the source of drafts for its texts

    def hidden(self, tokens: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """(B, T) -> (B, T, C): what the LM head reads. The cache is filled, not advanced."""
        x: torch.Tensor = self.config.family.forward(self.plan, self.config, self.weights, tokens, cache)
        return x

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, T) -> (B, T, V) in float32, without a cache."""
        with torch.no_grad():  # not inference mode: a caller may go on with the tensor
            return self._head(self.hidden(tokens.to(self.plan.device)))

    def advance(self, tokens: Sequence[Sequence[int]], cache: Cache) -> torch.Tensor:
        """Append these tokens to the cache's sequences; logits (rows, V) in float32 for what follows each."""
        with torch.inference_mode():
            logits = self._next(tokens, cache)
        cache.advance([len(ids) for ids in tokens])
        return logits

    def advance_all(self, ids: Sequence[int], cache: Cache) -> torch.Tensor:
        """Append tokens to the cache's one sequence; logits (T, V) in float32 for what follows each of them."""
        with torch.inference_mode():
            logits = self._head(self.hidden(integers([list(ids)], self.plan.device), cache))[0]
        cache.advance([len(ids)])
        return logits

    def _next(self, tokens: Sequence[Sequence[int]], cache: Cache) -> torch.Tensor:
        if self.service.native is not None:
            return torch.from_numpy(self.service.native.follow(tokens, cache))
        longest = max(map(len, tokens))
        alone = self.plan.prompts_alone if longest > 1 else self.plan.tokens_alone
        if alone and len(tokens) > 1:
            return torch.cat([self._next([ids], cache.row(row)) for row, ids in enumerate(tokens)])
        # Short rows are padded at their end: no earlier token attends to the padding, and its entries in the cache are
        # overwritten before they can be read.
        padded = integers([[*ids, *[0] * (longest - len(ids))] for ids in tokens])
        last = integers([len(ids) - 1 for ids in tokens])
        return self._last(padded.to(self.plan.device), last.to(self.plan.device), cache)

    def _last(self, tokens: torch.Tensor, last: torch.Tensor, cache: Cache) -> torch.Tensor:
        x = self.hidden(tokens, cache)
        rows = torch.arange(len(last), dtype=torch.int64, device=x.device)
        return self._head(x[rows, last][:, None])[:, 0]

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        # A copy, since the plan may reuse its buffers.
        return self.plan.matmul(x, self.weights.head).to(torch.float32, copy=True)

    def new_cache(self, rows: int, capacity: int) -> Cache:
        """An empty cache for this many sequences of up to this many tokens."""
        c = self.config
        return Cache(c.layers, rows, c.NKV, capacity, c.HS, getattr(torch, self.plan.cache_dtype), self.plan.device)


@dataclass(frozen=True)
class Drafting:
    """The source of a model's drafts (None: its texts so far), and the cost of a draft token in steps."""

    source: Transformer | None
    cost: float


class PlanScorer:
    """Window after window through the operations of any plan."""

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer
        self._lock = threading.Lock()  # a plan's buffers serve one window at a time

    def rate(self, windows: Iterable[Sequence[int]], *, whole: bool = True) -> Iterator[Rated]:
        for ids in windows:
            with self._lock, plain_torch(self.transformer.plan.device), torch.inference_mode():
                rated = self._rate(integers([list(ids)]), whole)
            yield rated

    def _rate(self, tokens: torch.Tensor, whole: bool) -> Rated:
        model = self.transformer
        # A copy, since the plan may reuse its buffers.
        x = model.hidden(tokens[:, :-1].to(model.plan.device)).clone()  # (1, T - 1, C)
        targets = tokens[0, 1:].to(x.device)
        parts: list[tuple[torch.Tensor, ...]] = []
        for start in range(0, x.shape[1], TOKENS_AT_ONCE):
            part = slice(start, start + TOKENS_AT_ONCE)
            logits = model.plan.matmul(x[:, part], model.weights.head)[0].float()
            total = logits.logsumexp(-1, keepdim=True)
            own = logits.gather(1, targets[part, None])
            if not whole:
                parts.append(((own - total)[:, 0].cpu(), integers([]), empty(0)))
                continue
            ranks = (logits > own).sum(1)
            mean = (torch.sub(logits, total).exp_() * logits).sum(1)  # entropy of the logits' distribution
            parts.append(((own - total)[:, 0].cpu(), ranks.cpu(), (total[:, 0] - mean).cpu()))
        if not parts:
            nothing = empty(0)
            return Rated(nothing, nothing.long(), nothing)
        return Rated(*(torch.cat(kind) for kind in zip(*parts, strict=True)))
