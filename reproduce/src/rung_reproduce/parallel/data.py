"""Random queries, keys and values, seeded and saved in a file so that all implementations use the same inputs."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rung.errors import RungError


def generate(n: int, d: int, heads: int, seed: int) -> NDArray[np.float32]:
    """(3, H, N, D), normally distributed."""
    return np.random.default_rng((seed, n, d, heads)).standard_normal((3, heads, n, d), dtype=np.float32)


def file_name(n: int, d: int, heads: int) -> str:
    return f"qkv_h{heads}_n{n}_d{d}.npz"


def load_or_make(folder: Path | None, n: int, d: int, heads: int, seed: int) -> NDArray[np.float32]:
    """The folder's data of this shape, or new numbers, which are then saved there."""
    if folder is None:
        return generate(n, d, heads, seed)
    path = folder / file_name(n, d, heads)
    if path.exists():
        return load(path, (heads, n, d))
    qkv = generate(n, d, heads, seed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            np.savez(file, q=qkv[0], k=qkv[1], v=qkv[2])
    except OSError as error:
        raise RungError(f"{path} cannot be written: {error.strerror}; --data names another folder.") from None
    return qkv


def load(path: Path, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """The file's q, k and v as (3, H, N, D), if they are of that shape."""
    try:
        with np.load(path, allow_pickle=False) as file:
            parts = [file[name] for name in "qkv"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise RungError(f"{path} does not hold arrays q, k and v ({error}); remove it to make them anew.") from None
    for name, part in zip("qkv", parts, strict=True):
        if part.shape != shape or part.dtype != np.float32:
            raise RungError(
                f"{path}: {name} is {part.dtype} {part.shape}, but float32 {shape} is needed; "
                "name another folder, or remove the file."
            )
    return np.stack(parts)


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
