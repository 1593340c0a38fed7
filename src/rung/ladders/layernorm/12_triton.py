"""One program per row, the row as one vector of the next power of two, which Triton keeps in registers."""

import torch
import triton
import triton.language as tl

EXPECT = "Level with the registers rung in a tenth of its lines; a quarter of the lanes are idle at 768 of 1024."
FOUND = (
    "The fastest of the ladder in f32 at b4t64 (2.46 us) and b64t1024 (99.8 us, 95 % of the copy rate), 1.83x and "
    "1.80x torch's speed; at b8t1024 14.8 us on an H200 against 14.4 us of rung 9 once that is tuned. 1.26x over "
    "the registers rung with which it was expected to be level; in bf16 at b8t1024 rung 10 stays ahead (10.5 us "
    "against 10.9 us)."
)
PROVENANCE = "Our own; Triton's tutorials hold a similar one."
DTYPES = ["f32", "f16", "bf16"]
NEEDS = ["C <= 16384"]
TUNE = {"num_warps": [4, 1, 2, 8]}


@triton.jit
def _layernorm(x, weight, bias, out, C, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * C
    c = tl.arange(0, BLOCK)
    inside = c < C
    a = tl.load(x + row + c, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)

    centred = tl.where(inside, a - tl.sum(a, axis=0) / C, 0.0)
    variance = tl.sum(centred * centred, axis=0) / C
    y = centred / tl.sqrt(variance + eps) * w + b
    tl.store(out + row + c, y.to(out.dtype.element_ty), mask=inside)


def run(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out: torch.Tensor,
    *,
    B: int,
    T: int,
    C: int,
    eps: float,
    num_warps: int,
) -> None:
    _layernorm[(B * T,)](x, weight, bias, out, C, eps, BLOCK=triton.next_power_of_2(C), num_warps=num_warps)
