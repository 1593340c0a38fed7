/*---
idea   = "The residual is prefetched: during the products the copy engine loads it into the output's buffer in shared memory, so that adding it reads shared memory only, and the sum is stored from the same place."
expect = "12.6 MB more to read, 3 us at memory bandwidth, hidden by the products: the plain product's time, where addmm onto the residual takes 1.19 times as long. 192 columns per tile, since 768 are four of these and 256 tiles fill 132 multiprocessors twice except for 3 %."
found  = "68.1 us at 8192x3072x768 in bf16 on an H200, where cuBLAS onto the residual takes 74.4 and rung 4 86.7; matmul/25 alone takes 57.6, so the residual is not free as expected. A cluster of two gives 68.5, 256 columns per tile 76.4."
dtypes = ["bf16", "f16", "tf32"]
arch_specific = true
needs  = ["sm >= 90 and sm < 100", "LEAD < STAGES", "C * sizeof_real % 16 == 0",
          "STAGES * (128 + BN) * 128 + 2 * BN // (128 // sizeof_real) * 8192 <= 231168"]
[tune]
BN      = [192, 256, 128]
STAGES  = [3, 4, 5]
LEAD    = [2, 0, 1, 3]
CLUSTER = [1, 2, 4]
GROUP   = [8, 4, 16, 1000]
[define]
RAGGED = "min(1, OC * sizeof_real % 16)"
[bind]
M = "B * T"
[maps.x_map]
operand = "x"
dims    = ["B * T", "C"]
box     = [128, "128 // sizeof_real"]
swizzle = 128
tf32    = true
[maps.weight_map]
operand = "weight"
box     = ["BN // CLUSTER", "128 // sizeof_real"]
swizzle = 128
tf32    = true
[maps.out_map]
operand = "out"
dims    = ["B * T", "OC"]
box     = [64, "128 // sizeof_real"]
swizzle = 128
when    = "OC * sizeof_real % 16 == 0"
[maps.residual_map]
operand = "residual"
dims    = ["B * T", "OC"]
box     = [64, "128 // sizeof_real"]
swizzle = 128
when    = "OC * sizeof_real % 16 == 0"
[[launch]]
kernel = "matmul_residual"
grid   = "CLUSTER * min(max(1, sms // CLUSTER), ceil_div(B * T, 128 * CLUSTER) * ceil_div(OC, BN))"
block  = 384
cluster = "CLUSTER"
shared = "STAGES * (128 + BN) * 128 + 2 * BN // (128 // sizeof_real) * 8192 + 1024"
---*/
#include "hopper_product.cuh"

using namespace hopper_tile;

struct StoreOnto
{
    Brought<BN> brought;
    const TensorMap *residual_map, *out_map;
    const Real* residual;
    Real* out;
    int M, OC;

    __device__ __forceinline__ void before(int2 origin)
    {
        if (!RAGGED && threadIdx.x % WARPGROUP == 0) brought.ask(residual_map, origin.x, origin.y, OC);
    }
    __device__ __forceinline__ void after(Sums& sums, const Bias<BN, !RAGGED>& bias, int2 origin)
    {
#if RAGGED
        store_ragged<BN>(sums, brought.boxes, origin.x, origin.y, M, OC, out, [&](float2 v, int j, int row, int column) {
            const float2 r = pair_at(residual, row, column, M, OC);
            return bias.add(make_float2(v.x + r.x, v.y + r.y), j);
        });
#else
        brought.wait();
        store_onto<BN>(sums, brought.boxes, out_map, origin.x, origin.y, OC,
                       [&](float2 v, int j, int, int) { return bias.add(v, j); });
#endif
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_residual(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
                    const __grid_constant__ TensorMap out_map, const __grid_constant__ TensorMap residual_map, const Real* bias,
                    const Real* residual, Real* out, int M, int OC, int C)
{
    extern __shared__ char shared[];
    __shared__ uint64_t full[STAGES], empty[STAGES], here[COMPUTING / WARPGROUP];
    Ring ring(shared, full, empty);
    const int group = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0)
        for (uint64_t& barrier : here) byte_barrier_init(&barrier);
    StoreOnto store{{ring.boxes(0) + group * Brought<BN>::BYTES, here + group}, &residual_map, &out_map, residual, out, M, OC};
    product(x_map, weight_map, ring, bias, M, OC, C, store);
}
