"""The same epilogue on wgmma: the residual is loaded and added after the last `tl.dot`."""

import triton
import triton.language as tl

EXPECT = "Faster than the mma.sync rung at large sizes by as much as the plain product is."
FOUND = (
    "On an H200 58.7 -> 27.3 us (2.15x) at b4t64 and 131 -> 82.9 us (1.58x) at b8t1024 in bf16: as expected, since the "
    "plain product's step at large sizes is 1.53x (matmul/14 and 17, another shape and run). 0.36x and 0.74x torch's "
    "speed, 58 % of the measured rate at b8t1024."
)
PROVENANCE = "ours; on rung 17 of matmul"
FROM = "matmul_gelu/4"
DTYPES = ("bf16", "f16", "tf32")
TUNE = {
    "BM": (128, 64, 32, 16),
    "BN": (128, 256, 64),
    "BK": (64, 32),
    "GROUP": (8,),
    "num_warps": (8, 4),
    "num_stages": (3, 4),
}


@triton.jit
def rounded(x, TF32: tl.constexpr):
    """To the nearest tf32: the tensor core itself would truncate the low 13 bits, which is biased."""
    if TF32:
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def matmul_residual(
    x, weight, bias, residual, out, M, OC, C,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr, TF32: tl.constexpr,
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

    total = tl.zeros((BM, BN), dtype=tl.float32)
    for c in range(0, C, BK):
        inside = depth < C - c
        a = tl.load(a_at + c, mask=inside[None, :], other=0.0)
        b = tl.load(b_at + c, mask=inside[:, None], other=0.0)
        total = tl.dot(rounded(a, TF32), rounded(b, TF32), total)

    if HAS_BIAS:
        total += tl.load(bias + cols, mask=cols < OC, other=0.0).to(tl.float32)[None, :]
    at = rows.to(tl.int64)[:, None] * OC + cols[None, :]
    inside = (rows < M)[:, None] & (cols < OC)[None, :]
    total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def run(x, weight, bias, residual, out, *, dtype, B, T, C, OC, BM, BN, BK, GROUP, num_warps, num_stages):
    M = B * T
    matmul_residual[(triton.cdiv(M, BM) * triton.cdiv(OC, BN),)](
        x, weight, bias, residual, out, M, OC, C,
        BM=BM, BN=BN, BK=BK, GROUP=GROUP, HAS_BIAS=bias is not None, TF32=dtype == "tf32",
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
