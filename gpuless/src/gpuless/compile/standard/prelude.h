// What nvcc includes before every source.
#pragma once
#include "math.h"
#if __has_include(<math_constants.h>)
#include <math_constants.h>
#endif
#include "stdint.h"
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
namespace std {  // whatever a file includes, nvcc has these
using ::size_t; using ::ptrdiff_t; using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t; using ::intptr_t; using ::uintptr_t;
}  // namespace std
#if __CUDA_ARCH__ >= 900  // of the device's runtime, which NVRTC does not have; templates, so that its header may follow
template <class = void>
__device__ __forceinline__ void cudaGridDependencySynchronize()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
template <class = void>
__device__ __forceinline__ void cudaTriggerProgrammaticLaunchCompletion()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#endif
