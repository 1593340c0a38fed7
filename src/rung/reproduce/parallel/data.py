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
