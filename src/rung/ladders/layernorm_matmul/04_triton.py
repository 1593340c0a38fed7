"""The prologue in Triton: each tile of x is normalised between its load and `tl.dot`.

Mean and deviation of the rows come from two passes over them at the beginning of the same program.
"""

import triton
import triton.language as tl

EXPECT = (
    "The normalised tile must go back through registers or shared memory to wgmma, so it reaches a smaller share of "
    "the rate than the plain product."
)
FOUND = (
    "On an H200 32.2 -> 28.7 us (1.12x) at b4t64 in bf16, but slower than rung 3 at b8t1024: 159 -> 239 us (0.66x). "
    "It is slower, as expected: 15 % of the measured rate there, where the plain product has 64 % (matmul/17, "
    "another run), 0.35x and 0.28x torch's speed. Presumably both the passes for the statistics, which every program "
    "repeats, and the detour through registers cost time."
)
PROVENANCE = "ours; on rung 17 of matmul"
FROM = "matmul/17"
DTYPES = ("bf16", "f16", "tf32")
NEEDS = ("gelu == 0",)
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
def layernorm_matmul(
    x, ln_weight, ln_bias, weight, bias, out, M, OC, C, eps,
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

    mean = tl.zeros((BM,), dtype=tl.float32)
    for c in range(0, C, BK):
        mean += tl.sum(tl.load(a_at + c, mask=(depth < C - c)[None, :], other=0.0).to(tl.float32), axis=1)
    mean /= C
    variance = tl.zeros((BM,), dtype=tl.float32)
    for c in range(0, C, BK):
        inside = (depth < C - c)[None, :]
        centred = tl.load(a_at + c, mask=inside, other=0.0).to(tl.float32) - mean[:, None]
        variance += tl.sum(tl.where(inside, centred * centred, 0.0), axis=1)
    rstd = 1.0 / tl.sqrt(variance / C + eps)

    total = tl.zeros((BM, BN), dtype=tl.float32)
    for c in range(0, C, BK):
        inside = depth < C - c
        a = tl.load(a_at + c, mask=inside[None, :], other=0.0)
        b = tl.load(b_at + c, mask=inside[:, None], other=0.0)
        w = tl.load(ln_weight + c + depth, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(ln_bias + c + depth, mask=inside, other=0.0).to(tl.float32)
        normed = (a.to(tl.float32) - mean[:, None]) * rstd[:, None] * w[None, :] + shift[None, :]
        total = tl.dot(rounded(normed.to(x.dtype.element_ty), TF32), rounded(b, TF32), total)

    if HAS_BIAS:
        total += tl.load(bias + cols, mask=cols < OC, other=0.0).to(tl.float32)[None, :]
    at = rows.to(tl.int64)[:, None] * OC + cols[None, :]
    inside = (rows < M)[:, None] & (cols < OC)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


def run(
    x, ln_weight, ln_bias, weight, bias, out, *, dtype,
    B, T, C, OC, eps, BM, BN, BK, GROUP, num_warps, num_stages,
):  # fmt: skip
    M = B * T
    layernorm_matmul[(triton.cdiv(M, BM) * triton.cdiv(OC, BN),)](
        x, ln_weight, ln_bias, weight, bias, out, M, OC, C, eps,
        BM=BM, BN=BN, BK=BK, GROUP=GROUP, HAS_BIAS=bias is not None, TF32=dtype == "tf32",
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
