// What cuBLAS's header brings along for kernels: numbers of 16 bits. Its functions are the host's.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
