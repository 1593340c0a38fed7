"""The loop over the window's tiles in Triton: whole tiles between the window's two edges need no mask."""

import torch
import triton
import triton.language as tl

EXPECT = (
    "Level with rung 4: with two or three tiles per block, most time is spent at the start and the end of a block."
)
FOUND = (
    "On an H200 near rung 4 at b4t64 as expected, 4.34 -> 4.17 us (1.04x) in bf16, but ahead at b8t1024, 32.1 -> "
    "26.8 us (1.20x); presumably since tiles of 64 queries see fewer masked keys than 128. In f32 0.95x and 1.24x "
    "of rung 3. At b8t1024 12.2x the speed of torch's memory-efficient attention in bf16 (05.md)."
)
PROVENANCE = "The inside of attention/29_triton."
FROM = "attention/29"
MODEL = {"serves": {"naive": 2, "reduction": 2, "tiled": 3, "tensorcore": 3}}
DTYPES = ["f32", "tf32", "f16", "bf16"]
NEEDS = ["HS > 8 and HS <= 128", "scale > 0", "window >= 1", "globals == 0"]  # tl.dot: at least 16 deep
TUNE = {"BR": [64, 128], "BC": [64, 32, 128], "num_warps": [4, 8], "num_stages": [2, 3]}


@triton.jit
def rounded(x, TF32: tl.constexpr):
    """To the nearest tf32: the tensor core itself would truncate the low 13 bits, which is biased."""
    if TF32:
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def _local(
    q, k, v, out, lse, T, NH, stride_B, stride_NH, stride_T, scale2, window,
    LSE: tl.constexpr, HS: tl.constexpr, HS2: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) // NH).to(tl.int64)
    nh = tl.program_id(0) % NH
    row0 = tl.program_id(1) * BR
    head = b * stride_B + nh * stride_NH
    t1 = row0 + tl.arange(0, BR)
    hs = tl.arange(0, HS2)
    inside = (t1[:, None] < T) & (hs[None, :] < HS)
    query = tl.load(q + head + t1.to(tl.int64)[:, None] * stride_T + hs[None, :], mask=inside, other=0.0)
    query = rounded(query, PRECISION == "tf32")
    o = tl.zeros([BR, HS2], dtype=tl.float32)
    m = tl.full([BR], -float("inf"), dtype=tl.float32)
    l = tl.zeros([BR], dtype=tl.float32)

    begin = tl.maximum(0, row0 - window + 1) // BC * BC
    for key0 in range(begin, tl.minimum(T, row0 + BR), BC):
        t2 = key0 + tl.arange(0, BC)
        at = head + t2.to(tl.int64)[:, None] * stride_T + hs[None, :]
        loaded = (t2[:, None] < T) & (hs[None, :] < HS)
        key = tl.load(k + at, mask=loaded, other=0.0)
        value = tl.load(v + at, mask=loaded, other=0.0)
        key = rounded(key, PRECISION == "tf32")
        value = rounded(value, PRECISION == "tf32")
        s = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        if (key0 + BC > row0) | (key0 < row0 + BR - window):
            seen = (t2[None, :] <= t1[:, None]) & (t2[None, :] > t1[:, None] - window)
            s = tl.where(seen, s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, 1) * scale2)
        base = tl.where(m_new == -float("inf"), 0.0, m_new)  # a row may see no key of its block's first tile
        p = tl.exp2(s * scale2 - base[:, None])
        shrink = tl.exp2(m - base)
        l = l * shrink + tl.sum(p, 1)
        p = rounded(p.to(value.dtype), PRECISION == "tf32")
        o = tl.dot(p, value, o * shrink[:, None], input_precision=PRECISION)
        m = m_new

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
    window: int,
    dtype: str,
    BR: int,
    BC: int,
    num_warps: int,
    num_stages: int,
) -> None:
    B, NH, T, HS = q.shape
    _local[(B * NH, triton.cdiv(T, BR))](
        q,
        k,
        v,
        out,
        lse if lse is not None else out,
        T,
        NH,
        *q.stride()[:3],
        scale * 1.4426950408889634,  # the hardware computes powers of two
        min(window, T),
        LSE=lse is not None,
        HS=HS,
        HS2=triton.next_power_of_2(HS),
        BR=BR,
        BC=BC,
        PRECISION={"f32": "tf32x3", "tf32": "tf32"}.get(dtype, "ieee"),
        num_warps=num_warps,
        num_stages=num_stages,
    )
