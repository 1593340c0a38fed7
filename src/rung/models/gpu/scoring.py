"""Scoring windows of tokens on the GPU: passes of a fixed number of tokens, by length, with head and softmax fused.
A window's pass depends only on its length, every pass of a length has the same shape, and its rows are independent: a
window's figures do not depend on the others in the pass. A pass takes TOKENS tokens, as windows of one bucket's length,
so that all passes need the same memory and share it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rung.models.family import Config
from rung.models.gpu.device_copy import sent, to_host
from rung.models.gpu.recorded import RecordedPass
from rung.models.gpu.recording import Buffers
from rung.models.operations import score_rungs
from rung.models.score import Rated
from rung.models.tensors import plain_torch
from rung.operation import Tensors

TOKENS = 8192  # tokens per pass, padding included
SECONDS, AHEAD = 0.5, 8192  # that a window waits for a full pass while nothing runs; windows read meanwhile
DEEP = 16  # passes that are enqueued before the host waits for the first of them
LENGTHS = (16, 32, 48, *range(64, 512, 32), *range(512, 1025, 64), *range(1280, 4097, 256), *range(5120, 32769, 1024))


class ScoringPass(RecordedPass):
    """`rows` windows of `length` tokens: `run` reads `given`, and leaves log-probabilities, ranks and entropies."""

    def __init__(self, config: Config, tensors: Tensors, rows: int, length: int, buffers: Buffers, budget: int) -> None:
        where = tensors["wte"].device
        self.given = torch.zeros(2, rows, length, dtype=torch.int32, device=where)
        # Log-probabilities, entropies, ranks (as integers).
        self.found = torch.zeros(3, rows, length, dtype=torch.float32, device=where)
        super().__init__(config, tensors, self.given[0], buffers=buffers, budget=budget)

    def end(self, x: torch.Tensor) -> None:
        logprob, entropy, rank = self.found.unbind()
        tensors = {"x": x, "weight": self.weights.head.weight, "targets": self.given[1]}
        tensors |= {"logprob": logprob, "entropy": entropy, "rank": rank.view(torch.int32)}
        B, T, C = x.shape
        dims = {"B": B, "T": T, "C": C, "V": self.weights.head.weight.shape[0]}
        recorded = self.record("token_logprob", score_rungs(self.device), tensors, dims)
        assert recorded, f"no rung of token_logprob takes {dims}"


@dataclass
class _Sent:
    """An enqueued pass: the windows in its rows, and the place of their figures."""

    windows: list[tuple[int, int]]  # number and length of each row's
    found: torch.Tensor  # (3, rows, length), on the host
    done: torch.cuda.Event | None

    def arrived(self) -> bool:
        return self.done is None or bool(self.done.query())  # type: ignore[no-untyped-call]

    def results(self, whole: bool) -> Iterator[tuple[int, Rated]]:
        """The windows' figures, once the GPU has them."""
        if self.done is not None:
            self.done.synchronize()
        for row, (number, length) in enumerate(self.windows):
            logprobs = self.found[0, row, : length - 1]
            entropies, ranks = self.found[1:, row, : length - 1 if whole else 0].unbind()
            yield number, Rated(logprobs, ranks.view(torch.int32), entropies)


class GpuScorer:
    """Scores windows in passes, once `ready` has returned; tests make `tokens` and `ahead` small."""

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
        self.passes: dict[int, ScoringPass] = {}
        self._buffers = Buffers()
        self._lock = threading.Lock()  # the passes share their buffers

    def rate(self, windows: Iterable[Sequence[int]], *, whole: bool = True) -> Iterator[Rated]:
        """A window waits until others of its length fill a pass, up to a time limit."""
        self._ready()
        rated: dict[int, Rated] = {}
        reported = 0
        for number, one in self._rate(windows, whole):
            rated[number] = one
            while reported in rated:
                yield rated.pop(reported)
                reported += 1

    def _rate(self, windows: Iterable[Sequence[int]], whole: bool) -> Iterator[tuple[int, Rated]]:
        """In the order of the passes, each with the window's number."""
        waiting: dict[int, list[tuple[int, Sequence[int]]]] = {}  # by length
        since: dict[int, float] = {}  # arrival of the first of them; the oldest first
        under_way: deque[_Sent] = deque()
        for number, window in enumerate(windows):
            length, now = self._length(len(window) - 1), time.monotonic()
            since.setdefault(length, now)
            waiting.setdefault(length, []).append((number, window))
            oldest = next(iter(since))
            late = not under_way and now - since[oldest] > SECONDS
            late = late or number - waiting[oldest][0][0] >= self._ahead
            if (full := len(waiting[length]) == self._rows(length)) or late:
                due = length if full else oldest
                del since[due]
                under_way.append(self._send(due, waiting.pop(due)))
            while under_way and (len(under_way) > DEEP or under_way[0].arrived()):
                yield from under_way.popleft().results(whole)
        under_way.extend([self._send(length, some) for length, some in waiting.items()])
        for one in under_way:
            yield from one.results(whole)

    def _length(self, tokens: int) -> int:
        return min(next((n for n in LENGTHS if n >= tokens), self.config.context), self.config.context)

    def _rows(self, length: int) -> int:
        return max(1, self._tokens // length)

    @torch.inference_mode()
    def _send(self, length: int, windows: Sequence[tuple[int, Sequence[int]]]) -> _Sent:
        """Enqueue one pass."""
        rows = self._rows(length)
        given = np.zeros((2, rows, length), dtype=np.int32)
        for row, (_, window) in enumerate(windows):
            ids = np.asarray(window, dtype=np.int32)
            given[0, row, : len(ids) - 1] = ids[:-1]
            given[1, row, : len(ids) - 1] = ids[1:]
        with self._lock, plain_torch(self.t["wte"].device):
            if length not in self.passes:
                self.passes[length] = ScoringPass(self.config, self.t, rows, length, self._buffers, self._tokens)
            one = self.passes[length]
            sent(given, one.given)
            one.replay()
            found, done = to_host(one.found)
        return _Sent([(number, len(window)) for number, window in windows], found, done)
