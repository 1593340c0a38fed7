"""Ring attention: every rank keeps its queries, and the keys and values are passed around. In each step a rank computes
on its block while sending it to the next rank and receiving another. After as many steps as ranks, every query has met
every key, and no rank ever held more than two blocks. Which rows a rank holds decides the balance of a causal mask; a
forecast of the time on many nodes advances a clock for each rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rung.errors import RungError
from rung_reproduce.parallel import ring

Buffer = TypeVar("Buffer")
Passed = TypeVar("Passed", contravariant=True)


class Link(Protocol[Passed]):
    """A rank's two neighbours."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def pass_on(self, block: Passed, into: Passed, work: Callable[[], None]) -> None:
        """Send `block` to the next rank and receive `into` from the one before, while `work` reads `block`."""


def travel(link: Link[Buffer], block: Buffer, spare: Buffer, attend: Callable[[int, Buffer], None]) -> None:
    """Call `attend(owner, block)` for the block of every rank, one's own first. Overwrites both buffers."""
    for step in range(link.size):
        owner = (link.rank - step) % link.size
        if step == link.size - 1:
            attend(owner, block)
            return
        current = block
        link.pass_on(current, spare, lambda owner=owner, current=current: attend(owner, current))  # type: ignore[misc]
        block, spare = spare, current


PLACEMENTS = ("zigzag", "contiguous")


def cuts(n: int, parts: int) -> list[int]:
    """Where n things are cut into parts that differ by one at most."""
    return [n * i // parts for i in range(parts + 1)]


def contiguous(n: int, ranks: int) -> list[NDArray[np.int64]]:
    """Contiguous rows. With a causal mask the last rank has the most work, and the others wait."""
    return [np.arange(a, b) for a, b in pairwise(cuts(n, ranks))]


def zigzag(n: int, ranks: int) -> list[NDArray[np.int64]]:
    """One chunk from the front and one from the back, which balances the work with a causal mask."""
    chunks = [np.arange(a, b) for a, b in pairwise(cuts(n, 2 * ranks))]
    return [np.concatenate([chunks[r], chunks[2 * ranks - 1 - r]]) for r in range(ranks)]


def place(kind: str, n: int, ranks: int) -> list[NDArray[np.int64]]:
    """The rows of each rank, ascending."""
    if kind not in PLACEMENTS:
        raise RungError(f"there is no placement {kind!r}; there are {', '.join(PLACEMENTS)}.")
    return zigzag(n, ranks) if kind == "zigzag" else contiguous(n, ranks)


def pairs(placement: list[NDArray[np.int64]], causal: bool) -> NDArray[np.int64]:
    """(ranks, ranks): how many query-key pairs rank r computes on the block that rank s owns."""
    if not causal:
        sizes = np.array([len(rows) for rows in placement])
        return np.outer(sizes, sizes)
    return np.array(
        [[int(np.searchsorted(k, q, side="right").sum()) for k in placement] for q in placement], dtype=np.int64
    ).reshape(len(placement), len(placement))


@dataclass(frozen=True)
class Node:
    """The model's parameters of a machine and of its link."""

    pairs: float  # query-key pairs per second, of one head of size d
    latency: float = 2e-6  # seconds; InfiniBand or a good Ethernet
    bandwidth: float = 12.5e9  # bytes per second: 100 Gbit/s


@dataclass(frozen=True)
class Forecast:
    """Seconds until the last rank is done, and the part lost by waiting for neighbours or the link."""

    seconds: float
    busy: float  # mean share of the time that ranks compute


def forecast(node: Node, *, n: int, d: int, heads: int, ranks: int, causal: bool, kind: str = "zigzag") -> Forecast:
    """Simulate one attention."""
    rows = ring.place(kind, n, ranks)
    work = ring.pairs(rows, causal) * (heads / node.pairs)  # (rank, owner of the block) -> seconds
    block = 2 * heads * max(map(len, rows)) * d * 4  # bytes, keys and values in float32
    passing = node.latency + block / node.bandwidth
    free = [0.0] * ranks  # when each rank may begin its step
    for step in range(ranks):
        done = [free[r] + float(work[r, (r - step) % ranks]) for r in range(ranks)]
        if step == ranks - 1:
            free = done
            break
        # A block is sent when its holder begins the step and the next rank has a free buffer for it.
        arrived = [max(free[r - 1], free[r]) + passing for r in range(ranks)]
        # A rank continues when its own work is done, the next block has arrived and the old one has been sent.
        free = [max(done[r], arrived[r], arrived[(r + 1) % ranks]) for r in range(ranks)]
    seconds = max(free)
    return Forecast(seconds, float(work.sum()) / (ranks * seconds))
