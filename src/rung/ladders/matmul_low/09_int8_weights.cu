/*---
idea   = "Only the weights in int8: each is converted to x's format in registers, from where wgmma takes its left operand. So the product is computed transposed, outᵀ = weight · xᵀ, and the weights' scales are applied at the store."
expect = "The floor is that of 16 bits, matmul/25's time, where products are the limit: with tiles of 256 rows the conversion's instructions take about a quarter of the tensor cores' time, in parallel with them. With few rows the floor is half of matmul's: the bytes of the weights."
found  = "Right where products are the limit: 62.7 us at 8192x768x3072 in bf16 on an H200, 0.98x cuBLAS's product of 16 bits, and 184 us at 4096x4096x4096, 0.98x (1.01x and 1.02x in f16). With 32 rows 13.6 us, 0.62x, not half the time: 6400 columns are 50 tiles, and 82 of 132 multiprocessors read nothing."
provenance = "Weight-only quantisation (W8A16), with the mixed-input products of CUTLASS and Marlin as the model."
from   = "matmul_low/8"
rewrite = "The operands change sides, and the weights pass through registers: main loop and stores are new."
dtypes = ["bf16", "f16"]
arch_specific = true
needs  = ["sm >= 90 and sm < 100", "C % 16 == 0", "SHARED <= 231424"]
align  = 16
[tune]
BN      = [256, 128, 192, 64, 32, 16]
STAGES  = [4, 3, 5, 6]
CLUSTER = [2, 1]
GROUP   = [8, 4, 1000]
BOXES   = [2, 1]
[let]
SHARED = "STAGES * (8192 + BN * 128) + BOXES * 16384 + 1024"
[define]
RAGGED = "min(1, OC * sizeof_real % 16)"
[maps.x_map]
operand = "x"
box     = ["BN // CLUSTER", 64]
swizzle = 128
[maps.w_map]
operand = "w_i8"
box     = [128, 64]
swizzle = 64
[maps.out_map]
operand = "out"
box     = ["min(BN, 64)", 64]
swizzle = 128
when    = "OC * sizeof_real % 16 == 0"
[[launch]]
kernel = "converted_product"
grid   = "CLUSTER * min(max(1, sms // CLUSTER), ceil_div(OC, 128 * CLUSTER) * ceil_div(M, BN))"
block  = 384
cluster = "CLUSTER"
shared = "SHARED"
---*/
#include "eight_bit_weights.cuh"

using namespace hopper_tile;

// Two integers as 16-bit numbers. A byte is the low half of a number whose high byte determines the step: f16 has 1024 + b
// for b + 128. bf16 has seven bits after the first: 128 + b without its sign, less 128, or 256 where the sign is set.
__device__ __forceinline__ uint32_t from_int8(uint32_t two)
{
#if defined(RUNG_BF16)
    const uint32_t bits = __byte_perm(two, 0x43434343u, 0x4140), upper = bits & 0xff7fff7fu, lower = bits & 0xff80ff80u;
    __nv_bfloat162 a, b;
#else
    const uint32_t upper = __byte_perm(two, 0x64646464u, 0x4140) ^ 0x00800080u, lower = 0x64806480u;  // 1152 twice
    __half2 a, b;
#endif
    memcpy(&a, &upper, 4), memcpy(&b, &lower, 4);
    a = __hsub2(a, b);
    uint32_t both;
    memcpy(&both, &a, 4);
    return both;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    converted_product(const __grid_constant__ TensorMap w_map, const __grid_constant__ TensorMap x_map,
                      const __grid_constant__ TensorMap out_map, const float* w_scale, Real* out, int M, int OC, int C)
{
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    WeightRing ring(shared, full, empty);
    product_across(w_map, x_map, out_map, ring, w_scale, out, M, OC, C, [](uint32_t two) { return from_int8(two); });
}
