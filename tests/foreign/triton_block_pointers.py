import torch
import triton
import triton.language as tl


@triton.jit
def transpose_kernel(x_ptr, out_ptr, R, C, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    j = tl.program_id(1)
    source = tl.make_block_ptr(x_ptr, shape=(R, C), strides=(C, 1), offsets=(i * BLOCK, j * BLOCK), block_shape=(BLOCK, BLOCK), order=(1, 0))
    target = tl.make_block_ptr(out_ptr, shape=(C, R), strides=(R, 1), offsets=(j * BLOCK, i * BLOCK), block_shape=(BLOCK, BLOCK), order=(1, 0))
    tile = tl.load(source, boundary_check=(0, 1))
    tl.store(target, tl.trans(tile), boundary_check=(0, 1))


def transpose(x):
    R, C = x.shape
    out = torch.empty((C, R), device=x.device, dtype=x.dtype)
    transpose_kernel[(triton.cdiv(R, 32), triton.cdiv(C, 32))](x, out, R, C, BLOCK=32)
    return out
