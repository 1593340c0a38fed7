"""A Triton kernel that loads one element past the end of its first operand."""

import torch
import triton
import triton.language as tl

DTYPES = ["f32"]


@triton.jit
def _residual(a, b, out, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    tl.store(out + i, tl.load(a + i, mask=i <= N) + tl.load(b + i, mask=inside), mask=inside)


def run(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    N = out.numel()
    _residual[(triton.cdiv(N, 256),)](a, b, out, N, BLOCK=256)
