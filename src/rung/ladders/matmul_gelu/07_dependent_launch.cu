/*---
idea   = "Few rows with programmatic dependent launch: the product of matmul/30 with GELU in its epilogue."
expect = "matmul/30's gain after another kernel, 2 to 3 us; a GELU of 16 sums per thread adds nothing measurable."
found  = "4.98 us at 64x768x3072 in bf16 on an H200 in a sequence of launches, cublasLt 5.43; 8.82 and 8.48 at 512 rows. In a prompt of 64 tokens 3.5 us less per layer than cublasLt."
side_experiment = "The same work as a launch in the middle of a chain of kernels; its time in a table is that of overlapping launches."
from   = "matmul/30"
inherit = ["dtypes", "arch_specific", "needs", "let", "tune", "bind", "maps", "launch"]
[model]
serves = { prompt = "2 if rows <= 1024 and not f32 else 0" }
fits = ["B * T <= 256 or tuned", "not step or OC * C < 2097152"]  # beyond, the library is faster
estimate = "few_rows"
[[launch]]
kernel = "matmul_gelu"
---*/
#include "dependent_product.cuh"
#include "warpgroup_epilogue.cuh"

extern "C" __global__ void __launch_bounds__(dependent_product::THREADS, 1)
    matmul_gelu(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map, const Real* bias,
                Real* out, int M, int OC, int C)
{
    dependent_product::product(x_map, weight_map, bias, out, M, OC, C, [](float sum) { return hopper_tile::gelu(sum); });
}
