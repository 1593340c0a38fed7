import torch
import triton
import triton.language as tl


@triton.jit
def add_tiles(a_ptr, b_ptr, out_ptr, rows, cols, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, shape=[rows, cols], strides=[cols, 1], block_shape=[BLOCK_M, BLOCK_N])
    b = tl.make_tensor_descriptor(b_ptr, shape=[rows, cols], strides=[cols, 1], block_shape=[BLOCK_M, BLOCK_N])
    out = tl.make_tensor_descriptor(out_ptr, shape=[rows, cols], strides=[cols, 1], block_shape=[BLOCK_M, BLOCK_N])
    row = tl.program_id(0) * BLOCK_M
    col = tl.program_id(1) * BLOCK_N
    out.store([row, col], a.load([row, col]) + b.load([row, col]))


NEEDS = "C % 4 == 0"
triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))


def residual(a, b):
    rows, cols = a.shape
    out = torch.empty_like(a)
    add_tiles[(triton.cdiv(rows, 16), triton.cdiv(cols, 64))](a, b, out, rows, cols, BLOCK_M=16, BLOCK_N=64)
    return out
