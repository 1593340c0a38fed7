"""GPT-2's forward pass, written once over the operations of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rung.models.buffers import integers
from rung.models.cache import Cache
from rung.models.gpt2.config import Config
from rung.models.gpt2.weights import Layer, Weights
from rung.models.plan import Plan


class Transformer:
    """Tokens in, logits out."""

    def __init__(self, config: Config, weights: Weights, plan: Plan) -> None:
        self.config, self.weights, self.plan = config, weights, plan
        self.service = plan.serve(config, weights)
        self.drafting: Drafting | None = None  # the source of drafts for its texts

    def hidden(self, tokens: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """(B, T) -> (B, T, C): what the LM head reads. The cache is filled, not advanced."""
        plan, weights, eps = self.plan, self.weights, self.config.eps
        past = cache.lengths if cache else [0] * tokens.shape[0]
        x = plan.embedding(tokens, past, weights.wte, weights.wpe)
        for i, layer in enumerate(weights.layers):
            y = self._attention(x, layer, i, cache)
            x, y = plan.residual_layernorm(x, y, layer.ln_2, eps)
            h = plan.matmul_activation(y, layer.fc, self.config.activation)  # (B, T, F)
            x = plan.matmul_residual(h, layer.mlp_proj, x)
        return plan.layernorm(x, weights.ln_f, eps)

    def _attention(self, x: torch.Tensor, layer: Layer, i: int, cache: Cache | None) -> torch.Tensor:
        qkv = self.plan.layernorm_matmul(x, layer.ln_1, self.config.eps, layer.qkv)  # (B, T, 3C)
        y = self.plan.attention(qkv, self.config.NH, self.config.attention_scale(i), i, cache)
        return self.plan.matmul(y, layer.attn_proj)

    @torch.no_grad()  # not inference mode: a caller may go on with the tensor
    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, T) -> (B, T, V) in float32, without a cache."""
        tokens = tokens.to(self.plan.device)
        return self._head(self.hidden(tokens))

    @torch.inference_mode()
    def advance(self, tokens: Sequence[Sequence[int]], cache: Cache) -> torch.Tensor:
        """Append these tokens to the cache's sequences; logits (rows, V) in float32 for what follows each."""
        logits = self._next(tokens, cache)
        cache.advance([len(ids) for ids in tokens])
        return logits

    @torch.inference_mode()
    def advance_all(self, ids: Sequence[int], cache: Cache) -> torch.Tensor:
        """Append tokens to the cache's one sequence; logits (T, V) in float32 for what follows each of them."""
        logits = self._head(self.hidden(integers([list(ids)], self.plan.device), cache))[0]
        cache.advance([len(ids)])
        return logits

    def _next(self, tokens: Sequence[Sequence[int]], cache: Cache) -> torch.Tensor:
        stepper, longest = self.service.stepper, max(map(len, tokens))
        if stepper is not None and stepper.takes(tokens):
            return stepper.step(tokens, cache)
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
        return Cache(c.layers, rows, c.NH, capacity, c.HS, self.plan.cache_dtype, self.plan.device)


@dataclass(frozen=True)
class Drafting:
    """The source of a model's drafts (None: its texts so far), and the cost of a draft token in steps."""

    source: Transformer | None
    cost: float
