"""Forecast of ring attention's time on many nodes: a clock for each rank, advanced step by step. Assumptions: a node
computes a fixed number of query-key pairs per second for any block size; a message takes latency + bytes / bandwidth,
on a link of its own, and is transferred while both ends compute; nothing else runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from rung.reproduce.parallel import placement


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
    rows = placement.place(kind, n, ranks)
    work = placement.pairs(rows, causal) * (heads / node.pairs)  # (rank, owner of the block) -> seconds
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
