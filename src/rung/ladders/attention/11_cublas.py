"""cuBLAS computes both products, as a strided batch over all heads; the softmax in between is still ours."""

import torch
import triton
import triton.language as tl

from rung.precision import float32_products

EXPECT = "Products near the hardware's rate; the scores are still read or written four times, now most of the time."
FOUND = (
    "935 us at b8t1024 in f32 on an H200, 1.14x over rung 9 (the report: 1.31x), 0.95x at b4t64, where launch overhead "
    "dominates, 2.97x for one head of 1024; in tf32 2.69x (the report: 0.91x of WMMA). Storing and reloading the "
    "scores limits it to 0.53x the speed of torch's memory-efficient attention at b8t1024 (11.md)."
)
PROVENANCE = "ECE 408 GPT-2 report, milestone 2: cuBLAS 1.31x joint tiles and 0.91x WMMA on an A40."
DTYPES = ["f32", "tf32"]
TUNE = {"num_warps": [4, 8]}
BUFFERS = {
    "heads": {"shape": [3, "B * NH", "T", "HS"]},
    "scores": {"shape": ["B * NH", "T", "T"]},
    "oh": {"shape": ["B * NH", "T", "HS"]},
}


@triton.jit
def _softmax(scores, T, scale, CAUSAL: tl.constexpr, BLOCK: tl.constexpr):
    t1 = tl.program_id(0)
    row = scores + (tl.program_id(1).to(tl.int64) * T + t1) * T
    t2 = tl.arange(0, BLOCK)
    inside = t2 < T
    x = tl.load(row + t2, mask=(inside & (t2 <= t1)) if CAUSAL else inside, other=-float("inf"))
    x = tl.exp((x - tl.max(x, 0)) * scale)
    tl.store(row + t2, x / tl.sum(x, 0), mask=inside)


def run(
    qkv: torch.Tensor,
    out: torch.Tensor,
    heads: torch.Tensor,
    scores: torch.Tensor,
    oh: torch.Tensor,
    *,
    B: int,
    T: int,
    NH: int,
    HS: int,
    scale: float,
    causal: int,
    dtype: str,
    num_warps: int,
) -> None:
    heads.view(3, B, NH, T, HS).copy_(qkv.view(B, T, 3, NH, HS).permute(2, 0, 3, 1, 4))
    q, k, v = heads
    with float32_products(dtype):
        torch.bmm(q, k.transpose(1, 2), out=scores)
        _softmax[(T, B * NH)](
            scores, T, scale, CAUSAL=bool(causal), BLOCK=triton.next_power_of_2(T), num_warps=num_warps
        )
        torch.bmm(scores, v, out=oh)
    out.view(B, T, NH, HS).copy_(oh.view(B, NH, T, HS).transpose(1, 2))
