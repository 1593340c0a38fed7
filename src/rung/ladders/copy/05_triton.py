"""A block of elements a program: Triton picks the vector width and the order of lanes by itself."""

import torch
import triton
import triton.language as tl

EXPECT = (
    "The compiler proves the neighbours contiguous and emits 16-byte accesses: level with the vector rungs."
)
FOUND = ""
PROVENANCE = "Own."
DTYPES = ["f32", "f16", "bf16"]
TUNE = {"BLOCK": [2048, 1024, 4096, 8192], "NUM_WARPS": [4, 8]}


@triton.jit
def copy_kernel(x, out, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    tl.store(out + i, tl.load(x + i, mask=inside), mask=inside)


def run(x: torch.Tensor, out: torch.Tensor, *, N: int, BLOCK: int, NUM_WARPS: int) -> None:
    copy_kernel[(triton.cdiv(N, BLOCK),)](x, out, N, BLOCK=BLOCK, num_warps=NUM_WARPS)
