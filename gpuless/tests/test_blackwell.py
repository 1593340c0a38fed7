"""Code for sm_100 and sm_120, as NVRTC compiles it: plain instructions and mma.sync give the same results as elsewhere;
tensor memory is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from emulation import needs_compiler, run
from gpuless import EmulatorFault

pytestmark = needs_compiler
ARCHS = ("sm_100", "sm_120")

SUM = """
__global__ void k(const float* x, float* out, int n) {
    __shared__ float s[128];
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += expf(x[i]) / 3;
    s[threadIdx.x] = v; __syncthreads();
    for (int k = 64; k >= 1; k /= 2) { if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k]; __syncthreads(); }
    if (threadIdx.x == 0) atomicAdd(out, s[0]);
}"""
LONGS = """
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__global__ void k(long long* p, int* o) {
    const int i = threadIdx.x;
    const long long a = p[i], b = p[i + 32];
    p[i + 64] = a + b - 5; p[i + 96] = a > b ? a : b; p[i + 128] = a * b; p[i + 160] = (unsigned long long)a < (unsigned long long)b;
    int local[8]; for (int k = 0; k < 8; k++) local[k] = o[k]; local[o[i & 7] & 7] = 9;
    o[i + 8] = fib(i % 8) + local[i & 7]; o[40 + i] = __reduce_max_sync(~0u, i * 3 % 17); o[72 + i] = __shfl_xor_sync(~0u, i, 5);
}"""
PRODUCT = """
__global__ void k(float* c, const unsigned* a, const unsigned* b) {
    const int t = threadIdx.x; float d[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3])
        : "r"(a[t / 4 * 8 + t % 4]), "r"(a[(t / 4 + 8) * 8 + t % 4]), "r"(a[t / 4 * 8 + t % 4 + 4]), "r"(a[(t / 4 + 8) * 8 + t % 4 + 4]), "r"(b[t / 4 * 8 + t % 4]), "r"(b[t / 4 * 8 + t % 4 + 4]));
    c[t / 4 * 8 + t % 4 * 2] = d[0]; c[t / 4 * 8 + t % 4 * 2 + 1] = d[1]; c[(t / 4 + 8) * 8 + t % 4 * 2] = d[2]; c[(t / 4 + 8) * 8 + t % 4 * 2 + 1] = d[3];
}"""
EIGHTS = """
#include <cuda_fp8.h>
__global__ void k(float* out, const unsigned* a, const unsigned* b) {
    const int t = threadIdx.x; float d[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3])
        : "r"(a[t / 4 * 8 + t % 4]), "r"(a[(t / 4 + 8) * 8 + t % 4]), "r"(a[t / 4 * 8 + t % 4 + 4]), "r"(a[(t / 4 + 8) * 8 + t % 4 + 4]), "r"(b[t / 4 * 8 + t % 4]), "r"(b[t / 4 * 8 + t % 4 + 4]));
    out[t / 4 * 8 + t % 4 * 2] = d[0]; out[t / 4 * 8 + t % 4 * 2 + 1] = d[1]; out[(t / 4 + 8) * 8 + t % 4 * 2] = d[2]; out[(t / 4 + 8) * 8 + t % 4 * 2 + 1] = d[3];
}"""


def execute(arch: str, source: str, *args: Any, **launch: Any) -> None:
    run(source, *args, settings={"arch": arch, "check_races": True, "seconds": 10.0}, **launch)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_sum_with_shared_memory_and_atomics(arch: str) -> None:
    x, out = torch.randn(1000), torch.zeros(1)
    execute(arch, SUM, x, out, 1000, grid=3, block=128)
    torch.testing.assert_close(out[0], (x.exp() / 3).sum())


@pytest.mark.parametrize("arch", ARCHS)
def test_numbers_of_64_bits_calls_and_lanes(arch: str) -> None:
    p, o = torch.randint(-(2**62), 2**62, (192,)), torch.zeros(104, dtype=torch.int32)
    o[:8] = torch.arange(8)
    a, b = p[:32].clone(), p[32:64].clone()
    execute(arch, LONGS, p, o)
    assert torch.equal(p[64:96], a + b - 5) and torch.equal(p[96:128], torch.maximum(a, b)) and torch.equal(p[128:160], a * b)
    unsigned = [(x % 2**64) < (y % 2**64) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert p[160:192].tolist() == unsigned
    lanes = torch.arange(32, dtype=torch.int32)
    fib = torch.tensor([0, 1, 1, 2, 3, 5, 8, 13], dtype=torch.int32)
    assert torch.equal(o[8:40], fib[lanes % 8] + 9)
    assert o[40:72].eq((lanes * 3 % 17).max()).all() and torch.equal(o[72:104], lanes ^ 5)


@pytest.mark.parametrize("arch", ARCHS)
def test_products_of_matrices_in_16_bits(arch: str) -> None:
    a, b, c = torch.randn(16, 16).bfloat16(), torch.randn(8, 16).bfloat16(), torch.zeros(16, 8)
    execute(arch, PRODUCT, c, a.view(torch.int32), b.view(torch.int32))
    torch.testing.assert_close(c, a.float() @ b.float().T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arch", ("sm_120",))
def test_products_of_matrices_in_8_bits(arch: str) -> None:
    a, b = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(8, 32).to(torch.float8_e4m3fn)
    c = torch.zeros(16, 8)
    execute(arch, EIGHTS, c, a.view(torch.int32), b.view(torch.int32))
    torch.testing.assert_close(c, a.float() @ b.float().T, rtol=1e-3, atol=1e-2)


def test_tensor_memory_is_refused_by_name() -> None:
    source = """
    __global__ void k(unsigned* o) {
        __shared__ unsigned s;
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" :: "r"((unsigned)__cvta_generic_to_shared(&s)));
        o[0] = s;
    }"""
    with pytest.raises(EmulatorFault) as caught:
        run(source, torch.zeros(1, dtype=torch.int32), settings={"arch": "sm_100a"})
    assert caught.value.kind == "unsupported" and "sm_100" in str(caught.value)
