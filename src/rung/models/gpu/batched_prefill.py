"""Prefill for a session: which prompts are read together, and the passes that read them. A pass has a fixed number of
rows and tokens, and is captured once. All its inputs go to the GPU in one copy.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from rung.models.family import Config
from rung.models.gpu.device_copy import sent
from rung.models.gpu.engine import GpuSteps
from rung.models.gpu.loading import Arrival
from rung.models.gpu.prompt_pass import PromptPass, RestPass
from rung.models.gpu.row_transfer import EMPTY_RECORD, RECORD
from rung.models.gpu.token_sampler import SEEDS, SETTINGS, Draw, TokenSampler, packed
from rung.models.operations import Rungs
from rung.operation import Tensors

BUCKETS = (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576)
ROWS = (1, 4, 8, 16, 32)
CHUNK = 4096  # tokens of a pass at most, padding included
PASS = 640  # the fixed cost of a pass, in tokens


@cache
def bucket(tokens: int, capacity: int) -> int:
    """The length to which a prompt is padded."""
    return min([*(b for b in BUCKETS if b >= tokens), capacity])


def shapes(capacity: int, most: int = ROWS[-1]) -> list[tuple[int, int]]:
    """(rows, length) of all passes, of at most so many rows."""
    lengths = [*(b for b in BUCKETS if b < capacity), capacity]
    return [(rows, n) for n in lengths for rows in ROWS if rows == 1 or (rows <= most and rows * n <= CHUNK)]


def passes(lengths: Sequence[int], capacity: int, most: int = ROWS[-1]) -> list[tuple[int, int, list[int]]]:
    """(rows, length, which prompts) of the fastest passes for prompts of these lengths, the longest first."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    padded = [bucket(lengths[i], capacity) for i in order]
    possible: dict[int, list[int]] = {}
    for rows, length in shapes(capacity, most):
        possible.setdefault(length, []).append(rows)
    # The cost of the prompts from here on, and the rows of the pass that starts here.
    best: list[tuple[int, int]] = [(0, 0)] * (len(order) + 1)
    for i in reversed(range(len(order))):
        best[i] = min(
            (PASS + rows * padded[i] + best[min(i + rows, len(order))][0], rows) for rows in possible[padded[i]]
        )
    found, i = [], 0
    while i < len(order):
        rows = best[i][1]
        found.append((rows, padded[i], order[i : i + rows]))
        i += rows
    return found


class Prefill:
    """Fills caches, lengths and history of a session and leaves the logits that follow each prompt.

    `rungs` replaces the table's.
    """

    def __init__(self, config: Config, tensors: Tensors, rows: int, capacity: int, rungs: Rungs | None = None) -> None:
        self.config, self.t, self.rows, self.capacity, self._rungs = config, tensors, rows, capacity, rungs
        self.arrival: Arrival | None = None  # weights that are still being loaded
        self.passes: dict[int, PromptPass] = {}

    @torch.inference_mode()
    def run(self, prompts: Sequence[Sequence[int]]) -> None:
        """One prompt per row."""
        longest = max(map(len, prompts))
        bucket = min([*(b for b in BUCKETS if b >= longest), self.capacity])
        t = self.t
        tokens = self.prepared(bucket).tokens
        sent(_table(prompts, bucket), tokens)
        if tokens.data_ptr() != t["history"].data_ptr():
            t["history"][:, :bucket].copy_(tokens)
        sent([len(p) for p in prompts], t["lengths"])
        self.replay(bucket)

    def replay(self, bucket: int) -> None:
        """Read what is already in the tensors: `history`, if a bucket fills it, and lengths."""
        once = self.prepared(bucket)
        if self.arrival is None or self.arrival.finished:
            once.replay()
            return
        # Layer after layer, without a graph: a graph could not wait for copies that the host has yet to issue.
        once.run(self.arrival.wait)
        self.arrival.finish()
        self.arrival = None

    def prepared(self, length: int) -> PromptPass:
        """The pass for prompts of this length."""
        # Padding comes after a prompt: no earlier token attends to it, and its entries in the cache are overwritten
        # before they can be read.
        if length not in self.passes:
            at = (self.config, self.t, self.rows, length, self.capacity)
            self.passes[length] = PromptPass(*at, rungs=self._rungs)
        return self.passes[length]


