"""Attention in float64, and how far a result is from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROWS_AT_ONCE = 512  # bounds the memory of the scores
# As for every float32 rung: the bound on the error's norm, relative to the reference's.
CAP = 1e-5


def attention(qkv: NDArray[np.float32], *, causal: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(3, H, N, D) -> out (H, N, D), lse (H, N)."""
    q, k, v = (part.astype(np.float64) for part in qkv)
    n, size = q.shape[1:]
    out, lse = np.empty_like(q), np.empty(q.shape[:2])
    for start in range(0, n, ROWS_AT_ONCE):
        rows = slice(start, min(n, start + ROWS_AT_ONCE))
        scores = q[:, rows] @ k.transpose(0, 2, 1) * size**-0.5
        if causal:
            scores[:, np.arange(n) > np.arange(n)[rows, None]] = -np.inf
        largest = scores.max(axis=2, keepdims=True)
        weights = np.exp(scores - largest)
        total = weights.sum(axis=2, keepdims=True)
        out[:, rows] = weights @ v / total
        lse[:, rows] = (largest + np.log(total))[:, :, 0]
    return out, lse


def error(found: NDArray[np.float32], right: NDArray[np.float64]) -> float:
    """The norm of the difference, of the reference's."""
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))
