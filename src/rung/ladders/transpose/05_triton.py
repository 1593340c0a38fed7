"""One tile per program, loaded along rows, stored along columns; the compiler goes through shared memory."""

import torch
import triton
import triton.language as tl

EXPECT = "The compiler changes the layout through swizzled shared memory: level with the swizzled rung."
FOUND = (
    "Much faster than the swizzled rung, not level: 138 us against 212 us (1.53x) at c8192x8192 in f32 on an "
    "H200 and 72.6 us against 186 us (2.56x) in bf16, 91 % and 87 % of the copy rate, 3.42x and 6.07x "
    "torch's speed. Inferred, not measured: its 64x64 tiles are moved in vectors, ours element by element."
)
PROVENANCE = "Own."
DTYPES = ["f32", "f16", "bf16"]
TUNE = {"BR": [64, 32, 128], "BC": [64, 32, 128], "NUM_WARPS": [4, 8]}


@triton.jit
def transpose_kernel(x, out, R, C, BR: tl.constexpr, BC: tl.constexpr):
    r = tl.program_id(1) * BR + tl.arange(0, BR)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    tile = tl.load(x + r[:, None] * C + c[None, :], mask=(r[:, None] < R) & (c[None, :] < C))
    tl.store(out + c[:, None] * R + r[None, :], tl.trans(tile), mask=(c[:, None] < C) & (r[None, :] < R))


def run(x: torch.Tensor, out: torch.Tensor, *, R: int, C: int, BR: int, BC: int, NUM_WARPS: int) -> None:
    grid = (triton.cdiv(C, BC), triton.cdiv(R, BR))
    transpose_kernel[grid](x, out, R, C, BR=BR, BC=BC, num_warps=NUM_WARPS)
