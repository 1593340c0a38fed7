"""Prompts into the caches: all their tokens at once, in buckets of lengths that are each captured once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from rung.errors import RungError
from rung.gpt2.config import Config
from rung.gpt2.gpu.loading import Arrival
from rung.gpt2.gpu.prefill_ladder import LadderPass
from rung.gpt2.rungs import Rungs
from rung.operation import Tensors

BUCKETS = (16, 32, 64, 128, 256, 384, 512, 768, 1024)
WAYS = ("ladder", "torch")


class Pass(Protocol):
    """Prompts of one length, padding included: `run` reads `tokens` and lengths, and leaves caches and logits."""

    tokens: torch.Tensor  # (rows, length), int32

    def run(self) -> None: ...


class Prefill:
    """Fills caches, lengths and history of a session and leaves the logits that follow each prompt.

    `way` is "ladder" (the operations' ladders, by `rungs` in place of the table's) or "torch".
    """

    def __init__(
        self,
        config: Config,
        tensors: Tensors,
        rows: int,
        capacity: int,
        way: str = WAYS[0],
        rungs: Rungs | None = None,
    ) -> None:
        self.config, self.t, self.rows, self.capacity, self._rungs = config, tensors, rows, capacity, rungs
        self.way = way
        if way not in WAYS:
            raise RungError(f"{way!r} is no way to read prompts; use one of {', '.join(WAYS)}.")
        self.arriving: Arrival | None = None  # weights that are still on their way
        self.passes: dict[int, Pass] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @torch.inference_mode()
    def run(self, prompts: Sequence[Sequence[int]]) -> None:
        """One prompt a row."""
        longest = max(map(len, prompts))
        bucket = min([*(b for b in BUCKETS if b >= longest), self.capacity])
        t = self.t
        padded = np.zeros((len(prompts), bucket), dtype=np.int32)
        for row, prompt in zip(padded, prompts, strict=True):
            row[: len(prompt)] = prompt
        tokens = self._pass(bucket).tokens
        tokens.copy_(torch.from_numpy(padded))
        if tokens.data_ptr() != t["history"].data_ptr():
            t["history"][:, :bucket].copy_(tokens)
        t["lengths"].copy_(torch.tensor([len(p) for p in prompts], dtype=torch.int32))
        if self.arriving is not None:
            self._run_while_arriving(self._pass(bucket), self.arriving)
        elif t["lengths"].device.type == "cuda":
            self._graph(bucket).replay()
        else:
            self._pass(bucket).run()

    def _run_while_arriving(self, once: Pass, arriving: Arrival) -> None:
        # Layer after layer, without a graph: a recording could not wait for what the host has yet to hand over.
        if isinstance(once, LadderPass):
            once.run(arriving.wait)
        arriving.finish()
        self.arriving = None
        if not isinstance(once, LadderPass):
            once.run()

    def _pass(self, length: int) -> Pass:
        # Padding comes after a prompt: nothing before it sees it, and what it leaves in the cache is overwritten
        # before it can be read.
        if length not in self.passes:
            if self.way == "torch":
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
                run()  # libraries choose and allocate now, not while recording
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                run()
            self._graphs[bucket] = graph
        return self._graphs[bucket]


class TorchPass:
    """The same by torch's operations, one after the other: what the ladders are measured against."""

    def __init__(self, config: Config, tensors: Tensors, rows: int, length: int) -> None:
        self.config, self.t, self.rows, self.length = config, tensors, rows, length
        self.tokens = tensors["history"][:, :length]

    @torch.inference_mode()
    def run(self) -> None:
        t, c, B, T = self.t, self.config, self.rows, self.length
        x = F.embedding(self.tokens, t["wte"]) + t["wpe"][:T]  # (B, T, C)
        for layer in range(c.layers):
            n = F.layer_norm(x, (c.C,), t["ln1_w"][layer], t["ln1_b"][layer], c.eps)
            qkv = F.linear(n, t["qkv_w"][layer], t["qkv_b"][layer])
            q, k, v = qkv.view(B, T, 3, c.NH, c.HS).permute(2, 0, 3, 1, 4).unbind()  # (B, NH, T, HS)
            t["k_cache"][layer, :, :, :T], t["v_cache"][layer, :, :, :T] = k, v
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=c.attention_scale(layer))
            x = x + F.linear(y.transpose(1, 2).reshape(B, T, c.C), t["proj_w"][layer], t["proj_b"][layer])
            n = F.layer_norm(x, (c.C,), t["ln2_w"][layer], t["ln2_b"][layer], c.eps)
            h = self._activation(F.linear(n, t["fc_w"][layer], t["fc_b"][layer]))
            x = x + F.linear(h, t["fc2_w"][layer], t["fc2_b"][layer])
        rows = torch.arange(B, device=x.device)
        last = x[rows, t["lengths"].long() - 1]  # (B, C)
        last = F.layer_norm(last, (c.C,), t["lnf_w"], t["lnf_b"], c.eps)
        t["logits"].copy_(F.linear(last, t["head_w"]))

    def _activation(self, x: torch.Tensor) -> torch.Tensor:
        if self.config.activation == "relu":
            return F.relu(x)
        return F.gelu(x, approximate="tanh" if self.config.activation == "gelu_tanh" else "none")
