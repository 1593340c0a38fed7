// What torch's headers bring along for kernels: numbers of 16 bits, and torch's names of them. Its functions are the host's.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace c10 {
using Half = __half;
using BFloat16 = __nv_bfloat16;
}  // namespace c10

namespace at {
using c10::BFloat16;
using c10::Half;
}  // namespace at
