import torch
import triton
import triton.language as tl


@triton.jit
def _attn_fwd_inner(acc, l_i, m_i, q, k_ptrs, v_ptrs, start_m, qk_scale, stride, N_CTX,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr,
                    offs_m: tl.constexpr, offs_n: tl.constexpr):  # fmt: skip
    if STAGE == 1:
        lo, hi = 0, start_m * BLOCK_M
    elif STAGE == 2:
        lo, hi = start_m * BLOCK_M, tl.minimum((start_m + 1) * BLOCK_M, N_CTX)
        lo = tl.multiple_of(lo, BLOCK_M)
    else:
        lo, hi = 0, N_CTX
    for start_n in tl.range(lo, hi, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        inside = start_n + offs_n < N_CTX
        k = tl.load(k_ptrs + start_n * stride, mask=inside[None, :], other=0.0)
        qk = tl.dot(q, k)
        mask = inside[None, :]
        if STAGE == 2:
            mask = mask & (offs_m[:, None] >= (start_n + offs_n[None, :]))
        qk = tl.where(mask, qk * qk_scale, -1.0e38)
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.math.exp2(qk - m_ij[:, None])
        alpha = tl.math.exp2(m_i - m_ij)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(v_ptrs + start_n * stride, mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_ij
    return acc, l_i, m_i


@triton.autotune([triton.Config({"BLOCK_M": 32, "BLOCK_N": 32}, num_stages=2, num_warps=4)], key=["N_CTX", "HEAD_DIM"])
@triton.jit
def _attn_fwd(sm_scale, Q, K, V, Out, stride_b, stride_h, stride_t, out_b, out_h, out_t, H, N_CTX,
              HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr):  # fmt: skip
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    off_z = off_hz // H
    off_h = off_hz % H
    offset = off_z.to(tl.int64) * stride_b + off_h.to(tl.int64) * stride_h
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, HEAD_DIM)
    q = tl.load(Q + offset + offs_m[:, None] * stride_t + offs_d[None, :], mask=offs_m[:, None] < N_CTX, other=0.0)
    k_ptrs = K + offset + offs_n[None, :] * stride_t + offs_d[:, None]
    v_ptrs = V + offset + offs_n[:, None] * stride_t + offs_d[None, :]
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    qk_scale = sm_scale * 1.44269504
    if STAGE & 1:
        acc, l_i, m_i = _attn_fwd_inner(acc, l_i, m_i, q, k_ptrs, v_ptrs, start_m, qk_scale, stride_t, N_CTX,
                                        BLOCK_M, BLOCK_N, 4 - STAGE, offs_m, offs_n)  # fmt: skip
    if STAGE & 2:
        acc, l_i, m_i = _attn_fwd_inner(acc, l_i, m_i, q, k_ptrs, v_ptrs, start_m, qk_scale, stride_t, N_CTX,
                                        BLOCK_M, BLOCK_N, 2, offs_m, offs_n)  # fmt: skip
    acc = acc / l_i[:, None]
    out = Out + off_z * out_b + off_h * out_h + offs_m[:, None] * out_t + offs_d[None, :]
    tl.store(out, acc.to(Out.type.element_ty), mask=offs_m[:, None] < N_CTX)


NEEDS = ["C // NH >= 16", "next_pow2(C // NH) == C // NH"]
DTYPES = ["f16"]


def attention(q, k, v, causal, scale):
    B, H, T, HEAD_DIM_K = q.shape
    assert HEAD_DIM_K in {16, 32, 64, 128, 256}
    o = torch.empty((B, T, H, HEAD_DIM_K), device=q.device, dtype=q.dtype)
    stage = 3 if causal else 1
    grid = lambda args: (triton.cdiv(T, args["BLOCK_M"]), B * H, 1)
    _attn_fwd[grid](
        scale, q, k, v, o, q.stride(0), q.stride(1), q.stride(2), o.stride(0), o.stride(2), o.stride(1),
        H, N_CTX=T, HEAD_DIM=HEAD_DIM_K, STAGE=stage,
    )  # fmt: skip
    return o
