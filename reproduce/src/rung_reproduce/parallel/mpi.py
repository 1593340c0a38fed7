"""Attention over MPI ranks: the sequence split in a ring, or heads split among ranks.

MPI moves the data. Only the main thread calls it, and it polls: local blocks run in a separate thread, so communication
overlaps computing, and every wait has a timeout.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rung.errors import RungError, first_line
from rung_reproduce.parallel import launch, local, ring
from rung_reproduce.parallel.ring import travel

Floats = NDArray[np.float32]
QUICK_LOOKS = 200  # polls before the thread sleeps between polls
LONGEST_SLEEP = 1e-3  # seconds


def engine() -> Any:
    """mpi4py's MPI; importing it starts MPI."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise RungError(
            f"mpi4py is missing or finds no MPI library ({first_line(error)}); `{launch.INSTALL}` installs both."
        ) from None
    return MPI


@dataclass
class Pace:
    """How a rank spent its time, in seconds."""

    work: float = 0.0  # computing
    passing: float = 0.0  # from the first byte of a message until the last, computing or not
    exposed: float = 0.0  # waiting for messages without work


@dataclass
class Ranks:
    """The ranks of a job, one of which is this process. Every wait ends, at the latest with a RungError."""

    comm: Any
    patience: float = 60.0
    pace: Pace = field(default_factory=Pace)
    _worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    @property
    def rank(self) -> int:
        return int(self.comm.rank)

    @property
    def size(self) -> int:
        return int(self.comm.size)

    def wait(self, requests: Sequence[Any], what: str, work: Future[None] | None = None) -> None:
        """Waits until all requests and `work` are done; the timeout starts when the work is done."""
        mpi = engine()
        start = time.perf_counter()
        idle_since = None if work else start
        arrived: float | None = None
        polls = 0
        while True:
            if arrived is None and mpi.Request.Testall(requests):
                arrived = time.perf_counter()
            if idle_since is None and work is not None and work.done():
                work.result()
                idle_since = time.perf_counter()
            if arrived is not None and idle_since is not None:
                break
            # Timeouts are staggered by rank, so that only one rank reports.
            if idle_since is not None and time.perf_counter() - idle_since > self.patience + 0.5 * self.rank:
                raise RungError(
                    f"rank {self.rank} of {self.size} waited {self.patience:g} s for {what} in vain; "
                    "another rank has died or hangs."
                )
            polls += 1
            time.sleep(0 if polls < QUICK_LOOKS else min(LONGEST_SLEEP, 5e-6 * polls))
        self.pace.passing += arrived - start
        self.pace.exposed += max(0.0, arrived - idle_since)

    def pass_on(self, block: Floats, into: Floats, work: Callable[[], None]) -> None:
        """One step of the ring: see `ring.Link`."""
        before, after = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        requests = [self.comm.Irecv(into, before, tag=7), self.comm.Isend(block, after, tag=7)]
        self.wait(requests, f"the block of rank {before}", self._worker.submit(work))

    def meet(self) -> None:
        """All ranks are here."""
        self.wait([self.comm.Ibarrier()], "the other ranks")

    def deal(self, parts: Sequence[Floats] | None, shapes: Sequence[tuple[int, ...]]) -> Floats:
        """Rank 0 gives each rank its part; `shapes` are known to all."""
        own = np.empty(shapes[self.rank], np.float32)
        counts = [int(np.prod(s)) for s in shapes]
        packed = np.concatenate([p.ravel() for p in parts]) if parts is not None else None
        self.wait([self.comm.Iscatterv([packed, counts] if self.rank == 0 else None, own, 0)], "its rows")
        return own

    def collect(self, own: NDArray[Any], shapes: Sequence[tuple[int, ...]]) -> list[NDArray[Any]]:
        """Every rank's part at rank 0, None elsewhere."""
        counts = [int(np.prod(s)) for s in shapes]
        packed = np.empty(sum(counts), own.dtype) if self.rank == 0 else None
        into = [packed, counts] if self.rank == 0 else None
        self.wait([self.comm.Igatherv(np.ascontiguousarray(own), into, 0)], "the others' results")
        if packed is None:
            return []
        flat = np.split(packed, np.cumsum(counts)[:-1])
        return [part.reshape(shape) for part, shape in zip(flat, shapes, strict=True)]


