// In front of a header of CUDA's C++ libraries: g++ alone compiles it, for the host.
#ifndef RUNG_CCCL
#define RUNG_CCCL
#define CCCL_DISABLE_FP16_SUPPORT
#define CCCL_DISABLE_BF16_SUPPORT
#define CCCL_DISABLE_NVFP8_SUPPORT
#undef THRUST_DEVICE_SYSTEM
#define THRUST_DEVICE_SYSTEM THRUST_DEVICE_SYSTEM_CPP
#define RUNG_WIDE(T, NAME) \
    struct __attribute__((aligned(16))) NAME##4_16a { T x, y, z, w; }; \
    struct __attribute__((aligned(32))) NAME##4_32a { T x, y, z, w; };
RUNG_WIDE(long, long)
RUNG_WIDE(unsigned long, ulong)
RUNG_WIDE(long long, longlong)
RUNG_WIDE(unsigned long long, ulonglong)
RUNG_WIDE(double, double)
#undef RUNG_WIDE
#endif
#pragma push_macro("__CUDACC__")
#pragma push_macro("__CUDA_ARCH__")
#pragma push_macro("__CUDACC_VER_MAJOR__")
#pragma push_macro("__CUDACC_VER_MINOR__")
#undef __CUDACC__
#undef __CUDA_ARCH__
#undef __CUDACC_VER_MAJOR__
#undef __CUDACC_VER_MINOR__
