// What nvcc includes before every source.
#pragma once
#include "math.h"
#include "stdint.h"
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
namespace std {}
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
