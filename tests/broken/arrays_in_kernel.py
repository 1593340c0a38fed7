"""A kernel accesses the array inside a value of the interpreter, and changes it there."""

import triton
import triton.language as tl

DTYPES = ["f32"]


@triton.jit
def _residual(a, b, out, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(a + i, mask=i < N), tl.load(b + i, mask=i < N)
    x.handle.data += y.handle.data
    tl.store(out + i, x, mask=i < N)


def run(a, b, out):
    N = out.numel()
    _residual[(triton.cdiv(N, 256),)](a, b, out, N, BLOCK=256)
