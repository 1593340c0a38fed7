// A kernel's attributes, and its occupancy.
#include "driver.h"

#include <algorithm>

namespace gpuless {

// As cuda_occupancy.h has it: facts/limits.py says the same.
int active_blocks(const Code& code, int threads, size_t shared)
{
    const Gpu& g = gpu();
    const size_t warps = size_t(threads + 31) / 32, reserved = size_t(g.reserved_kib) << 10,
                 bytes = (shared + code.shared + reserved + 127) / 128 * 128;
    if (shared + code.shared > (size_t(g.shared_kib) << 10) - reserved || threads > int(code.threads)) return 0;
    size_t count = std::min(size_t(g.blocks), size_t(g.threads) / 32 / warps);
    if (bytes) count = std::min(count, (size_t(g.shared_kib) << 10) / bytes);
    const size_t each = (std::max(code.registers, 1u) * 32 + 255) / 256 * 256;
    if (each * ((warps + 3) / 4 * 4) > 65536) return 0;  // a block's warps are spread over four partitions
    return int(std::min(count, warps_of(code.registers, size_t(threads)) / warps));
}

namespace {

CUresult get(int* value, CUfunction_attribute attribute, const Code& code)
{
    const Gpu& g = gpu();
    size_t most = 1024;
    while (most > 32 && !warps_of(code.registers, most)) most -= 32;
    switch (int(attribute)) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = int(std::min(most, size_t(code.threads))); break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = int(code.shared); break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = int(code.module->sizes[0]); break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = int(code.stack); break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = int(code.registers); break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = code.module->arch; break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = code.dynamic_limit; break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = code.carveout; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: *value = int(code.cluster[0]); break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: *value = int(code.cluster[1]); break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: *value = int(code.cluster[2]); break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: *value = code.any_cluster; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: *value = code.cluster_policy; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    (void)g;
    return CUDA_SUCCESS;
}

CUresult set(CUfunction_attribute attribute, int value, Code& code)
{
    const Gpu& g = gpu();
    switch (int(attribute)) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || size_t(value) + code.shared > size_t(g.shared_kib - g.reserved_kib) << 10)
            return CUDA_ERROR_INVALID_VALUE;
        code.dynamic_limit = value;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
        code.carveout = value;
        break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: code.any_cluster = value; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: code.cluster_policy = value; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: code.cluster[0] = unsigned(value); break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: code.cluster[1] = unsigned(value); break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: code.cluster[2] = unsigned(value); break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

}  // namespace
}  // namespace gpuless

using namespace gpuless;

#define FUNCTION                                                                                                       \
    const Alone alone;                                                                                                 \
    if (const CUresult error = initialized()) return error;                                                            \
    Code* const code = code_at(function);                                                                              \
    if (!code) return CUDA_ERROR_INVALID_HANDLE
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function)
{
    FUNCTION;
    return value ? get(value, attribute, *code) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    FUNCTION;
    return set(attribute, value, *code);
}
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache)
{
    FUNCTION;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig)
{
    FUNCTION;
    return CUDA_SUCCESS;
}
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice)
{ return cuFuncGetAttribute(value, attribute, reinterpret_cast<CUfunction>(kernel)); }
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice)
{ return cuFuncSetAttribute(reinterpret_cast<CUfunction>(kernel), attribute, value); }
CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice)
{ return cuFuncSetCacheConfig(reinterpret_cast<CUfunction>(kernel), config); }

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int threads,
                                                              size_t shared, unsigned)
{
    FUNCTION;
    if (!blocks || threads <= 0 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    return *blocks = active_blocks(*code, threads, shared), CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, size_t shared)
{ return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0); }
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction function,
                                                   CUoccupancyB2DSize shared_of, size_t shared, int limit, unsigned)
{
    FUNCTION;
    int best = 0;
    *block = *grid = 0;
    const int most = int(std::min(1024u, code->threads));
    for (int threads = limit > 0 ? std::min(limit, most) : most; threads > 0; threads = (threads - 1) / 32 * 32) {
        const int blocks = active_blocks(*code, threads, shared_of ? shared_of(threads) : shared);
        if (blocks * threads > best) best = blocks * threads, *block = threads, *grid = blocks * gpu().multiprocessors;
    }
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of,
                                          size_t shared, int limit)
{ return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared, limit, 0); }
CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction function, int blocks, int threads)
{
    FUNCTION;
    const Gpu& g = gpu();
    if (blocks <= 0 || threads <= 0 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    if (active_blocks(*code, threads, 0) < blocks) return CUDA_ERROR_INVALID_VALUE;
    const size_t reserved = size_t(g.reserved_kib) << 10,
                 each = (size_t(g.shared_kib) << 10) / size_t(blocks) / 128 * 128, taken = reserved + code->shared,
                 most = (size_t(g.shared_kib) << 10) - taken;
    return *bytes = std::min({most, size_t(code->dynamic_limit), each > taken ? each - taken : 0}), CUDA_SUCCESS;
}
static unsigned blocks_of(const CUlaunchConfig& config)
{
    for (unsigned i = 0; i < config.numAttrs; i++)
        if (config.attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            return config.attrs[i].value.clusterDim.x * config.attrs[i].value.clusterDim.y *
                   config.attrs[i].value.clusterDim.z;
    return 0;
}
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig* config)
{
    FUNCTION;
    const unsigned size = std::max({1u, blocks_of(*config), code->cluster[0] * code->cluster[1] * code->cluster[2]});
    if (gpu().major < 9 || size > (code->any_cluster ? 16u : 8u)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    const int each =
        active_blocks(*code, int(config->blockDimX * config->blockDimY * config->blockDimZ), config->sharedMemBytes);
    return *clusters = each * gpu().multiprocessors / int(size), CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction function, const CUlaunchConfig*)
{
    FUNCTION;
    return gpu().major < 9 ? CUDA_ERROR_NOT_SUPPORTED : (*size = code->any_cluster ? 16 : 8, CUDA_SUCCESS);
}
