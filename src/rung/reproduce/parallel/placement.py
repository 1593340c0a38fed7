"""Which rows of the sequence each rank holds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rung.errors import RungError

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
