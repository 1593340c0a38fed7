#!POPCORN leaderboard row_scale
import torch
import triton
import triton.language as tl
from task import input_t, output_t


@triton.jit
def scale_rows(x, scale, out, columns, shift, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    value = tl.load(x + row * columns + i, mask=inside) * tl.load(scale + row) + shift
    tl.store(out + row * columns + i, value, mask=inside)


def custom_kernel(data: input_t) -> output_t:
    x, scale, shift = data
    out = torch.empty_like(x)
    scale_rows[(x.shape[0],)](x, scale, out, x.shape[1], shift, BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
