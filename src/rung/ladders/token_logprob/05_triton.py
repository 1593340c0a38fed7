"""Triton's product, wgmma on Hopper, with the reduction of each tile of logits in registers.

A program takes BM tokens and one slice of the vocabulary, and computes a tile's maximum before its exponentials, so
that it rescales once per tile and not for every logit; a second kernel merges the slices in order.
"""

import triton
import triton.language as tl

EXPECT = (
    "Faster than mma.sync, as matmul/17 is; rescaling once per tile saves most of the reduction's cost, and the "
    "remaining exponentials are a sixth of the product's time at C 768."
)
FOUND = (
    "Twice rung 4 on an H200: 1.38 ms for 8 x 1024 tokens of gpt2 in bf16, 58 % of the tensor cores' rate, and 70 % "
    "for gpt2-xl. In tf32 it gains nothing."
)
MODEL = {"serves": {"score": "2 if gpu else 0"}}
DTYPES = ("bf16", "f16", "tf32")
BUFFERS = {"own": {"dtype": "f32", "shape": ["B * T"]}, "parts": {"dtype": "f32", "shape": ["4", "SLICES", "B * T"]}}
TUNE = {
    "BM": (128, 64),
    "BN": (128, 256, 64),
    "BK": (64, 32),
    "SLICES": (8, 1, 4, 16),
    "num_warps": (4, 8),
    "num_stages": (3, 4),
}


@triton.jit
def rounded(x, TF32: tl.constexpr):
    """To the nearest tf32: the tensor core itself would truncate the low 13 bits, which is biased."""
    if TF32:
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def target_logits(x, weight, targets, own, C, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + token).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for c in range(0, C, BLOCK):
        at = c + tl.arange(0, BLOCK)
        a = tl.load(x + token * C + at, mask=at < C, other=0.0).to(tl.float32)
        b = tl.load(weight + target * C + at, mask=at < C, other=0.0).to(tl.float32)
        total += a * b
    tl.store(own + token, tl.sum(total, 0))


@triton.jit
def statistics(
    x, weight, targets, own, parts, M, V, C, tiles_per_slice,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SLICES: tl.constexpr, TF32: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    slice_ = tl.program_id(1)
    inside = rows < M
    row = tl.minimum(rows, M - 1).to(tl.int64)  # a row beyond the end repeats the last one and is not stored
    target = tl.load(targets + row)
    limit = tl.load(own + row)
    depth = tl.arange(0, BK)
    x_at = x + row[:, None] * C + depth[None, :]

    m = tl.full((BM,), float("-inf"), dtype=tl.float32)
    l = tl.zeros((BM,), dtype=tl.float32)
    s = tl.zeros((BM,), dtype=tl.float32)
    above = tl.zeros((BM,), dtype=tl.int32)
    first = slice_ * tiles_per_slice
    last = tl.minimum(first + tiles_per_slice, tl.cdiv(V, BN))
    for tile in range(first, last):
        cols = tile * BN + tl.arange(0, BN)
        w_at = weight + tl.minimum(cols, V - 1).to(tl.int64)[None, :] * C + depth[:, None]
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for c in range(0, C, BK):
            within = depth < C - c
            a = tl.load(x_at + c, mask=within[None, :], other=0.0)
            b = tl.load(w_at + c, mask=within[:, None], other=0.0)
            total = tl.dot(rounded(a, TF32), rounded(b, TF32), total)
        larger = (total > limit[:, None]) & (cols[None, :] != target[:, None]) & (cols < V)[None, :]
        above += tl.sum(larger.to(tl.int32), 1)
        total = tl.where((cols < V)[None, :], total, float("-inf"))
        top = tl.maximum(m, tl.max(total, 1))
        shift = tl.where(m == float("-inf"), 0.0, m - top)
        factor = tl.where(m == float("-inf"), 0.0, tl.exp(shift))
        away = total - top[:, None]
        e = tl.exp(away)
        s = (s + l * shift) * factor + tl.sum(tl.where((cols < V)[None, :], e * away, 0.0), 1)
        l = l * factor + tl.sum(e, 1)
        m = top

    at = parts + slice_.to(tl.int64) * M + row
    step = SLICES * M
    tl.store(at, m, mask=inside)
    tl.store(at + step, l, mask=inside)
    tl.store(at + 2 * step, s, mask=inside)
    tl.store(at + 3 * step, above.to(tl.float32, bitcast=True), mask=inside)


@triton.jit
def merge_slices(parts, own, logprob, entropy, rank, M, SLICES: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < M
    step = SLICES * M
    m = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK,), dtype=tl.float32)
    s = tl.zeros((BLOCK,), dtype=tl.float32)
    above = tl.zeros((BLOCK,), dtype=tl.int32)
    for part in range(SLICES):
        at = parts + part * M + token
        m_part = tl.load(at, mask=inside, other=0.0)
        l_part = tl.load(at + step, mask=inside, other=1.0)
        s_part = tl.load(at + 2 * step, mask=inside, other=0.0)
        above += tl.load(at + 3 * step, mask=inside, other=0.0).to(tl.int32, bitcast=True)
        top = tl.maximum(m, m_part)
        ours = tl.where(m == float("-inf"), 0.0, m - top)
        theirs = tl.where(m_part == float("-inf"), 0.0, m_part - top)
        a = tl.where(m == float("-inf"), 0.0, tl.exp(ours))
        b = tl.where(m_part == float("-inf"), 0.0, tl.exp(theirs))
        s = (s + l * ours) * a + (s_part + l_part * theirs) * b
        l = l * a + l_part * b
        m = top
    tl.store(logprob + token, tl.load(own + token, mask=inside, other=0.0) - m - tl.log(l), mask=inside)
    tl.store(entropy + token, tl.log(l) - s / l, mask=inside)
    tl.store(rank + token, above, mask=inside)


def run(
    x, weight, targets, logprob, entropy, rank, own, parts, *, dtype, B, T, C, V, BM, BN, BK, SLICES, num_warps,
    num_stages,
):  # fmt: skip
    M = B * T
    target_logits[(M,)](x, weight, targets, own, C, BLOCK=256)
    per_slice = triton.cdiv(triton.cdiv(V, BN), SLICES)
    statistics[(triton.cdiv(M, BM), SLICES)](
        x, weight, targets, own, parts, M, V, C, per_slice,
        BM=BM, BN=BN, BK=BK, SLICES=SLICES, TF32=dtype == "tf32", num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    merge_slices[(triton.cdiv(M, 128),)](parts, own, logprob, entropy, rank, M, SLICES=SLICES, BLOCK=128)
