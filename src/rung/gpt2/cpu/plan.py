"""The plan of the CPU: torch for many tokens at once, one compiled call for few."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from rung.errors import RungError
from rung.gpt2.cache import Cache
from rung.gpt2.config import Config
from rung.gpt2.cpu import build
from rung.gpt2.cpu.engine import Column, Engine, available
from rung.gpt2.plan import Service
from rung.gpt2.torch_plan import TorchPlan
from rung.gpt2.weights import Weights

CPU_DTYPES = ("auto", "float32", "bfloat16", "int8")
# Prompts up to so many tokens go through the compiled step. Weights are then read once for all, yet every
# column is computed by itself, which a blocked matrix product beats from some length on.
SHORT_PROMPT = 8
# Threads meet five times per layer: that pays from so many bytes of weights for each, up to so many threads.
BYTES_A_THREAD = 16 << 20
MOST_THREADS = 16


def fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and bool(torch.cpu._is_avx512_bf16_supported())


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resolve(dtype: str) -> str:
    """What `auto` means here: half the bytes where the machine computes with them at full speed."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if build.begin() is not None or fast_bfloat16() else "float32"


class CpuPlan(TorchPlan):
    """Weights in float32, bfloat16 or int8."""

    name = on = "cpu"
    prompts_alone = True

    def __init__(
        self, dtype: str, threads: int | None = None, window: int | None = None, global_tokens: int = 0
    ) -> None:
        if dtype not in CPU_DTYPES:
            raise RungError(f"the cpu computes no {dtype}; use one of {', '.join(CPU_DTYPES)}.")
        self.dtype = resolve(dtype)
        stored = getattr(torch, self.dtype)
        compute = torch.float32 if stored == torch.float32 or not fast_bfloat16() else torch.bfloat16
        super().__init__(torch.device("cpu"), stored, compute, window, global_tokens)
        self.threads = threads
        torch.set_num_threads(threads or processors())
        self._native = None if global_tokens else available()  # the compiled step has a window alone
        # torch rounds a row of bfloat16 otherwise when others stand beside it.
        self.tokens_alone = self._native is None and stored != torch.float32
        if self._native is not None:
            self.cache_dtype = torch.float32 if stored == torch.float32 else torch.bfloat16

    def serve(self, config: Config, weights: Weights) -> Service:
        if self._native is None:
            return Service()
        worth = weights.nbytes() // BYTES_A_THREAD
        threads = self.threads or max(1, min(processors(), MOST_THREADS, worth))
        return Service(stepper=NativeStep(Engine(self._native, config, weights, threads, self.window)))


class NativeStep:
    """A few tokens for each sequence through the compiled step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def takes(self, tokens: Sequence[Sequence[int]]) -> bool:
        return max(map(len, tokens)) <= SHORT_PROMPT

    def step(self, tokens: Sequence[Sequence[int]], cache: Cache) -> torch.Tensor:
        engine = self.engine
        columns: list[Column] = []
        parts: list[torch.Tensor] = []
        asked = 0

        def go() -> None:
            nonlocal asked
            parts.append(engine.step(columns, cache, asked))
            columns.clear()
            asked = 0

        for row, ids in enumerate(tokens):
            if len(columns) + len(ids) > engine.columns_at_once:
                go()
            for i, token in enumerate(ids):
                last = i == len(ids) - 1
                columns.append(Column(token, row, cache.lengths[row] + i, asked if last else -1))
            asked += 1
        go()
        return parts[0] if len(parts) == 1 else torch.cat(parts)
