// The devices: rows of gpus.toml that GPULESS_GPU names, and what follows from them.
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <algorithm>
#include <sstream>

namespace gpuless {
namespace {

constexpr Gpu ROWS[] = {
#include "gpus.inc"  // library.py writes it from gpus.toml, the usual GPU first
};
constexpr size_t KIB = 1024, MIB = KIB * KIB, GIB = MIB * KIB;

std::vector<const Gpu*> chosen()
{
    std::vector<const Gpu*> found;
    std::istringstream names(getenv("GPULESS_GPU") ? getenv("GPULESS_GPU") : "");
    for (std::string name; std::getline(names, name, ',');) {
        const auto of_name = [&](const Gpu& one) {
            return !strcasecmp(name.c_str(), one.key) || !strcasecmp(name.c_str(), one.name);
        };
        const Gpu* const row = std::find_if(std::begin(ROWS), std::end(ROWS), of_name);
        if (row != std::end(ROWS))
            found.push_back(row);
        else
            fprintf(stderr, "gpuless: GPULESS_GPU: no GPU is called '%s'\n", name.c_str());
    }
    if (found.empty()) found.push_back(&ROWS[0]);
    if (const char* const visible = getenv("CUDA_VISIBLE_DEVICES")) {  // until the first that is none
        std::vector<const Gpu*> seen;
        std::istringstream numbers(visible);
        for (std::string word; std::getline(numbers, word, ',');) {
            char* end = nullptr;
            const long which = strtol(word.c_str(), &end, 10);
            if (*end || end == word.c_str() || which < 0 || size_t(which) >= found.size()) break;
            seen.push_back(found[size_t(which)]);
        }
        found = seen;
    }
    return found;
}

int tera(const Gpu& g) { return g.minor == 0 && g.major >= 8 ? 2 : g.major == 7 ? 32 : 64; }

int persisting(const Gpu& g) { return g.major >= 8 ? int(size_t(g.l2_mib) * MIB * 5 / 8) : 0; }

struct Attribute
{ int number, value; };
// The same on all GPUs that are modelled.
constexpr Attribute SAME[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fffffff},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 * KIB},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 * KIB},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 0x7fffffff},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 2048},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS, 2048},
    {CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER, 1},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE, 8192},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE, 8192},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE, 32768},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS, 2046},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT, 65536},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS, 2048},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS, 2048},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS, 2046},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 268435456},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65000},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH, 2097120},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, 128 * MIB},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 0},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 1},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
};

int attribute_of(const Gpu& g, int attribute)
{
    const int shared = int(size_t(g.shared_kib) * KIB), reserved = int(size_t(g.reserved_kib) * KIB);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return g.clock * 1000;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return g.multiprocessors;
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED: return g.major != 8 || g.minor == 0;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return g.memory_clock * 1000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return g.bus;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return int(size_t(g.l2_mib) * MIB);
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return g.threads;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return g.major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return g.minor;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return shared;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO: return tera(g);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return shared - reserved;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return g.blocks;
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE: return persisting(g);
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return reserved;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED: return g.major >= 9;
    }
    for (const Attribute& one : SAME)
        if (one.number == attribute) return one.value;
    return 0;  // of what the machine lacks
}

CUresult check(CUdevice device)
{
    if (const CUresult error = initialized()) return error;
    return device < 0 || size_t(device) >= gpus().size() ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

}  // namespace

const std::vector<const Gpu*>& gpus()
{
    static const auto& all = *new std::vector<const Gpu*>(chosen());
    return all;
}

const Gpu& gpu() { return gpus().empty() ? ROWS[0] : *gpus()[size_t(std::max(0, current_device()))]; }

size_t warps_of(unsigned registers, size_t threads)
{
    const size_t warps = (threads + 31) / 32, each = (std::max(registers, 1u) * 32 + 255) / 256 * 256,
                 all = 4 * (size_t(65536) / 4 / each);
    return all / warps * warps;
}

}  // namespace gpuless

using namespace gpuless;

CUresult cuDeviceGet(CUdevice* device, int ordinal)
{
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = check(ordinal)) return error;
    return *device = ordinal, CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count)
{
    if (const CUresult error = initialized()) return error;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    return *count = int(gpus().size()), CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int room, CUdevice device)
{
    if (const CUresult error = check(device)) return error;
    if (!name || room <= 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, size_t(room), "%s", gpus()[size_t(device)]->name);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device)
{
    if (const CUresult error = check(device)) return error;
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    memset(uuid->bytes, 0, sizeof uuid->bytes);
    memcpy(uuid->bytes, "gpuless", 7);
    strncpy(uuid->bytes + 8, gpus()[size_t(device)]->key, 7);
    return uuid->bytes[15] = char(device), CUDA_SUCCESS;
}
CUresult cuDeviceGetLuid(char*, unsigned*, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }  // of Windows alone
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device)
{
    if (const CUresult error = check(device)) return error;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    return *bytes = size_t(gpus()[size_t(device)]->gib) * GIB, CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device)
{
    if (const CUresult error = check(device)) return error;
    if (!value || attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX + 32) return CUDA_ERROR_INVALID_VALUE;
    return *value = attribute_of(*gpus()[size_t(device)], attribute), CUDA_SUCCESS;
}
CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device)
{
    if (const CUresult error = check(device)) return error;
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    return *major = gpus()[size_t(device)]->major, *minor = gpus()[size_t(device)]->minor, CUDA_SUCCESS;
}
CUresult cuDeviceGetProperties(CUdevprop* p, CUdevice device)
{
    if (const CUresult error = check(device)) return error;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    *p = {1024,
          {1024, 1024, 64},
          {0x7fffffff, 65535, 65535},
          48 << 10,
          64 << 10,
          32,
          0x7fffffff,
          65536,
          gpus()[size_t(device)]->clock * 1000,
          512};
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* text, int room, CUdevice device)
{
    if (const CUresult error = check(device)) return error;
    if (!text || room < 13) return CUDA_ERROR_INVALID_VALUE;
    return snprintf(text, size_t(room), "0000:%02x:00.0", device), CUDA_SUCCESS;
}
CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text)
{
    if (!device || !text) return CUDA_ERROR_INVALID_VALUE;
    unsigned domain = 0, bus = 0;
    if (sscanf(text, "%x:%x", &domain, &bus) != 2) return CUDA_ERROR_INVALID_VALUE;
    return check(int(bus)) ? CUDA_ERROR_INVALID_DEVICE : (*device = int(bus), CUDA_SUCCESS);
}
CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer)
{
    if (const CUresult error = check(device) ? CUDA_ERROR_INVALID_DEVICE : check(peer)) return error;
    return *can = device != peer, CUDA_SUCCESS;
}
CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute, CUdevice device, CUdevice peer)
{
    if (const CUresult error = check(device) ? CUDA_ERROR_INVALID_DEVICE : check(peer)) return error;
    if (device == peer) return CUDA_ERROR_INVALID_DEVICE;
    return *value = 1, CUDA_SUCCESS;
}
CUresult cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType, CUdevice device)
{
    if (const CUresult error = check(device)) return error;
    return *supported = 0, CUDA_SUCCESS;
}
CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* most, CUarray_format, unsigned, CUdevice device)
{
    if (const CUresult error = check(device)) return error;
    return *most = 268435456, CUDA_SUCCESS;
}