class Reader:
    """A pass over prompts: their keys and values, and the logits that follow each. With a `capacity`, over the rest of
    prompts of at most so many tokens whose beginnings are in the rows."""

    def __init__(
        self, engine: GpuSteps, rows: int, length: int, caches: Sequence[torch.Tensor], capacity: int | None = None
    ) -> None:
        c, where = engine.config, engine.operands["wte"].device
        self.rows, self.length, self._engine, self._continues = rows, length, engine, capacity is not None
        self.capacity = length if capacity is None else capacity
        widths = (self.capacity, 1, *((length, length, 1) if self._continues else ()))
        self._packed, (history, lengths, *more) = _packed(rows, widths, where)
        shape = (c.layers, rows, c.NKV, self.capacity, c.HS)
        k, v = (flat[: math.prod(shape)].view(shape) for flat in caches)
        self.tensors: Tensors = {
            **engine.operands,
            "lengths": lengths.view(rows), "history": history, "k_cache": k, "v_cache": v,
            "logits": torch.empty(rows, c.vocabulary, dtype=torch.float32, device=where),
        }  # fmt: skip
        if more:
            rest, places, past = more
            self.tensors |= {"rest": rest, "places": places, "past": past.view(rows)}
            self._rest = RestPass(c, self.tensors)
        else:
            self._prefill = Prefill(c, self.tensors, rows, length)
            self._prefill.prepared(length)

    def read(self, prompts: Sequence[Sequence[int]], past: Sequence[int] = ()) -> None:
        """Computes the logits that follow each prompt, of which so many tokens are in the rows; unused rows repeat the
        last one."""
        missing = self.rows - len(prompts)
        rows = [*prompts, *[prompts[-1]] * missing]
        if not self._continues:
            _send((_table(rows, self.capacity), [len(p) for p in rows]), self._packed)
        else:
            before = np.array([*past, *[past[-1]] * missing], dtype=np.int32)
            rest = [p[n:] for p, n in zip(rows, before, strict=True)]
            places = before[:, None] + np.arange(self.length, dtype=np.int32)
            lengths, tokens = [len(p) for p in rest], _table(rest, self.length)
            _send((_table(rows, self.capacity), lengths, tokens, places, before), self._packed)
        self.replay()

    def replay(self) -> None:
        """Read what is in the tensors; while weights still arrive, layer after layer."""
        if self._continues:
            self._engine.arrive()
            self._rest.replay()
            return
        self._prefill.arrival = self._engine.arrival
        self._prefill.replay(self.length)
        if self._engine.arrival is not None and self._engine.arrival.finished:
            self._engine.arrival = None


def _table(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
    """Rows of integers, padded."""
    table = np.zeros((len(rows), width), dtype=np.int32)
    for to, row in zip(table, rows, strict=True):
        to[: len(row)] = array("i", row)
    return table


class FirstTokens:
    """The first tokens of texts whose prompts a pass has read, and the session's data about the texts. Several texts
    may follow one prompt."""

    def __init__(self, engine: GpuSteps, rows: int) -> None:
        where = engine.operands["wte"].device
        widths = (SETTINGS, SEEDS, RECORD, 1)
        self._packed, (settings, seeds, self.records, of) = _packed(rows, widths, where)
        self.rows, self._of = rows, of.view(rows)
        self.tensors: Tensors = {
            "settings": settings.view(torch.float32), "seeds": seeds,
            "logits": torch.empty(rows, engine.config.vocabulary, dtype=torch.float32, device=where),
            "next": torch.zeros(rows, dtype=torch.int32, device=where),
            "steps": torch.zeros(1, dtype=torch.int32, device=where),
            "done": torch.zeros(rows, dtype=torch.int32, device=where),
        }  # fmt: skip
        self.choice = TokenSampler(self.tensors, rows, engine.config.vocabulary, engine.device, engine.sample)
        self.tensors["marks"] = self.choice.state["marks"]

    def follow(
        self, reader: Reader, of: Sequence[int], draws: Sequence[tuple[Draw, int]], records: Sequence[Sequence[int]]
    ) -> Tensors:
        """Texts follow the prompts in rows `of` of the reader: their logits, and what `RowTransfer.bring` needs."""
        missing = self.rows - len(of)
        settings = packed([*draws, *[draws[-1]] * missing])
        _send((*settings, [*records, *[EMPTY_RECORD] * missing], [*of, *[of[-1]] * missing]), self._packed)
        for row, (draw, _) in enumerate(draws):
            self.choice.mark(row, draw)
        torch.index_select(reader.tensors["logits"], 0, self._of, out=self.tensors["logits"])
        return reader.tensors | self.tensors


def _packed(rows: int, widths: Sequence[int], where: torch.device) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Integers that go to the device in one copy, and their parts (rows, width)."""
    whole = torch.zeros(rows * sum(widths), dtype=torch.int32, device=where)
    parts = torch.split(whole, [rows * width for width in widths])
    return whole, [part.view(rows, -1) for part in parts]


def _send(parts: Sequence[Sequence[Any] | np.ndarray], packed: torch.Tensor) -> None:
    sent(np.concatenate([np.asarray(part, dtype=np.int32).reshape(-1) for part in parts]), packed)
