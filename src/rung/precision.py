"""How torch multiplies float32 on a GPU, and that it uses one thread, set for the length of a block."""

from __future__ import annotations

import sys
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


@contextmanager
def one_thread() -> Iterator[None]:
    """Keeps torch's operations in this thread.

    Torch's other threads spin for a while after each parallel operation, and take processors from code that runs next,
    or from other processes.
    """
    with torch_threads(1):
        yield


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Inside the block torch's operations use this many threads, if torch was imported before."""
    if sys.modules.get("torch") is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
