"""How torch multiplies float32 on a GPU, set for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rung.lazy import torch


@contextmanager
def float32_products(dtype: str) -> Iterator[None]:
    """Inside the block cuBLAS multiplies float32 on tensor cores if `dtype` is "tf32", else exactly."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if dtype == "tf32" else "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
