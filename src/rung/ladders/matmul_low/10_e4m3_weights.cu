/*---
idea   = "Only the weights in e4m3: exponent and mantissa are moved to where x's format has them, and one multiplication by a power of two makes up for the difference of the two formats' exponents. The rest is rung 9's."
expect = "Rung 9's time and floor: five instructions for two weights where int8 takes four in bf16 and three in f16, and the tensor cores stay the limit. Half of rung 8's rate at most, but x has 16 bits, and sums keep all of theirs."
found  = "Similar to rung 9, 4 to 8 % slower in bf16 on an H200: 65.3 us at 8192x768x3072 and 192 us at 4096x4096x4096, 0.94x cuBLAS's products of 16 bits. The fifth instruction is not hidden. With 32 rows 14.7 us. Rung 8, which rounds x to eight bits too, takes 46.3 and 102 us."
provenance = "Weight-only quantisation in FP8; the conversion is that of Marlin's kernels."
inherit = ["dtypes", "arch_specific", "needs", "align", "tune", "let", "define", "maps", "launch"]
from   = "matmul_low/9"
[maps.w_map]
operand = "w_f8"
box     = [128, 64]
swizzle = 64
---*/
#include "eight_bit_weights.cuh"

using namespace hopper_tile;

// Two numbers of e4m3 as numbers of 16 bits, exactly: the exponent moves as it is, also where it is 0, so that the number is too
// small by the difference of the formats' biases. The NaN codes become 480.
__device__ __forceinline__ uint32_t from_e4m3(uint32_t two)
{
#if defined(RUNG_BF16)
    constexpr uint32_t SHIFT = 4, FACTOR = 0x7b807b80u;  // 2^(127 - 7), twice
    __nv_bfloat162 number, factor;
#else
    constexpr uint32_t SHIFT = 1, FACTOR = 0x5c005c00u;  // 2^(15 - 7), twice
    __half2 number, factor;
#endif
    constexpr uint32_t MOVED = 0x7f00 >> SHIFT, BOTH = MOVED << 16 | MOVED;
    const uint32_t spread = __byte_perm(two, 0, 0x1404), bits = (spread & 0x80008000u) | (spread >> SHIFT & BOTH);
    memcpy(&number, &bits, 4), memcpy(&factor, &FACTOR, 4);
    number = __hmul2(number, factor);
    uint32_t both;
    memcpy(&both, &number, 4);
    return both;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    converted_product(const __grid_constant__ TensorMap w_map, const __grid_constant__ TensorMap x_map,
                      const __grid_constant__ TensorMap out_map, const float* w_scale, Real* out, int M, int OC, int C)
{
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    WeightRing ring(shared, full, empty);
    product_across(w_map, x_map, out_map, ring, w_scale, out, M, OC, C, [](uint32_t two) { return from_e4m3(two); });
}
