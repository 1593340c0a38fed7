// Pools and allocations in the order of a stream; reserved addresses and memory that is mapped there.
#include "graphs.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

struct CUmemPoolHandle_st
{
    CUmemPoolProps of;
    uint64_t values[CU_MEMPOOL_ATTR_USED_MEM_HIGH + 8] = {};
};

namespace gpuless {
namespace {

auto& pools = *new std::set<CUmemoryPool>;
auto& usual = *new std::map<int, CUmemoryPool>;  // by device
auto& present = *new std::map<int, CUmemoryPool>;

CUmemoryPool pool_of(std::map<int, CUmemoryPool>& of, int device)
{
    CUmemoryPool& one = of[device];
    if (!one) {
        one = new CUmemPoolHandle_st{};
        one->of.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, one->of.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
        pools.insert(one);
        for (int reuse = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
             reuse <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; reuse++)
            one->values[reuse] = 1;
    }
    return one;
}
CUmemoryPool present_pool(int device)
{
    CUmemoryPool& one = present[device];
    return one ? one : one = pool_of(usual, device);
}

void count(CUmemoryPool pool, int64_t bytes)
{
    for (const auto& [now, high] :
         {std::pair(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH),
          std::pair(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)}) {
        pool->values[now] += uint64_t(bytes);
        pool->values[high] = std::max(pool->values[high], pool->values[now]);
    }
}

CUresult allocate_from(CUdeviceptr* pointer, size_t bytes, CUmemoryPool pool, CUstream stream, const Site& site)
{
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = check_stream(stream)) return error;
    if (!pools.count(pool)) return CUDA_ERROR_INVALID_HANDLE;
    if (!bytes) return *pointer = 0, CUDA_SUCCESS;
    const Kind kind = pool->of.location.type == CU_MEM_LOCATION_TYPE_DEVICE  ? Kind::Device
                      : pool->of.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED ? Kind::Managed
                                                                             : Kind::Pinned;
    if (const CUresult error = allocate(reinterpret_cast<void**>(pointer), bytes, kind, site)) return error;
    allocation_at(bytes_at(*pointer))->pool = pool;
    count(pool, int64_t(bytes));
    if (capturing(stream)) {
        NodeParameters node(CU_GRAPH_NODE_TYPE_MEM_ALLOC);
        node.alloc.dptr = *pointer, node.alloc.bytesize = bytes, node.alloc.poolProps = pool->of;
        enqueue(stream, beginning(bytes_at(*pointer)), node);
    }
    return CUDA_SUCCESS;
}

}  // namespace
}  // namespace gpuless

using namespace gpuless;

CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream)
{
    BEGIN("cuMemAllocAsync");
    return allocate_from(pointer, bytes, present_pool(current_device()), stream, site);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    BEGIN("cuMemAllocFromPoolAsync");
    return allocate_from(pointer, bytes, pool, stream, site);
}
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    BEGIN("cuMemFreeAsync");
    if (const CUresult error = check_stream(stream)) return error;
    Allocation* const memory = allocation_at(bytes_at(pointer));
    if (!memory && pointer) return release(bytes_at(pointer), false, site);  // which says what is wrong
    NodeParameters node(CU_GRAPH_NODE_TYPE_MEM_FREE);
    node.freed = pointer;
    if (capturing(stream)) return enqueue(stream, ending(bytes_at(pointer), site), node), CUDA_SUCCESS;
    enqueue(
        stream,
        [=] {
            const Allocation* const memory = allocation_at(bytes_at(pointer));
            if (!memory) return;
            const CUmemoryPool pool = memory->pool;
            const size_t bytes = memory->bytes;
            const bool pinned = memory->kind == Kind::Pinned;
            if (!release(bytes_at(pointer), pinned, site) && pools.count(pool)) count(pool, -int64_t(bytes));
        },
        node);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* of)
{
    BEGIN("cuMemPoolCreate");
    if (!pool || !of) return CUDA_ERROR_INVALID_VALUE;
    if (of->handleTypes) return CUDA_ERROR_NOT_SUPPORTED;  // of several processes
    std::map<int, CUmemoryPool> fresh;
    *pool = pool_of(fresh, of->location.id);
    return (*pool)->of = *of, CUDA_SUCCESS;
}
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    BEGIN("cuMemPoolDestroy");
    for (const auto& [_, one] : usual)
        if (one == pool) return CUDA_ERROR_INVALID_VALUE;
    if (!pools.erase(pool)) return CUDA_ERROR_INVALID_VALUE;
    for (auto& [_, one] : present)
        if (one == pool) one = nullptr;
    return CUDA_SUCCESS;
}
#define POOL(NAME)                                                                                                     \
    BEGIN(NAME);                                                                                                       \
    if (!pools.count(pool)) return CUDA_ERROR_INVALID_VALUE
