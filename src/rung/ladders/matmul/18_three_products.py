"""Float32 on tensor cores: an operand is the sum of two tf32 numbers, and three of their four products matter.

SPLIT programs share the depth of a tile if there are few tiles; a second kernel adds their results.
"""
# The remainder of x after its tf32 part has 13 bits, of which tf32 keeps ten: high times high, high times low and low
# times high give float32's accuracy, except for the last bit or two.

import triton
import triton.language as tl

EXPECT = (
    "A third of tf32's rate is still more than twice what fused multiply-adds can reach on an H200: faster than rung 8 "
    "and cuBLAS in float32 at large sizes, and with SPLIT for a few dozen rows too."
)
FOUND = (
    "For 256 rows 82.1 -> 29.0 us (2.83x) over rung 8 in f32 on an H200, 41.6 TFLOP/s and 1.64x torch's speed, "
    "SPLIT being 1; for one row 0.23x cublasLt's."
)
PROVENANCE = "ours, on rung 17; three products for one are known from CUTLASS (3xTF32) and Triton (tf32x3)"
DTYPES = ("f32",)
NEEDS = ("SPLIT * 16 <= C or SPLIT == 1",)
MODEL = {"serves": {"prompt": "2 if not 256 < rows < 768 else 0"}, "fits": "B * T >= 16", "estimate": "tiles"}
TUNE = {
    "BM": (64, 128, 32, 16),
    "BN": (64, 128, 32),
    "BK": (32, 16, 64),
    "SPLIT": (1, 2, 3, 4, 6, 8),
    "GROUP": (8,),
    "num_warps": (4, 8),
    "num_stages": (3, 2, 4),
}
BUFFERS = {
    "parts": {"dtype": "f32", "shape": ["SPLIT if SPLIT > 1 else 1", "B * T if SPLIT > 1 else 1", "OC"]},
}


@triton.jit
def matmul(
    x, weight, bias, out, M, OC, C, SHARE,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ADD_BIAS: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(OC, BN)
    group, within = tl.program_id(0) // (GROUP * tiles_n), tl.program_id(0) % (GROUP * tiles_n)
    height = min(tiles_m - group * GROUP, GROUP)
    rows = (group * GROUP + within % height) * BM + tl.arange(0, BM)
    cols = within // height * BN + tl.arange(0, BN)

    depth = tl.arange(0, BK)
    # A row beyond the end reads the last one; its result is never stored.
    a_at = x + tl.minimum(rows, M - 1).to(tl.int64)[:, None] * C + depth[None, :]
    b_at = weight + tl.minimum(cols, OC - 1).to(tl.int64)[None, :] * C + depth[:, None]

    first = tl.program_id(1) * SHARE
    last = tl.minimum(C, first + SHARE)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for c in range(first, last, BK):
        inside = depth < last - c
        a = tl.load(a_at + c, mask=inside[None, :], other=0.0)
        b = tl.load(b_at + c, mask=inside[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision="tf32x3")

    if ADD_BIAS:
        total += tl.load(bias + cols, mask=cols < OC, other=0.0)[None, :]
    at = (tl.program_id(1) * M + rows).to(tl.int64)[:, None] * OC + cols[None, :]
    tl.store(out + at, total, mask=(rows < M)[:, None] & (cols < OC)[None, :])


@triton.jit
def add_parts(parts, bias, out, N, OC, SPLIT: tl.constexpr, ADD_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(SPLIT):
        total += tl.load(parts + part * N + i, mask=i < N, other=0.0)
    if ADD_BIAS:
        total += tl.load(bias + i % OC, mask=i < N, other=0.0)
    tl.store(out + i, total, mask=i < N)


def run(x, weight, bias, out, parts, *, B, T, C, OC, BM, BN, BK, SPLIT, GROUP, num_warps, num_stages):
    M = B * T
    share = triton.cdiv(triton.cdiv(C, SPLIT), BK) * BK
    matmul[(triton.cdiv(M, BM) * triton.cdiv(OC, BN), SPLIT)](
        x, weight, bias, out if SPLIT == 1 else parts, M, OC, C, share,
        BM=BM, BN=BN, BK=BK, GROUP=GROUP, ADD_BIAS=bias is not None and SPLIT == 1,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    if SPLIT > 1:
        N, block = M * OC, 1024
        add_parts[(triton.cdiv(N, block),)](
            parts, bias, out, N, OC, SPLIT=SPLIT, ADD_BIAS=bias is not None, BLOCK=block
        )
