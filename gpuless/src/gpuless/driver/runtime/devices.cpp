// Devices and their properties, functions and their attributes, occupancy.
#include "cudart.h"

#include <atomic>
#include <cstdio>

#include "twelve.h"

namespace cudart {
namespace {

thread_local int device = 0;
thread_local unsigned generation = 0;  // in which this thread has got a context
std::atomic<unsigned> present{1};      // a reset of the device begins another
thread_local unsigned flags_of_thread = 0;

}  // namespace

int device_of_thread() { return device; }

cudaError_t ready()
{
    if (generation == present) return cudaSuccess;
    if (const CUresult error = cuInit(0)) return cudaError_t(error);
    CUcontext context = nullptr;
    if (cuCtxGetCurrent(&context) || !context || generation) {
        if (const CUresult error = cuDevicePrimaryCtxRetain(&context, device)) return cudaError_t(error);
        if (const CUresult error = cuCtxSetCurrent(context)) return cudaError_t(error);
    }
    generation = present;
    return cudaSuccess;
}

namespace {

int attribute(CUdevice_attribute which, int of)
{
    int value = 0;
    cuDeviceGetAttribute(&value, which, of);
    return value;
}

// A field of the properties that is an attribute, under any of the two interfaces' layouts.
#define OF(field, name) p.field = decltype(p.field)(attribute(CU_DEVICE_ATTRIBUTE_##name, of));
#define OFS(field, at, name) p.field[at] = attribute(CU_DEVICE_ATTRIBUTE_##name, of);

template <class P>
void fill_textures(P& p, int of)
{
    OF(maxTexture1D, MAXIMUM_TEXTURE1D_WIDTH)
    OF(maxTexture1DMipmap, MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH)
    OFS(maxTexture2D, 0, MAXIMUM_TEXTURE2D_WIDTH)
    OFS(maxTexture2D, 1, MAXIMUM_TEXTURE2D_HEIGHT)
    OFS(maxTexture2DMipmap, 0, MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH)
    OFS(maxTexture2DMipmap, 1, MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT)
    OFS(maxTexture2DLinear, 0, MAXIMUM_TEXTURE2D_LINEAR_WIDTH)
    OFS(maxTexture2DLinear, 1, MAXIMUM_TEXTURE2D_LINEAR_HEIGHT)
    OFS(maxTexture2DLinear, 2, MAXIMUM_TEXTURE2D_LINEAR_PITCH)
    OFS(maxTexture2DGather, 0, MAXIMUM_TEXTURE2D_GATHER_WIDTH)
    OFS(maxTexture2DGather, 1, MAXIMUM_TEXTURE2D_GATHER_HEIGHT)
    OFS(maxTexture3D, 0, MAXIMUM_TEXTURE3D_WIDTH)
    OFS(maxTexture3D, 1, MAXIMUM_TEXTURE3D_HEIGHT)
    OFS(maxTexture3D, 2, MAXIMUM_TEXTURE3D_DEPTH)
    OF(maxTextureCubemap, MAXIMUM_TEXTURECUBEMAP_WIDTH)
    OFS(maxTexture1DLayered, 0, MAXIMUM_TEXTURE1D_LAYERED_WIDTH)
    OFS(maxTexture1DLayered, 1, MAXIMUM_TEXTURE1D_LAYERED_LAYERS)
    OFS(maxTexture2DLayered, 0, MAXIMUM_TEXTURE2D_LAYERED_WIDTH)
    OFS(maxTexture2DLayered, 1, MAXIMUM_TEXTURE2D_LAYERED_HEIGHT)
    OFS(maxTexture2DLayered, 2, MAXIMUM_TEXTURE2D_LAYERED_LAYERS)
    OF(maxSurface1D, MAXIMUM_SURFACE1D_WIDTH)
    OFS(maxSurface2D, 0, MAXIMUM_SURFACE2D_WIDTH)
    OFS(maxSurface2D, 1, MAXIMUM_SURFACE2D_HEIGHT)
    OFS(maxSurface3D, 0, MAXIMUM_SURFACE3D_WIDTH)
    OFS(maxSurface3D, 1, MAXIMUM_SURFACE3D_HEIGHT)
    OFS(maxSurface3D, 2, MAXIMUM_SURFACE3D_DEPTH)
    OF(textureAlignment, TEXTURE_ALIGNMENT)
    OF(texturePitchAlignment, TEXTURE_PITCH_ALIGNMENT)
    OF(surfaceAlignment, SURFACE_ALIGNMENT)
}

template <class P>
void fill_limits(P& p, int of)
{
    OF(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK)
    OF(regsPerBlock, MAX_REGISTERS_PER_BLOCK)
    OF(warpSize, WARP_SIZE)
    OF(memPitch, MAX_PITCH)
    OF(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK)
    OFS(maxThreadsDim, 0, MAX_BLOCK_DIM_X)
    OFS(maxThreadsDim, 1, MAX_BLOCK_DIM_Y)
    OFS(maxThreadsDim, 2, MAX_BLOCK_DIM_Z)
    OFS(maxGridSize, 0, MAX_GRID_DIM_X)
    OFS(maxGridSize, 1, MAX_GRID_DIM_Y)
    OFS(maxGridSize, 2, MAX_GRID_DIM_Z)
    OF(totalConstMem, TOTAL_CONSTANT_MEMORY)
    OF(major, COMPUTE_CAPABILITY_MAJOR)
    OF(minor, COMPUTE_CAPABILITY_MINOR)
    OF(multiProcessorCount, MULTIPROCESSOR_COUNT)
    OF(integrated, INTEGRATED)
    OF(canMapHostMemory, CAN_MAP_HOST_MEMORY)
    OF(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH)
    OF(l2CacheSize, L2_CACHE_SIZE)
    OF(persistingL2CacheMaxSize, MAX_PERSISTING_L2_CACHE_SIZE)
    OF(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR)
    OF(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)
    OF(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR)
    OF(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    OF(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR)
    OF(accessPolicyMaxWindowSize, MAX_ACCESS_POLICY_WINDOW_SIZE)
    OF(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK)
}

template <class P>
void fill_abilities(P& p, int of)
{
    OF(concurrentKernels, CONCURRENT_KERNELS)
    OF(ECCEnabled, ECC_ENABLED)
    OF(pciBusID, PCI_BUS_ID)
    OF(pciDeviceID, PCI_DEVICE_ID)
    OF(pciDomainID, PCI_DOMAIN_ID)
    OF(tccDriver, TCC_DRIVER)
    OF(asyncEngineCount, ASYNC_ENGINE_COUNT)
    OF(unifiedAddressing, UNIFIED_ADDRESSING)
    OF(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED)
    OF(globalL1CacheSupported, GLOBAL_L1_CACHE_SUPPORTED)
    OF(localL1CacheSupported, LOCAL_L1_CACHE_SUPPORTED)
    OF(managedMemory, MANAGED_MEMORY)
    OF(isMultiGpuBoard, MULTI_GPU_BOARD)
    OF(hostNativeAtomicSupported, HOST_NATIVE_ATOMIC_SUPPORTED)
    OF(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS)
    OF(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS)
    OF(computePreemptionSupported, COMPUTE_PREEMPTION_SUPPORTED)
    OF(canUseHostPointerForRegisteredMem, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)
    OF(cooperativeLaunch, COOPERATIVE_LAUNCH)
    OF(pageableMemoryAccessUsesHostPageTables, PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)
    OF(directManagedMemAccessFromHost, DIRECT_MANAGED_MEM_ACCESS_FROM_HOST)
    OF(hostRegisterSupported, HOST_REGISTER_SUPPORTED)
    OF(sparseCudaArraySupported, SPARSE_CUDA_ARRAY_SUPPORTED)
    OF(hostRegisterReadOnlySupported, READ_ONLY_HOST_REGISTER_SUPPORTED)
    OF(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED)
    OF(memoryPoolSupportedHandleTypes, MEMPOOL_SUPPORTED_HANDLE_TYPES)
    OF(ipcEventSupported, IPC_EVENT_SUPPORTED)
    OF(clusterLaunch, CLUSTER_LAUNCH)
    OF(unifiedFunctionPointers, UNIFIED_FUNCTION_POINTERS)
    if constexpr (requires { p.clockRate; }) {
        OF(clockRate, CLOCK_RATE)
        OF(memoryClockRate, MEMORY_CLOCK_RATE)
        OF(deviceOverlap, GPU_OVERLAP)
        OF(kernelExecTimeoutEnabled, KERNEL_EXEC_TIMEOUT)
        OF(computeMode, COMPUTE_MODE)
        OF(maxTexture1DLinear, MAXIMUM_TEXTURE1D_LINEAR_WIDTH)
        OF(singleToDoublePrecisionPerfRatio, SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO)
        OF(cooperativeMultiDeviceLaunch, COOPERATIVE_MULTI_DEVICE_LAUNCH)
    }
}

template <class P>
CUresult fill(P& p, int of)
{
    memset(&p, 0, sizeof p);
    if (const CUresult error = cuInit(0)) return error;
    if (const CUresult error = cuDeviceGetName(p.name, sizeof p.name, of)) return error;
    cuDeviceGetUuid_v2(reinterpret_cast<CUuuid*>(&p.uuid), of);
    cuDeviceTotalMem(&p.totalGlobalMem, of);
    fill_textures(p, of), fill_limits(p, of), fill_abilities(p, of);
    return CUDA_SUCCESS;
}

}  // namespace
}  // namespace cudart

using namespace cudart;

#if CUDART == 13
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int of) { ENDED(fill(*properties, of)); }
#else
EXPORT cudaError_t cudaGetDeviceProperties_v2(PropertiesOfTwelve* properties, int of) { ENDED(fill(*properties, of)); }
EXPORT cudaError_t properties(PropertiesOfTwelve* properties, int of) __asm__("cudaGetDeviceProperties");
cudaError_t properties(PropertiesOfTwelve* properties, int of) { ENDED(fill(*properties, of)); }
#endif

