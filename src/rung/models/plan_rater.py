"""Scores windows of tokens through the operations of any plan, one window at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

import torch

from rung.models.buffers import empty, integers
from rung.models.gpt2.model import Transformer
from rung.models.score import Rated

TOKENS_AT_ONCE = 64  # whose logits are in memory at the same time: 13 MB for GPT-2


class PlanRater:
    """Window after window through the operations of any plan."""

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer
        self._lock = threading.Lock()  # a plan's buffers serve one window at a time

    def rate(self, windows: Iterable[Sequence[int]], *, whole: bool = True) -> Iterator[Rated]:
        for ids in windows:
            with self._lock:
                rated = self._one(integers([list(ids)]), whole)
            yield rated

    @torch.inference_mode()
    def _one(self, tokens: torch.Tensor, whole: bool) -> Rated:
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
