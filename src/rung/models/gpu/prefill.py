"""Prefill: all tokens of a prompt at once, in buckets of lengths, each captured in a graph once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from rung.errors import RungError
from rung.models.cache import Cache
from rung.models.gpt2.config import Config
from rung.models.gpt2.model import Transformer
from rung.models.gpt2.rungs import Rungs
from rung.models.gpu.loading import Arrival, as_weights
from rung.models.gpu.memory import sent
from rung.models.gpu.prefill_ladder import LadderPass
from rung.models.torch_plan import TorchPlan
from rung.operation import Tensors

BUCKETS = (16, 32, 64, 128, 256, 384, 512, 768, 1024)
METHODS = ("ladder", "torch")


class Pass(Protocol):
    """Prompts of one length, padding included: `run` reads `tokens` and lengths, and leaves caches and logits."""

    tokens: torch.Tensor  # (rows, length), int32

    def run(self) -> None: ...


class Prefill:
    """Fills caches, lengths and history of a session and leaves the logits that follow each prompt.

    `method` is "ladder" (the operations' ladders, by `rungs` in place of the table's) or "torch".
    """

    def __init__(
        self,
        config: Config,
        tensors: Tensors,
        rows: int,
        capacity: int,
        method: str = METHODS[0],
        rungs: Rungs | None = None,
    ) -> None:
        self.config, self.t, self.rows, self.capacity, self._rungs = config, tensors, rows, capacity, rungs
        self.method = method
        if method not in METHODS:
            raise RungError(f"{method!r} is not a method of reading prompts; use one of {', '.join(METHODS)}.")
        self.arrival: Arrival | None = None  # weights that are still being loaded
        self.passes: dict[int, Pass] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @torch.inference_mode()
    def run(self, prompts: Sequence[Sequence[int]]) -> None:
        """One prompt per row."""
        longest = max(map(len, prompts))
        bucket = min([*(b for b in BUCKETS if b >= longest), self.capacity])
        t = self.t
        padded = np.zeros((len(prompts), bucket), dtype=np.int32)
        for row, prompt in zip(padded, prompts, strict=True):
            row[: len(prompt)] = prompt
        tokens = self._pass(bucket).tokens
        sent(padded, tokens)
        if tokens.data_ptr() != t["history"].data_ptr():
            t["history"][:, :bucket].copy_(tokens)
        sent([len(p) for p in prompts], t["lengths"])
        if self.arrival is not None:
            self._run_while_arriving(self._pass(bucket), self.arrival)
        else:
            self.replay(bucket)

    def replay(self, bucket: int) -> None:
        """Read what is already in the tensors: `history`, if a bucket fills it, and lengths."""
        if self.t["lengths"].is_cuda:
            self._graph(bucket).replay()
        else:
            self._pass(bucket).run()

    def _run_while_arriving(self, once: Pass, arrival: Arrival) -> None:
        # Layer after layer, without a graph: a graph could not wait for copies that the host has yet to issue.
        if isinstance(once, LadderPass):
            once.run(arrival.wait)
        arrival.finish()
        self.arrival = None
        if not isinstance(once, LadderPass):
            once.run()

    def _pass(self, length: int) -> Pass:
        # Padding comes after a prompt: no earlier token attends to it, and its entries in the cache are overwritten
        # before they can be read.
        if length not in self.passes:
            if self.method == "torch":
                self.passes[length] = TorchPass(self.config, self.t, self.rows, length)
            else:
                at = (self.config, self.t, self.rows, length, self.capacity)
                self.passes[length] = LadderPass(*at, rungs=self._rungs)
        return self.passes[length]

    def _graph(self, bucket: int) -> torch.cuda.CUDAGraph:
        if bucket not in self._graphs:
            run = self._pass(bucket).run
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                run()  # libraries choose and allocate now, not during capture
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                run()
            self._graphs[bucket] = graph
        return self._graphs[bucket]


class TorchPass:
    """The model's forward pass by torch's operations, against which the ladders are measured."""

    def __init__(self, config: Config, tensors: Tensors, rows: int, length: int) -> None:
        self.tokens = tensors["history"][:, :length]
        self._lengths, self._logits = tensors["lengths"], tensors["logits"]
        self._cache = Cache.over(tensors["k_cache"], tensors["v_cache"])
        self._plan = TorchPlan(tensors["wte"].device, tensors["wte"].dtype, tensors["wte"].dtype)
        self._model = Transformer(config, as_weights(tensors, config), self._plan)
        self._rows = torch.arange(rows, dtype=torch.int64, device=tensors["wte"].device)

    @torch.inference_mode()
    def run(self) -> None:
        x = self._model.hidden(self.tokens, self._cache)  # (B, T, C)
        last = x[self._rows, self._lengths.long() - 1]  # (B, C)
        self._logits.copy_(self._plan.matmul(last, self._model.weights.head))