static bool is_word(CUmemPool_attribute attribute)  // of 4 bytes
{ return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; }
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value)
{
    POOL("cuMemPoolSetAttribute");
    if (attribute < 1 || attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH) return CUDA_ERROR_INVALID_VALUE;
    pool->values[attribute] = 0;
    return memcpy(&pool->values[attribute], value, is_word(attribute) ? 4 : 8), CUDA_SUCCESS;
}
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value)
{
    POOL("cuMemPoolGetAttribute");
    if (attribute < 1 || attribute > CU_MEMPOOL_ATTR_USED_MEM_HIGH) return CUDA_ERROR_INVALID_VALUE;
    return memcpy(value, &pool->values[attribute], is_word(attribute) ? 4 : 8), CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t)
{
    POOL("cuMemPoolTrimTo");
    return CUDA_SUCCESS;
}
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc*, size_t)
{
    POOL("cuMemPoolSetAccess");
    return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation*)
{
    POOL("cuMemPoolGetAccess");
    return *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CUDA_SUCCESS;
}
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (device < 0 || size_t(device) >= gpus().size()) return CUDA_ERROR_INVALID_DEVICE;
    return *pool = pool_of(usual, device), CUDA_SUCCESS;
}
CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (device < 0 || size_t(device) >= gpus().size()) return CUDA_ERROR_INVALID_DEVICE;
    return *pool = present_pool(device), CUDA_SUCCESS;
}
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (device < 0 || size_t(device) >= gpus().size()) return CUDA_ERROR_INVALID_DEVICE;
    if (!pools.count(pool)) return CUDA_ERROR_INVALID_VALUE;
    return present[device] = pool, CUDA_SUCCESS;
}

// By a place in place of a device: the host has pools of its own.
static CUresult key_of(const CUmemLocation* location, CUmemAllocationType type, int& key)
{
    if (!location) return CUDA_ERROR_INVALID_VALUE;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
        if (location->id < 0 || size_t(location->id) >= gpus().size()) return CUDA_ERROR_INVALID_DEVICE;
        key = location->id;
    } else
        key = -1 - int(location->type);
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) key += 1000;
    return CUDA_SUCCESS;
}
static CUmemoryPool placed_pool(std::map<int, CUmemoryPool>& of, int key, const CUmemLocation& location,
                                CUmemAllocationType type)
{
    const CUmemoryPool pool = pool_of(of, key);
    pool->of.allocType = type, pool->of.location = location;
    return pool;
}
CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type)
{
    BEGIN("cuMemGetDefaultMemPool");
    int key = 0;
    if (const CUresult error = key_of(location, type, key)) return error;
    return *pool = placed_pool(usual, key, *location, type), CUDA_SUCCESS;
}
CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type)
{
    BEGIN("cuMemGetMemPool");
    int key = 0;
    if (const CUresult error = key_of(location, type, key)) return error;
    if (!present[key]) present[key] = placed_pool(usual, key, *location, type);
    return *pool = present[key], CUDA_SUCCESS;
}
CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool)
{
    BEGIN("cuMemSetMemPool");
    int key = 0;
    if (const CUresult error = key_of(location, type, key)) return error;
    if (!pools.count(pool)) return CUDA_ERROR_INVALID_VALUE;
    return present[key] = pool, CUDA_SUCCESS;
}

