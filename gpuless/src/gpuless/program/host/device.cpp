// The device that the program sees: properties of a GPU by name, and what follows from them.
#include "host.h"

#include <string.h>
#include <strings.h>

#include <algorithm>

namespace rung_host {
namespace {

// Clocks in MHz, sizes as their names say.
struct Model
{
    const char *key, *name;
    int major, minor, multiprocessors, gib, clock, memory_clock, bus, l2_mib, shared_kib, reserved_kib, threads, blocks;
};
constexpr Model MODELS[] = {
#include "gpus.inc"  // emulator/executable.py writes it from cuda/gpus.toml
};
constexpr size_t KIB = 1024, MIB = KIB * KIB, GIB = MIB * KIB;

const Model& model()
{
    const char* const asked = getenv("RUNG_GPU");
    for (const Model& one : MODELS)
        if (asked && !strcasecmp(asked, one.key)) return one;
    return MODELS[0];
}

cudaDeviceProp properties()
{
    const Model& m = model();
    cudaDeviceProp p = {};
    snprintf(p.name, sizeof p.name, "%s", m.name);
    p.totalGlobalMem = size_t(m.gib) * GIB, p.sharedMemPerBlock = 48 * KIB, p.regsPerBlock = 65536, p.warpSize = 32;
    p.memPitch = 0x7fffffff, p.maxThreadsPerBlock = 1024, p.clockRate = m.clock * 1000, p.totalConstMem = 64 * KIB;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024, p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = 0x7fffffff, p.maxGridSize[1] = p.maxGridSize[2] = 65535;
    p.major = m.major, p.minor = m.minor, p.textureAlignment = p.surfaceAlignment = 512, p.texturePitchAlignment = 32;
    p.deviceOverlap = p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = p.streamPrioritiesSupported = 1;
    p.multiProcessorCount = m.multiprocessors, p.asyncEngineCount = 3, p.ECCEnabled = m.major != 8 || m.minor == 0;
    p.memoryClockRate = m.memory_clock * 1000, p.memoryBusWidth = m.bus, p.l2CacheSize = int(size_t(m.l2_mib) * MIB);
    p.persistingL2CacheMaxSize = m.major >= 8 ? int(size_t(m.l2_mib) * MIB * 5 / 8) : 0;
    p.maxThreadsPerMultiProcessor = m.threads, p.globalL1CacheSupported = p.localL1CacheSupported = 1;
    p.reservedSharedMemPerBlock = size_t(m.reserved_kib) * KIB;
    p.sharedMemPerMultiprocessor = size_t(m.shared_kib) * KIB,
    p.sharedMemPerBlockOptin = p.sharedMemPerMultiprocessor - p.reservedSharedMemPerBlock;
    p.regsPerMultiprocessor = 65536,
    p.managedMemory = p.concurrentManagedAccess = p.computePreemptionSupported = p.cooperativeLaunch = 1;
    p.maxBlocksPerMultiProcessor = m.blocks, p.hostRegisterSupported = p.memoryPoolsSupported = 1,
    p.clusterLaunch = m.major >= 9;
    p.singleToDoublePrecisionPerfRatio = m.minor == 0 && m.major >= 8 ? 2 : m.major == 7 ? 32 : 64;
    return p;
}

}  // namespace

const cudaDeviceProp& device()
{
    static const cudaDeviceProp chosen = properties();
    return chosen;
}

size_t warps_of(unsigned registers, size_t threads)
{
    const size_t warps = (threads + 31) / 32, each = (std::max(registers, 1u) * 32 + 255) / 256 * 256,
                 all = 4 * (size_t(device().regsPerMultiprocessor) / 4 / each);
    return all / warps * warps;
}

int blocks_at_once(size_t threads, unsigned registers, size_t shared)
{
    const cudaDeviceProp& p = device();
    const size_t warps = (threads + 31) / 32, bytes = (shared + p.reservedSharedMemPerBlock + 127) / 128 * 128;
    size_t count = std::min(size_t(p.maxBlocksPerMultiProcessor), size_t(p.maxThreadsPerMultiProcessor) / 32 / warps);
    if (bytes) count = std::min(count, p.sharedMemPerMultiprocessor / bytes);
    return int(std::min(count, warps_of(registers, threads) / warps));
}

cudaError_t active_blocks(int* blocks, const void* kernel, int threads, size_t shared)
{
    cudaFuncAttributes attributes;
    if (threads <= 0 || threads > 1024) return *blocks = 0, failed(cudaErrorInvalidValue);
    if (cudaError_t error = get_attributes(&attributes, kernel)) return error;
    *blocks = blocks_at_once(size_t(threads), unsigned(attributes.numRegs), shared + attributes.sharedSizeBytes);
    return cudaSuccess;
}

cudaError_t best_block(int* grid, int* block, const void* kernel, size_t (*shared)(void*, int), void* context,
                       int limit)
{
    int best = 0;
    *block = *grid = 0;
    for (int threads = limit > 0 ? std::min(limit, 1024) / 32 * 32 : 1024; threads >= 32; threads -= 32) {
        int blocks;
        if (cudaError_t error = active_blocks(&blocks, kernel, threads, shared(context, threads))) return error;
        if (blocks * threads > best)
            best = blocks * threads, *block = threads, *grid = blocks * device().multiProcessorCount;
    }
    return cudaSuccess;
}

}  // namespace rung_host

using namespace rung_host;

cudaError_t cudaDeviceReset() { return cudaDeviceSynchronize(); }
cudaError_t cudaSetDevice(int device) { return device ? failed(cudaErrorInvalidDevice) : stuck(); }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp*) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int number)
{ return number ? failed(cudaErrorInvalidDevice) : (*properties = device(), cudaSuccess); }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int number)
{
    if (number) return failed(cudaErrorInvalidDevice);
    if (attribute < 1 || attribute >= cudaDevAttrMax) return failed(cudaErrorInvalidValue);
    const cudaDeviceProp& p = device();
    switch (attribute) {
    default: *value = 0; break;  // of what the emulator lacks
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
    case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[attribute - cudaDevAttrMaxBlockDimX]; break;
    case cudaDevAttrMaxGridDimX:
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[attribute - cudaDevAttrMaxGridDimX]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = int(p.sharedMemPerBlock); break;
    case cudaDevAttrTotalConstantMemory: *value = int(p.totalConstMem); break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxPitch: *value = int(p.memPitch); break;
    case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
    case cudaDevAttrClockRate: *value = p.clockRate; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMemoryClockRate: *value = p.memoryClockRate; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrAsyncEngineCount: *value = p.asyncEngineCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = int(p.sharedMemPerMultiprocessor); break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(p.sharedMemPerBlockOptin); break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrMaxPersistingL2CacheSize: *value = p.persistingL2CacheMaxSize; break;
    case cudaDevAttrClusterLaunch: *value = p.clusterLaunch; break;
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    }
    return cudaSuccess;
}
static size_t limits[] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0};
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value)
{ return unsigned(limit) < 7 ? (limits[limit] = value, cudaSuccess) : failed(cudaErrorInvalidValue); }
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit)
{ return unsigned(limit) < 7 ? (*value = limits[limit], cudaSuccess) : failed(cudaErrorInvalidValue); }
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* config)
{ return *config = cudaSharedMemBankSizeFourByte, cudaSuccess; }
cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) { return *config = cudaFuncCachePreferNone, cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest)
{ return *least = 0, *greatest = -5, cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return failed(cudaErrorInvalidDevice); }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
cudaError_t cudaCtxResetPersistingL2Cache() { return cudaSuccess; }
