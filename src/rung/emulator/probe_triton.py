"""A Triton kernel of three lines, with which the doctor tests whether Triton runs here."""

import torch
import triton
import triton.language as tl


def _double_source(x, out, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < N), mask=i < N)


_double = triton.jit(_double_source)


def run(x: torch.Tensor, out: torch.Tensor) -> None:
    """Writes 2x into `out`."""
    _double[(triton.cdiv(x.numel(), 32),)](x, out, x.numel(), BLOCK=32)
