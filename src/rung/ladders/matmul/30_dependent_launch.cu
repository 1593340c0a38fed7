/*---
idea   = "Programmatic dependent launch: blocks start while the preceding kernel still runs and load weights and bias, which no kernel writes; only x is loaded after that kernel has ended."
expect = "At few rows launch and memory latency are half of 6 us; after another kernel of a prompt both overlap it, which saves 2 to 3 us per product, for 48 products. Alone nothing changes, except that successive launches overlap."
found  = "A prompt of 64 tokens, bf16, H200: 319 us with such kernels, 465 with the same ones launched one after the other, 465 by cublasLt. In a sequence of launches 4.83 us at 64x768x3072, cublasLt 5.25; 5.87 and 5.68 at 256x768x2304. From 512 rows cublasLt is faster alone, and only some products gain in a prompt. Sharing x helps at 64 rows only."
side_experiment = "The same work as a launch in the middle of a chain of kernels; its time in a table is that of overlapping launches."
from   = "matmul/26"
inherit = ["dtypes", "arch_specific", "needs", "let", "bind", "maps", "launch"]
needs  = ["SHARE == 1 or STAGES * SPLIT * 128 >= C * sizeof_real", "SPLIT * SHARE <= 8"]  # shared stages are filled once
[model]
serves = { prompt = "1 if rows <= 1024 and not f32 else 0" }
fits = ["B * T <= 256 or tuned", "not step or OC * C < 2097152"]  # beyond, the library is faster
estimate = "few_rows"
[tune]
BN     = [72, 48, 96, 192]
GROUPS = [2, 1]
SPLIT  = [2, 1, 4, 6]
STAGES = [6, 3, 8]
SHARE  = [1, 2, 4]
[maps.x_map]
operand = "x"
dims    = ["B * T", "C"]
box     = ["64 * GROUPS // SHARE", "128 // sizeof_real"]
swizzle = 128
tf32    = true
[[launch]]
kernel = "matmul"
grid   = ["SPLIT * SHARE * ceil_div(B * T, 64 * GROUPS)", "ceil_div(OC, BN * SHARE)"]
cluster = "SPLIT * SHARE"
pdl    = true
---*/
#include "dependent_product.cuh"

extern "C" __global__ void __launch_bounds__(dependent_product::THREADS, 1)
    matmul(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map, const Real* bias, Real* out,
           int M, int OC, int C)
{
    dependent_product::product(x_map, weight_map, bias, out, M, OC, C, [](float sum) { return sum; });
}