EXPORT cudaError_t cudaGetDeviceCount(int* count)
{
    TRY(cuInit(0));
    TRY(cuDeviceGetCount(count));
    return *count ? cudaSuccess : note(cudaErrorNoDevice, __func__, SITE);
}

EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int of)
{
    TRY(cuInit(0));
    ENDED(cuDeviceGetAttribute(value, CUdevice_attribute(which), of));
}

EXPORT cudaError_t cudaSetDevice(int of)
{
    TRY(cuInit(0));
    int count = 0;
    cuDeviceGetCount(&count);
    if (of < 0 || of >= count) ENDED(cudaErrorInvalidDevice);
    CUcontext context;
    TRY(cuDevicePrimaryCtxRetain(&context, of));
    TRY(cuCtxSetCurrent(context));
    device = of, generation = present;
    return cudaSuccess;
}

EXPORT cudaError_t cudaInitDevice(int of, unsigned, unsigned) { ENDED(cudaSetDevice(of)); }
EXPORT cudaError_t cudaSetValidDevices(int*, int) { return cudaSuccess; }

EXPORT cudaError_t cudaGetDevice(int* of)
{
    TRY(cuInit(0));
    CUdevice now;
    CUcontext context = nullptr;
    *of = !cuCtxGetCurrent(&context) && context && !cuCtxGetDevice(&now) ? now : device;
    return cudaSuccess;
}

