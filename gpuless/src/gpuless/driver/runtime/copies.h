// Copies as the driver describes them, for calls and for the nodes of graphs.
#pragma once

#include "cudart.h"

namespace cudart {

CUdeviceptr address(const void* pointer);
size_t element_bytes(CUarray_format format);
CUDA_MEMCPY3D driver_copy(const cudaMemcpy3DParms& given);
CUDA_MEMCPY3D line_copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);

}  // namespace cudart
