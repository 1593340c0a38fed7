"""One program per tile of a thousand elements; only the mask of the last tile needs care."""

import torch
import triton
import triton.language as tl

EXPECT = "Level with the vector rungs: Triton emits 16-byte loads for contiguous tiles by itself."
FOUND = (
    "Level, as expected, with rung 2 and with torch: 19.5 us at b8t1024 in f32 on an H200 against 19.4 us and "
    "19.5 us, 10.7 us for each of the three in bf16; at b4t64 1.02x torch's speed, the fastest there."
)
PROVENANCE = "Our own."
DTYPES = ["f32", "f16", "bf16"]
TUNE = {"BLOCK": [1024, 512, 2048, 4096], "num_warps": [4, 2, 8]}


@triton.jit
def _residual(a, b, out, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N
    x = tl.load(a + i, mask=inside).to(tl.float32)
    y = tl.load(b + i, mask=inside).to(tl.float32)
    tl.store(out + i, (x + y).to(out.dtype.element_ty), mask=inside)


def run(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, BLOCK: int, num_warps: int) -> None:
    N = out.numel()
    _residual[(triton.cdiv(N, BLOCK),)](a, b, out, N, BLOCK=BLOCK, num_warps=num_warps)