EXPORT cudaError_t cudaChooseDevice(int* of, const cudaDeviceProp*)
{
    *of = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    flags_of_thread = flags;
    TRY(cuInit(0));
    ENDED(cuDevicePrimaryCtxSetFlags(device, flags & CU_CTX_FLAGS_MASK));
}

EXPORT cudaError_t cudaGetDeviceFlags(unsigned* flags)
{
    *flags = flags_of_thread | cudaDeviceMapHost;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceReset()
{
    TRY(cuInit(0));
    TRY(cuDevicePrimaryCtxReset(device));
    present++;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value)
{
    BEGIN;
    ENDED(cuCtxSetLimit(CUlimit(limit), value));
}
EXPORT cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit)
{
    BEGIN;
    ENDED(cuCtxGetLimit(value, CUlimit(limit)));
}
EXPORT cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* config)
{
    *config = cudaSharedMemBankSizeFourByte;
    return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
EXPORT cudaError_t cudaFuncSetSharedMemConfig(const void*, cudaSharedMemConfig) { return cudaSuccess; }

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { ENDED(cudaErrorPeerAccessUnsupported); }
EXPORT cudaError_t cudaDeviceDisablePeerAccess(int) { ENDED(cudaErrorPeerAccessNotEnabled); }

EXPORT cudaError_t cudaDriverGetVersion(int* version) { ENDED(cuDriverGetVersion(version)); }
EXPORT cudaError_t cudaRuntimeGetVersion(int* version)
{
    *version = CUDART == 13 ? CUDART_VERSION : 12090;
    return cudaSuccess;
}

EXPORT cudaError_t cudaProfilerStart() { return cudaSuccess; }
EXPORT cudaError_t cudaProfilerStop() { return cudaSuccess; }
EXPORT cudaError_t cudaThreadSynchronize()
{
    BEGIN;
    ENDED(cuCtxSynchronize());
}
EXPORT cudaError_t cudaThreadExit() { ENDED(cudaDeviceReset()); }

// Undocumented tables of NVIDIA's runtime: there are none.
EXPORT cudaError_t cudaGetExportTable(const void**, const cudaUUID_t*) { ENDED(cudaErrorNotSupported); }

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                                    unsigned long long flags, cudaDriverEntryPointQueryResult* status)
{
    BEGIN;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult error = cuGetProcAddress(symbol, function, int(version), flags, &found);
    if (status) *status = cudaDriverEntryPointQueryResult(found);
    if (status && error == CUDA_ERROR_NOT_FOUND) return cudaSuccess;
    ENDED(error);
}
EXPORT cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char* symbol, void** function, unsigned version,
                                                         unsigned long long flags,
                                                         cudaDriverEntryPointQueryResult* status)
{
    return cudaGetDriverEntryPointByVersion(symbol, function, version,
                                            flags | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, status);
}
EXPORT cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                           cudaDriverEntryPointQueryResult* status)
{ return cudaGetDriverEntryPointByVersion(symbol, function, CUDART == 13 ? CUDART_VERSION : 12090, flags, status); }
EXPORT cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function, unsigned long long flags,
                                                cudaDriverEntryPointQueryResult* status)
{
    return cudaGetDriverEntryPointByVersion(symbol, function, CUDART == 13 ? CUDART_VERSION : 12090,
                                            flags | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, status);
}

