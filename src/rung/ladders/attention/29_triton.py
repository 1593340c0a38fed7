"""The algorithm of rung 27 in tiles; the compiler chooses layouts, pipelines and, on Hopper, wgmma.

In f32 each product is computed as three TF32 products.
"""

import torch
import triton
import triton.language as tl

EXPECT = (
    "Faster than rung 27 on Hopper at large T, since tl.dot becomes wgmma there; slower at T = 64, where a tile is "
    "mostly masked. In f32 much faster than rung 24: three products on tensor cores cost less than one on CUDA cores."
)
FOUND = (
    "55.2 us at b8t1024 in bf16 on an H200, 1.05x over rung 27 and 0.86x cuDNN's speed; slower than rung 27 at b4t64 "
    "(4.82 us against 4.26 us), both as expected. In f32 317 us: 1.37x over rung 24 and 1.56x torch's memory- "
    "efficient attention; in tf32 176 us, 6.10x torch's naive one. One head of 256 to 8192 takes 26.5 us to 651 us in "
    "f32, 0.87x the speed of rung 24 at 1024: too few tiles for either."
)
PROVENANCE = "The paper of FlashAttention 2; Triton's own tutorial has the same two phases of the loop."
FROM = "attention/27"
MODEL = {"serves": {"flash": 3, "prompt": 5}}
DTYPES = ["f32", "tf32", "f16", "bf16"]
NEEDS = ["sm >= 80 or BR <= 64 or HS * sizeof_real <= 128", "HS > 8 and HS <= 128", "scale > 0"]  # tl.dot: 16 deep
TUNE = {"BR": [128, 64], "BC": [64, 32, 128], "num_warps": [8, 4], "num_stages": [2, 3, 4]}


@triton.jit
def rounded(x, TF32: tl.constexpr):
    """To the nearest tf32: the tensor core itself would truncate the low 13 bits, which is biased."""
    if TF32:
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def _walk(
    o, m, l, query, k, v, first, last, t1, T, stride_T, scale2,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, HS: tl.constexpr, HS2: tl.constexpr, BC: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    hs = tl.arange(0, HS2)
    for key0 in range(first, last, BC):
        t2 = key0 + tl.arange(0, BC)
        at = t2[:, None] * stride_T + hs[None, :]
        if MASKED or HS2 != HS:
            inside = (t2[:, None] < T) & (hs[None, :] < HS)
            key = tl.load(k + at, mask=inside, other=0.0)
            value = tl.load(v + at, mask=inside, other=0.0)
        else:
            key = tl.load(k + at)
            value = tl.load(v + at)
        key = rounded(key, PRECISION == "tf32")
        value = rounded(value, PRECISION == "tf32")
        s = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        if MASKED:
            seen = (t2[None, :] < T) & ((t2[None, :] <= t1[:, None]) | (not CAUSAL))
            s = tl.where(seen, s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, 1) * scale2)
        p = tl.exp2(s * scale2 - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        l = l * shrink + tl.sum(p, 1)
        p = rounded(p.to(value.dtype), PRECISION == "tf32")
        o = tl.dot(p, value, o * shrink[:, None], input_precision=PRECISION)
        m = m_new
    return o, m, l


@triton.jit
def _flash(
    q, k, v, out, lse, T, NH, stride_B, stride_NH, stride_T, scale2,
    CAUSAL: tl.constexpr, LSE: tl.constexpr, HS: tl.constexpr, HS2: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) // NH).to(tl.int64)
    nh = tl.program_id(0) % NH
    row0 = (tl.num_programs(1) - 1 - tl.program_id(1)) * BR  # the rows with the most keys first
    head = b * stride_B + nh * stride_NH
    t1 = row0 + tl.arange(0, BR)
    hs = tl.arange(0, HS2)
    inside = (t1[:, None] < T) & (hs[None, :] < HS)
    query = tl.load(q + head + t1.to(tl.int64)[:, None] * stride_T + hs[None, :], mask=inside, other=0.0)
    query = rounded(query, PRECISION == "tf32")
    o = tl.zeros([BR, HS2], dtype=tl.float32)
    m = tl.full([BR], -float("inf"), dtype=tl.float32)
    l = tl.zeros([BR], dtype=tl.float32)

    # First the unmasked tiles, then those on the diagonal and at the end.
    clear = (row0 if CAUSAL else T) // BC * BC
    end = tl.minimum(T, row0 + BR) if CAUSAL else T
    o, m, l = _walk(
        o, m, l, query, k + head, v + head, 0, clear, t1, T, stride_T, scale2,
        False, CAUSAL, HS, HS2, BC, PRECISION,
    )  # fmt: skip
    o, m, l = _walk(
        o, m, l, query, k + head, v + head, clear, end, t1, T, stride_T, scale2,
        True, CAUSAL, HS, HS2, BC, PRECISION,
    )  # fmt: skip

    at = ((b * T + t1)[:, None] * NH + nh) * HS + hs[None, :]
    tl.store(out + at, (o / l[:, None]).to(out.dtype.element_ty), mask=inside)
    if LSE:
        tl.store(lse + (b * NH + nh) * T + t1, (m + tl.log2(l)) * 0.6931471805599453, mask=t1 < T)


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    *,
    scale: float,
    causal: int,
    dtype: str,
    BR: int,
    BC: int,
    num_warps: int,
    num_stages: int,
) -> None:
    B, NH, T, HS = q.shape
    if dtype == "f32" and HS > 64:
        BC = min(BC, 32)  # each operand is in shared memory in three parts
    _flash[(B * NH, triton.cdiv(T, BR))](
        q,
        k,
        v,
        out,
        lse if lse is not None else out,
        T,
        NH,
        *q.stride()[:3],
        scale * 1.4426950408889634,  # the hardware computes powers of two
        CAUSAL=bool(causal),
        LSE=lse is not None,
        HS=HS,
        HS2=triton.next_power_of_2(HS),
        BR=BR,
        BC=BC,
        PRECISION={"f32": "tf32x3", "tf32": "tf32"}.get(dtype, "ieee"),
        num_warps=num_warps,
        num_stages=num_stages,
    )