def ring_attention(
    ranks: Ranks, own: Floats, rows: Sequence[NDArray[np.int64]], *, causal: bool, threads: int = 1
) -> tuple[Floats, Floats]:
    """This rank's rows of out (H, rows, D) and lse (H, rows), from its own q, k and v (3, H, rows, D).

    `rows` says which rows of the sequence each rank holds, ascending.
    """
    _, heads, count, size = own.shape
    q, at = np.ascontiguousarray(own[0]), rows[ranks.rank]
    block = np.zeros((2, heads, max(map(len, rows)), size), np.float32)
    block[:, :, :count] = own[1:]
    out, lse = np.zeros_like(q), np.full((heads, count), -np.inf, np.float32)

    def attend(owner: int, kv: Floats) -> None:
        start = time.perf_counter()
        local.attend(q, at, kv, rows[owner], out, lse, scale=size**-0.5, causal=causal, threads=threads)
        ranks.pace.work += time.perf_counter() - start

    travel(ranks, block, np.zeros_like(block), attend)
    return out, lse


@dataclass(frozen=True)
class Timed:
    """Seconds of one case at rank 0; `computing` is the slowest rank's."""

    total: float  # rows dealt, attention computed, results collected
    computing: float
    per_rank: list[dict[str, float]]


def sequence_split(
    ranks: Ranks, qkv: Floats | None, shape: tuple[int, int, int], *, causal: bool, kind: str, threads: int
) -> tuple[Floats | None, Floats | None, Timed | None]:
    """Attention of all heads, each rank with some rows; qkv (3, H, N, D), and the results, are rank 0's."""
    heads, n, size = shape
    rows = ring.place(kind, n, ranks.size)

    def part(own: Floats) -> tuple[Floats, Floats]:
        return ring_attention(ranks, own, rows, causal=causal, threads=threads)

    parts = None if qkv is None else [qkv[:, :, r] for r in rows]
    return _run(ranks, parts, [(heads, len(r), size) for r in rows], part, _rows_joined(shape, rows))


def head_split(
    ranks: Ranks, qkv: Floats | None, shape: tuple[int, int, int], *, causal: bool, threads: int
) -> tuple[Floats | None, Floats | None, Timed | None]:
    """The same, each rank with whole heads: no communication while computing; needs at least one head per rank."""
    heads, n, size = shape
    at, cut = np.arange(n), ring.cuts(heads, ranks.size)

    def part(own: Floats) -> tuple[Floats, Floats]:
        start = time.perf_counter()
        q = np.ascontiguousarray(own[0])
        out, lse = np.zeros_like(q), np.full(q.shape[:2], -np.inf, np.float32)
        kv = np.ascontiguousarray(own[1:])
        local.attend(q, at, kv, at, out, lse, scale=size**-0.5, causal=causal, threads=threads)
        ranks.pace.work += time.perf_counter() - start
        return out, lse

    def joined(outs: list[NDArray[Any]]) -> Floats:
        return np.concatenate(outs)

    ours = list(pairwise(cut))
    parts = None if qkv is None else [qkv[:, a:b] for a, b in ours]
    return _run(ranks, parts, [(b - a, n, size) for a, b in ours], part, joined)


def _rows_joined(
    shape: tuple[int, int, int], rows: Sequence[NDArray[np.int64]]
) -> Callable[[list[NDArray[Any]]], Floats]:
    def joined(parts: list[NDArray[Any]]) -> Floats:
        whole = np.empty(shape[: parts[0].ndim], np.float32)
        for at, part in zip(rows, parts, strict=True):
            whole[:, at] = part
        return whole

    return joined


def _run(
    ranks: Ranks,
    parts: Sequence[Floats] | None,
    shapes: list[tuple[int, int, int]],
    compute: Callable[[Floats], tuple[Floats, Floats]],
    joined: Callable[[list[NDArray[Any]]], Floats],
) -> tuple[Floats | None, Floats | None, Timed | None]:
    local.library()  # compiled before anything is timed
    ranks.meet()
    begun = time.perf_counter()
    rows = ranks.deal(parts, [(3, *s) for s in shapes])
    ranks.meet()
    ranks.pace = Pace()
    start = time.perf_counter()
    out, lse = compute(rows)
    own = np.array([time.perf_counter() - start, ranks.pace.work, ranks.pace.passing, ranks.pace.exposed])
    outs = ranks.collect(out, shapes)
    total = time.perf_counter() - begun
    lses = ranks.collect(lse, [s[:2] for s in shapes])
    paces = ranks.collect(own, [(4,)] * ranks.size)
    if ranks.rank != 0:
        return None, None, None
    names = ("computing", "work", "passing", "exposed")
    per_rank = [dict(zip(names, map(float, p), strict=True)) for p in paces]
    return joined(outs), joined(lses), Timed(total, max(p["computing"] for p in per_rank), per_rank)


@contextlib.contextmanager
def report_once(comm: Any) -> Iterator[None]:
    """A rank that fails reports the reason and aborts the others."""
    try:
        yield
    except BaseException as error:
        launch.report(error, f"rank {comm.rank} of {comm.size}")
        comm.Abort(2)
