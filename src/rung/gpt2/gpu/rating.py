"""Windows of tokens rated on the GPU: passes of a fixed number of tokens, by length, the head and its softmax in one.

A window's length alone decides which pass takes it, every pass has the same shape each time, and its rows do not see
each other: a window's figures cannot depend on what stands beside it. A pass takes TOKENS tokens, as many windows of a
bucket's length as these are, so that the memory of all passes is the same and is shared.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from rung.gpt2.config import Config
from rung.gpt2.gpu.prefill_ladder import LadderPass
from rung.gpt2.rungs import score_rungs
from rung.gpt2.score import Rated
from rung.operation import Tensors

TOKENS = 8192  # of a pass, padding included
FIRST, AHEAD = 64, 2048  # windows that are read before the first is rated, at first and at most: passes are to fill
LENGTHS = (16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)


class RatingPass(LadderPass):
    """`rows` windows of `length` tokens: `run` reads `tokens`, and leaves log-probabilities, ranks and entropies."""

    def __init__(self, config: Config, tensors: Tensors, rows: int, length: int, shared: Tensors, budget: int) -> None:
        self._shared, self._budget = shared, budget
        where = tensors["wte"].device
        held = {"lengths": torch.full((rows,), length, dtype=torch.int32, device=where)}
        held["history"] = torch.zeros(rows, length, dtype=torch.int32, device=where)
        self.targets = torch.zeros(rows, length, dtype=torch.int32, device=where)
        self.found = torch.zeros(3, rows, length, device=where)  # log-probabilities, entropies, ranks (as integers)
        super().__init__(config, {**tensors, **held}, rows, length, length)

    def _keep(self, qkv: torch.Tensor, first: int, layers: int) -> None:
        """Keys and values are not needed again."""

    def _last(self, y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return y, x  # all tokens, not each row's last

    def _end(self, n: torch.Tensor) -> None:
        logprob, entropy, rank = self.found.unbind()
        tensors = {"x": n, "weight": self._aligned("head_w"), "targets": self.targets}
        tensors |= {"logprob": logprob, "entropy": entropy, "rank": rank.view(torch.int32)}
        B, T, C = n.shape
        dims = {"B": B, "T": T, "C": C, "V": self.t["head_w"].shape[0]}
        taken = self._op("token_logprob", tensors, dims, score_rungs(self._device))
        assert taken, f"no rung of token_logprob takes {dims}"

    def _buffer(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        # Passes run one after the other: what one has computed, the next may overwrite.
        kind, count = dtype or self._real.torch, math.prod(shape)
        key = f"{name} {kind}"
        if key not in self._shared or self._shared[key].numel() < count:
            most = -(-count * self._budget // (self.B * self.T))
            self._shared[key] = torch.empty(max(count, most), dtype=kind, device=self._where)
        return self._shared[key][:count].view(shape)


class _Group:
    """Windows whose passes are enqueued."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths
        self._parts: list[tuple[list[int], torch.Tensor]] = []
        self._done: torch.cuda.Event | None = None

    def add(self, indices: list[int], found: torch.Tensor) -> None:
        self._parts.append((indices, found))

    def end(self) -> None:
        """Everything has been enqueued."""
        if self._parts[0][1].is_pinned():
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    def results(self) -> list[Rated]:
        """All windows' figures in their order, once the GPU has them."""
        if self._done is not None:
            self._done.synchronize()
        places = {index: (found, row) for part, found in self._parts for row, index in enumerate(part)}
        rated = []
        for index, length in enumerate(self._lengths):
            found, row = places[index]
            logprobs, entropies, ranks = found[:, row, : length - 1].unbind()
            rated.append(Rated(logprobs, ranks.view(torch.int32), entropies))
        return rated


class GpuRater:
    """Rates windows in passes, once `ready` has returned; `tokens` and `ahead` are made small by tests."""

    def __init__(
        self,
        config: Config,
        tensors: Tensors,
        *,
        ready: Callable[[], None] = lambda: None,
        tokens: int = TOKENS,
        ahead: int = AHEAD,
    ) -> None:
        self.config, self.t, self._ready = config, tensors, ready
        self._tokens, self._ahead = tokens, ahead
        self.passes: dict[int, RatingPass] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._shared: Tensors = {}
        self._lock = threading.Lock()  # the passes' buffers serve one group at a time

    def rate(self, windows: Iterable[Sequence[int]], *, whole: bool = True) -> Iterator[Rated]:
        """While a group's figures are handed out, the GPU is at the next group."""
        self._ready()
        source = iter(windows)
        size, before = min(FIRST, self._ahead), None
        while group := list(itertools.islice(source, size)):
            with self._lock:
                begun = self._begin(group)
            if before is not None:
                yield from before.results()
            size, before = min(2 * size, self._ahead), begun
        if before is not None:
            yield from before.results()

    @torch.inference_mode()
    def _begin(self, group: Sequence[Sequence[int]]) -> _Group:
        by_length: dict[int, list[int]] = {}
        for index, window in enumerate(group):
            by_length.setdefault(self._length(len(window) - 1), []).append(index)
        begun = _Group([len(window) for window in group])
        for length in sorted(by_length, reverse=True):  # the longest first: shared buffers are then large enough
            indices, rows = by_length[length], self._rows(length)
            for start in range(0, len(indices), rows):
                part = indices[start : start + rows]
                begun.add(part, self._pass(length, [group[i] for i in part]))
        begun.end()
        return begun

    def _length(self, tokens: int) -> int:
        return min([*(n for n in LENGTHS if n >= tokens), self.config.context])

    def _rows(self, length: int) -> int:
        return max(1, self._tokens // length)

    def _pass(self, length: int, windows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Enqueue one pass; its figures will be in the memory that is returned."""
        rows = self._rows(length)
        if length not in self.passes:
            self.passes[length] = RatingPass(self.config, self.t, rows, length, self._shared, self._tokens)
        one = self.passes[length]
        on_gpu = one.tokens.is_cuda
        given = torch.zeros(2, rows, length, dtype=torch.int32, pin_memory=on_gpu)
        tokens, targets = given.numpy()
        for row, window in enumerate(windows):
            ids = np.asarray(window, dtype=np.int32)
            tokens[row, : len(ids) - 1] = ids[:-1]
            targets[row, : len(ids) - 1] = ids[1:]
        one.tokens.copy_(given[0], non_blocking=True)
        one.targets.copy_(given[1], non_blocking=True)
        self._run(length, one)
        found = torch.empty(one.found.shape, pin_memory=on_gpu)
        return found.copy_(one.found, non_blocking=True)

    def _run(self, length: int, one: RatingPass) -> None:
        if one.tokens.device.type != "cuda":
            one.run()
            return
        if length not in self._graphs:
            one.run()  # libraries choose and allocate now, not while recording
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                one.run()
            self._graphs[length] = graph
        self._graphs[length].replay()
