"""One program a tile of a thousand elements; the mask of the last tile is all there is to get right."""

import torch
import triton
import triton.language as tl

EXPECT = "Level with the vector rungs: Triton emits 16-byte loads for contiguous tiles by itself."
FOUND = (
    "Level, as expected: 10.7 us at b8t1024 in bf16 on an H200 against 10.8 us of rung 2. In f32 22.1 us "
    "against 19.5 us cold, but 19.1 us against 18.8 us warm: just over 20 us a call is timed with a graph"
    " launch of its own."
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