// ---- functions

EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host)
{
    BEGIN;
    CUfunction function;
    TRY(function_of(host, &function));
    memset(attributes, 0, sizeof *attributes);
    const auto of = [&](CUfunction_attribute which) {
        int value = 0;
        cuFuncGetAttribute(&value, which, function);
        return value;
    };
    attributes->sharedSizeBytes = size_t(of(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
    attributes->constSizeBytes = size_t(of(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES));
    attributes->localSizeBytes = size_t(of(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
    attributes->maxThreadsPerBlock = of(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    attributes->numRegs = of(CU_FUNC_ATTRIBUTE_NUM_REGS);
    attributes->ptxVersion = of(CU_FUNC_ATTRIBUTE_PTX_VERSION);
    attributes->binaryVersion = of(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
    attributes->cacheModeCA = of(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA);
    attributes->maxDynamicSharedSizeBytes = of(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    attributes->preferredShmemCarveout = of(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
    attributes->clusterDimMustBeSet = of(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET);
    attributes->requiredClusterWidth = of(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
    attributes->requiredClusterHeight = of(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT);
    attributes->requiredClusterDepth = of(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
    attributes->nonPortableClusterSizeAllowed = of(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
    return cudaSuccess;
}

EXPORT cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute which, int value)
{
    BEGIN;
    CUfunction function;
    TRY(function_of(host, &function));
    ENDED(cuFuncSetAttribute(function, CUfunction_attribute(which), value));
}

EXPORT cudaError_t cudaFuncSetCacheConfig(const void* host, cudaFuncCache config)
{
    BEGIN;
    CUfunction function;
    TRY(function_of(host, &function));
    ENDED(cuFuncSetCacheConfig(function, CUfunc_cache(config)));
}

EXPORT cudaError_t cudaFuncGetName(const char** name, const void* host)
{
    BEGIN;
    CUfunction function;
    TRY(function_of(host, &function));
    ENDED(cuFuncGetName(name, function));
}

EXPORT cudaError_t cudaFuncGetParamInfo(const void* host, size_t which, size_t* offset, size_t* size)
{
    BEGIN;
    CUfunction function;
    TRY(function_of(host, &function));
    ENDED(cuFuncGetParamInfo(function, which, offset, size));
}

EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute which, int value, int of)
{
    BEGIN;
    CUkernel found;
    TRY(kernel_of(kernel, &found));
    ENDED(cuKernelSetAttribute(CUfunction_attribute(which), value, found, of));
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* host, int threads,
                                                                          size_t shared, unsigned flags)
{
    BEGIN;
    CUfunction function;
    TRY(function_of(host, &function));
    ENDED(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, flags));
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* host, int threads,
                                                                 size_t shared)
{ ENDED(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, shared, 0)); }
EXPORT cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* host, int blocks, int threads)
{
    BEGIN;
    CUfunction function;
    TRY(function_of(host, &function));
    ENDED(cuOccupancyAvailableDynamicSMemPerBlock(bytes, function, blocks, threads));
}

namespace {
CUlaunchConfig driver_config(const cudaLaunchConfig_t& given)
{
    CUlaunchConfig config = {};
    config.gridDimX = given.gridDim.x, config.gridDimY = given.gridDim.y, config.gridDimZ = given.gridDim.z;
    config.blockDimX = given.blockDim.x, config.blockDimY = given.blockDim.y, config.blockDimZ = given.blockDim.z;
    config.sharedMemBytes = unsigned(given.dynamicSmemBytes), config.hStream = given.stream;
    config.attrs = reinterpret_cast<CUlaunchAttribute*>(given.attrs), config.numAttrs = given.numAttrs;
    return config;
}
}  // namespace

EXPORT cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* host, const cudaLaunchConfig_t* given)
{
    BEGIN;
    CUfunction function;
    TRY(function_of(host, &function));
    const CUlaunchConfig config = driver_config(*given);
    ENDED(cuOccupancyMaxPotentialClusterSize(size, function, &config));
}
EXPORT cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* host, const cudaLaunchConfig_t* given)
{
    BEGIN;
    CUfunction function;
    TRY(function_of(host, &function));
    const CUlaunchConfig config = driver_config(*given);
    ENDED(cuOccupancyMaxActiveClusters(clusters, function, &config));
}
