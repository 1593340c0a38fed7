"""Fragments, mma.sync, ldmatrix and cp.async: register layouts as on the hardware, results against a plain matmul."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from emulation import needs_compiler, orders, run
from gpuless.base.errors import EmulatorFault

pytestmark = needs_compiler
SIXTEEN = [("__half", torch.float16), ("__nv_bfloat16", torch.bfloat16)]


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Ten bits of mantissa, to nearest, ties away from zero."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


# Registers filled by hand from the PTX manual's figures, one element at a time.
MMA = """
#include "rung.cuh"
extern "C" __global__ void k(const TYPE* a, const TYPE* b, const float* c, float* d) {
    int g = threadIdx.x / 4, t = threadIdx.x % 4;
    uint32_t ra[4], rb[2];
    float rd[4] = {c[g * 8 + 2 * t], c[g * 8 + 2 * t + 1], c[(g + 8) * 8 + 2 * t], c[(g + 8) * 8 + 2 * t + 1]};
    const int rows[4] = {g, g + 8, g, g + 8}, columns[4] = {0, 0, 8, 8};
    for (int i = 0; i < 4; i++) {
        const TYPE* p = a + rows[i] * 16 + columns[i] + 2 * t;
        ra[i] = pack2<TYPE>(to_float(p[0]), to_float(p[1]));
    }
    for (int i = 0; i < 2; i++) {
        const TYPE* p = b + (2 * t + 8 * i) * 8 + g;  // b is 16 x 8
        rb[i] = pack2<TYPE>(to_float(p[0]), to_float(p[8]));
    }
    mma_m16n8k16<TYPE>(rd, ra, rb);
    d[g * 8 + 2 * t] = rd[0]; d[g * 8 + 2 * t + 1] = rd[1]; d[(g + 8) * 8 + 2 * t] = rd[2]; d[(g + 8) * 8 + 2 * t + 1] = rd[3];
}"""


@pytest.mark.parametrize(("ctype", "dtype"), SIXTEEN)
def test_mma_m16n8k16_multiplies(ctype: str, dtype: torch.dtype) -> None:
    a, b, c = torch.randn(16, 16).to(dtype), torch.randn(16, 8).to(dtype), torch.randn(16, 8)
    d = torch.zeros(16, 8)
    run(MMA, a, b, c, d, defines=[("TYPE", ctype)], order="shuffled")
    torch.testing.assert_close(d, (a.double() @ b.double() + c).float(), rtol=1e-5, atol=1e-5)


def test_mma_m16n8k8_tf32_multiplies_rounded_operands() -> None:
    source = """
    #include "rung.cuh"
    extern "C" __global__ void k(const float* a, const float* b, float* d) {
        int g = threadIdx.x / 4, t = threadIdx.x % 4;
        uint32_t ra[4] = {to_tf32(a[g * 8 + t]), to_tf32(a[(g + 8) * 8 + t]), to_tf32(a[g * 8 + t + 4]), to_tf32(a[(g + 8) * 8 + t + 4])};
        uint32_t rb[2] = {to_tf32(b[t * 8 + g]), to_tf32(b[(t + 4) * 8 + g])};
        float rd[4] = {0, 0, 0, 0};
        mma_m16n8k8_tf32(rd, ra, rb);
        d[g * 8 + 2 * t] = rd[0]; d[g * 8 + 2 * t + 1] = rd[1]; d[(g + 8) * 8 + 2 * t] = rd[2]; d[(g + 8) * 8 + 2 * t + 1] = rd[3];
    }"""
    a, b, d = torch.randn(16, 8), torch.randn(8, 8), torch.zeros(16, 8)
    run(source, a, b, d)
    torch.testing.assert_close(d, (tf32(a).double() @ tf32(b).double()).float(), rtol=1e-5, atol=1e-6)
    assert (d - a @ b).abs().max() > 1e-5  # the rounding is there


# Every load of a matmul's operands through ldmatrix: a (16x16) and b transposed or not, from padded shared memory.
LDMATRIX = """
#include "rung.cuh"
extern "C" __global__ void k(const TYPE* a, const TYPE* b, const TYPE* bt, float* d, float* e, float* f) {
    __shared__ __align__(16) TYPE sa[16][24], sb[16][8], st[8][24];
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) sa[i / 16][i % 16] = a[i];
    for (int i = lane; i < 128; i += 32) { sb[i / 8][i % 8] = b[i]; st[i / 16][i % 16] = bt[i]; }
    __syncwarp();
    uint32_t ra[4], rb[2], rt[2], both[4];
    ldmatrix_x4(ra, &sa[lane % 16][lane / 16 * 8]);
    ldmatrix_x2_trans(rb, &sb[lane % 16][0]);
    ldmatrix_x2(rt, &st[lane % 8][lane / 8 % 2 * 8]);
    ldmatrix_x4_trans(both, &sa[lane % 16][lane / 16 * 8]);
    float rd[4] = {}, re[4] = {}, rf[4] = {};
    mma_m16n8k16<TYPE>(rd, ra, rb);
    mma_m16n8k16<TYPE>(re, ra, rt);
    uint32_t at[4] = {both[0], both[2], both[1], both[3]};  // a transposed: its off-diagonal quarters change places
    mma_m16n8k16<TYPE>(rf, at, rb);
    int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) {
        int at = (g + i / 2 * 8) * 8 + 2 * t + i % 2;
        d[at] = rd[i]; e[at] = re[i]; f[at] = rf[i];
    }
}"""


@pytest.mark.parametrize(("ctype", "dtype"), SIXTEEN)
def test_ldmatrix_hands_out_what_mma_takes(ctype: str, dtype: torch.dtype) -> None:
    a, b = torch.randn(16, 16).to(dtype), torch.randn(16, 8).to(dtype)
    d, e, f = torch.zeros(3, 16, 8)
    for settings in orders():
        run(LDMATRIX, a, b, b.T.contiguous(), d, e, f, defines=[("TYPE", ctype)], **settings)
        expected = (a.double() @ b.double()).float()
        torch.testing.assert_close(d, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(e, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(f, (a.double().T @ b.double()).float(), rtol=1e-5, atol=1e-5)


WMMA = """
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const STORED* a, const STORED* b, const float* c, float* d) {
    wmma::fragment<wmma::matrix_a, TILE_M, TILE_N, TILE_K, TYPE, wmma::LA> fa;
    wmma::fragment<wmma::matrix_b, TILE_M, TILE_N, TILE_K, TYPE, wmma::LB> fb;
    wmma::fragment<wmma::accumulator, TILE_M, TILE_N, TILE_K, float> fc, start;
    wmma::fill_fragment(fc, 1.0f);
    wmma::load_matrix_sync(fa, a, LDA);
    wmma::load_matrix_sync(fb, b, LDB);
    wmma::load_matrix_sync(start, c, TILE_N, wmma::mem_row_major);
    for (int i = 0; i < fa.num_elements; i++) fa.x[i] = ROUND(fa.x[i]);
    for (int i = 0; i < fb.num_elements; i++) fb.x[i] = ROUND(fb.x[i]);
    for (int i = 0; i < fc.num_elements; i++) fc.x[i] = fc.x[i] - 1.0f + 2.0f * start.x[i];
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(d, fc, TILE_M, wmma::mem_col_major);
}"""
TILES = [(16, 16, 16), (32, 8, 16), (8, 32, 16)]
TF32_TILE = ((16, 16, 8), "wmma::precision::tf32", torch.float32)


@pytest.mark.parametrize("la", ["row_major", "col_major"])
@pytest.mark.parametrize("lb", ["row_major", "col_major"])
@pytest.mark.parametrize(
    ("shape", "ctype", "dtype"),
    [*((s, c, d) for s in TILES for c, d in SIXTEEN), TF32_TILE],
)
def test_wmma_multiplies(la: str, lb: str, shape: tuple[int, int, int], ctype: str, dtype: torch.dtype) -> None:
    m, n, k = shape
    is_tf32 = dtype == torch.float32
    a, b, c = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.randn(m, n)
    d = torch.zeros(n, m)
    stored = "float" if is_tf32 else ctype
    defines = {"TILE_M": m, "TILE_N": n, "TILE_K": k, "TYPE": ctype, "STORED": stored, "LA": la, "LB": lb}
    defines |= {"LDA": k if la == "row_major" else m, "LDB": n if lb == "row_major" else k}
    defines |= {"ROUND": "wmma::__float_to_tf32" if is_tf32 else ""}
    run(
        WMMA,
        a if la == "row_major" else a.T.contiguous(),
        b if lb == "row_major" else b.T.contiguous(),
        c,
        d,
        defines=[(name, str(value)) for name, value in defines.items()],
    )
    exact = [tf32(x).double() if is_tf32 else x.double() for x in (a, b)]
    torch.testing.assert_close(d.T, (exact[0] @ exact[1] + 2 * c).float(), rtol=1e-5, atol=1e-5)


def test_to_tf32_rounds_ties_away() -> None:
    source = """
    #include "rung.cuh"
    extern "C" __global__ void k(const float* x, unsigned* out) { out[threadIdx.x] = to_tf32(x[threadIdx.x]); }"""
    bits = np.array([0x3F800FFF, 0x3F801000, 0x3F801001, 0x3F803000, 0xBF801000, 0x3FFFF000, 0x7F800000, 0], np.uint32)
    out = torch.zeros(8, dtype=torch.int32)
    run(source, torch.from_numpy(bits.view(np.float32)), out, block=8)
    expected = [0x3F800000, 0x3F802000, 0x3F802000, 0x3F804000, 0xBF802000, 0x40000000, 0x7F800000, 0]
    assert out.numpy().view(np.uint32).tolist() == expected


CP_ASYNC = """
#include "rung.cuh"
extern "C" __global__ void k(const float* x, float* out) {
    __shared__ __align__(16) float s[3][128];
    int t = threadIdx.x;
    for (int stage = 0; stage < 3; stage++) {
        cp_async_16(&s[stage][4 * t], x + 128 * stage + 4 * t, stage < 2 || t < 16);
        cp_async_commit();
    }
    out[t] = s[0][4 * t];                 // nothing has been waited for
    cp_async_wait<2>();
    out[32 + t] = s[0][4 * t + 1];        // the first of three groups is there
    out[64 + t] = s[1][4 * t];            // the second is not
    cp_async_wait<0>();
    out[96 + t] = s[1][4 * t + 2]; out[128 + t] = s[2][4 * t + 3];
}"""


def test_data_of_cp_async_may_be_read_after_the_wait_alone() -> None:
    x, out = torch.randn(3, 32, 4), torch.zeros(5, 32)
    with pytest.raises(EmulatorFault) as fault:
        run(CP_ASYNC, x, out, settings={"check_races": True})
    assert fault.value.kind == "race"
    run(CP_ASYNC, x, out)
    assert torch.equal(out[1], x[0, :, 1]) and torch.equal(out[3], x[1, :, 2])
    assert torch.equal(out[4], torch.where(torch.arange(32) < 16, x[2, :, 3], 0))


def test_copies_through_cooperative_groups_and_the_pipeline_primitives() -> None:
    source = """
    #include <cooperative_groups.h>
    #include <cooperative_groups/memcpy_async.h>
    #include <cuda_pipeline.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(const float* x, float* out) {
        __shared__ __align__(16) float s[100], one[64];
        auto block = cg::this_thread_block();
        cg::memcpy_async(block, s, x, sizeof(float) * 100);
        cg::wait(block);
        __pipeline_memcpy_async(&one[threadIdx.x], x + threadIdx.x, 4);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        out[threadIdx.x] = s[99 - threadIdx.x] + one[threadIdx.x];
    }"""
    x, out = torch.randn(100), torch.zeros(64)
    run(source, x, out, block=64, settings={"check_races": True})
    assert torch.equal(out, x.flip(0)[:64] + x[:64])


def test_cp_async_without_commit_is_not_waited_for() -> None:
    source = """
    #include "rung.cuh"
    extern "C" __global__ void k(const float* x, float* out) {
        __shared__ float s[32];
        cp_async_4(&s[threadIdx.x], x + threadIdx.x);
        cp_async_wait<0>();
        out[threadIdx.x] = s[threadIdx.x];
    }"""
    with pytest.raises(EmulatorFault) as fault:
        run(source, torch.randn(32), torch.zeros(32), settings={"check_races": True})
    assert fault.value.kind == "race"