// ---- addresses and memory apart from each other ---------------------------------------------------------------------
namespace {
constexpr size_t GRANULE = size_t(2) << 20;
struct Physical  // memory that may be mapped at several addresses: a file in memory
{
    int file;
    size_t bytes;
    CUmemAllocationProp of;
    unsigned references = 1;
};
struct Mapping
{
    size_t bytes;
    CUmemGenericAllocationHandle handle;
};
auto& physical = *new std::map<CUmemGenericAllocationHandle, Physical>;
auto& reserved = *new std::map<char*, size_t>;
auto& mappings = *new std::map<char*, Mapping>;
CUmemGenericAllocationHandle handles;

void drop(CUmemGenericAllocationHandle handle)
{
    const auto found = physical.find(handle);
    if (found != physical.end() && !--found->second.references) close(found->second.file), physical.erase(found);
}
}  // namespace

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* of, CUmemAllocationGranularity_flags)
{
    if (const CUresult error = initialized()) return error;
    if (!bytes || !of) return CUDA_ERROR_INVALID_VALUE;
    return *bytes = GRANULE, CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* pointer, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long flags)
{
    BEGIN("cuMemAddressReserve");
    if (!pointer || !bytes || bytes % PAGE || flags) return CUDA_ERROR_INVALID_VALUE;
    const size_t multiple = std::max(alignment, GRANULE);
    void* const memory = mmap(nullptr, bytes + multiple, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    char* const start = reinterpret_cast<char*>((uintptr_t(memory) + multiple - 1) / multiple * multiple);
    reserved[start] = bytes;
    return *pointer = device_pointer(start), CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
    BEGIN("cuMemAddressFree");
    const auto found = reserved.find(bytes_at(pointer));
    if (found == reserved.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
    munmap(found->first, bytes), reserved.erase(found);
    return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* of,
                     unsigned long long flags)
{
    BEGIN("cuMemCreate");
    if (!handle || !of || !bytes || bytes % GRANULE || flags) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > size_t(gpu().gib) << 30) return CUDA_ERROR_OUT_OF_MEMORY;
    const int file = memfd_create("gpuless", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, off_t(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
    physical[*handle = ++handles] = {file, bytes, *of};
    return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    BEGIN("cuMemRelease");
    if (!physical.count(handle)) return CUDA_ERROR_INVALID_VALUE;
    return drop(handle), CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    BEGIN("cuMemMap");
    char* const start = bytes_at(pointer);
    const auto memory = physical.find(handle);
    const auto room = reserved.upper_bound(start);
    if (flags || memory == physical.end() || offset + bytes > memory->second.bytes || room == reserved.begin() ||
        std::prev(room)->first + std::prev(room)->second < start + bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap(start, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->second.file, off_t(offset)) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->second.references++, mappings[start] = {bytes, handle};
    return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access, size_t count)
{
    BEGIN("cuMemSetAccess");
    if (!access || !count) return CUDA_ERROR_INVALID_VALUE;
    char* const start = bytes_at(pointer);
    for (auto one = mappings.lower_bound(start); one != mappings.end() && one->first < start + bytes; ++one) {
        const bool open = access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
        mprotect(one->first, one->second.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
        Allocation* const known = allocation_at(one->first);
        if (open && !known)
            register_memory(one->first, one->second.bytes, Kind::Mapped, site);
        else if (!open && known)
            forget_memory(*known);
    }
    return CUDA_SUCCESS;
}
CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation*, CUdeviceptr pointer)
{
    BEGIN("cuMemGetAccess");
    const bool open = allocation_at(bytes_at(pointer));
    return *flags = open ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE, CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    BEGIN("cuMemUnmap");
    wait_for_all();
    char* const start = bytes_at(pointer);
    for (auto one = mappings.lower_bound(start); one != mappings.end() && one->first < start + bytes;) {
        if (Allocation* const known = allocation_at(one->first)) forget_memory(*known);
        mmap(one->first, one->second.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        drop(one->second.handle), one = mappings.erase(one);
    }
    return CUDA_SUCCESS;
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address)
{
    BEGIN("cuMemRetainAllocationHandle");
    const auto next = mappings.upper_bound(static_cast<char*>(address));
    if (next == mappings.begin()) return CUDA_ERROR_INVALID_VALUE;
    const auto& [start, mapping] = *std::prev(next);
    if (address >= start + mapping.bytes) return CUDA_ERROR_INVALID_VALUE;
    physical[mapping.handle].references++;
    return *handle = mapping.handle, CUDA_SUCCESS;
}
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* of, CUmemGenericAllocationHandle handle)
{
    BEGIN("cuMemGetAllocationPropertiesFromHandle");
    if (!physical.count(handle)) return CUDA_ERROR_INVALID_VALUE;
    return *of = physical[handle].of, CUDA_SUCCESS;
}
