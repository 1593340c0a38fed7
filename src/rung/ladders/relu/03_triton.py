"""Four lines of Triton, one source for all dtypes."""

import torch
import triton
import triton.language as tl

EXPECT = "Triton generates vector accesses of 16 bytes by itself: level with the vectorised rung in every dtype."
FOUND = (
    "Level in f16 to about a percent: 65.4 us at n64m on an H200 against 64.6 us (0.99x), 1.04x torch's "
    "speed. Not in f32: 128 -> 134 us (0.95x), 94 % of the copy rate and 0.96x torch's speed, the time of "
    "Triton's copy."
)
PROVENANCE = "Own."
DTYPES = ["f32", "f16", "bf16"]
TUNE = {"BLOCK": [2048, 1024, 4096, 8192], "NUM_WARPS": [4, 8]}


@triton.jit
def relu_kernel(x, out, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < N)
    tl.store(out + i, tl.where(value < 0, 0.0, value).to(out.dtype.element_ty), mask=i < N)


def run(x: torch.Tensor, out: torch.Tensor, *, N: int, BLOCK: int, NUM_WARPS: int) -> None:
    relu_kernel[(triton.cdiv(N, BLOCK),)](x, out, N, BLOCK=BLOCK, num_warps=NUM_WARPS)
