// Memory: kernels may touch each allocation to its last byte, and it lies between pages that fault, as freed memory
// does for long.
#include "driver.h"

#include "../machine/unwritten.h"

#include <sys/mman.h>

#include <algorithm>
#include <deque>

namespace gpuless {

void tell_short(const char* start);
bool is_variable(const void* address);

namespace {

constexpr size_t GUARD = 16 * PAGE, ALIGNMENT = 256;
constexpr size_t FILLED = size_t(64) << 20;     // bytes of an allocation that hold NaN at first
constexpr size_t MOST_FREED = size_t(1) << 44;  // bytes of addresses that are kept from use

// Never destroyed: the program's last destructors may free memory.
auto& allocations = *new std::map<const char*, Allocation>;  // by the end of the mapping, guards included
auto& freed = *new std::deque<const char*>;                  // the ends of those, the oldest first
size_t in_use, freed_bytes;
uint64_t changes, ids;

const char* name_of(const Allocation& one)
{
    if (one.made.function) return one.made.function;
    const char* const names[] = {"cuMemAlloc", "cuMemAllocManaged", "cuMemAllocHost", "cuMemHostRegister", "cuMemMap"};
    return names[int(one.kind)];
}

void* reserve(void* at, size_t bytes, int protection)
{ return mmap(at, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0); }

// Addresses of freed memory are used again when very many have been freed.
void recycle()
{
    while (freed_bytes > MOST_FREED && !freed.empty()) {
        const auto found = allocations.find(freed.front());
        freed.pop_front();
        freed_bytes -= found->second.length;
        munmap(found->second.mapped, found->second.length);
        allocations.erase(found);
    }
}

void end(Allocation& memory, const Site& site)
{
    memory.freed = true, memory.ended = site, changes++;
    if (memory.kind != Kind::Pinned) in_use -= memory.bytes;
    reserve(memory.mapped, memory.length, PROT_NONE);
    if (memory.of_graph) return;
    freed.push_back(memory.mapped + memory.length), freed_bytes += memory.length;
    recycle();
}

std::string made_at(const Allocation& memory)
{
    const Place place = place_of(memory.made);
    return std::string(name_of(memory)) +
           (place.line ? " (" + place.file + ":" + std::to_string(place.line) + ")" : "");
}

}  // namespace

CUresult allocate(void** pointer, size_t bytes, Kind kind, const Site& site)
{
    *pointer = nullptr;
    const size_t all = size_t(gpu().gib) << 30;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > all || (kind == Kind::Device && in_use + bytes > all)) return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, inner = (rounded + PAGE - 1) / PAGE * PAGE;
    char* const memory = static_cast<char*>(reserve(nullptr, inner + 2 * GUARD, PROT_NONE));
    if (memory == MAP_FAILED || mprotect(memory + GUARD, inner, PROT_READ | PROT_WRITE))
        return CUDA_ERROR_OUT_OF_MEMORY;
    char* const start = memory + GUARD + inner - rounded;
    if (kind == Kind::Device) rung_machine::fill_unwritten(start, std::min(rounded, FILLED), uint64_t(start));
    Allocation& made = allocations[memory + inner + 2 * GUARD];
    made = {start, memory, bytes, inner + 2 * GUARD, kind, false, site, {}};
    made.device = current_device(), made.id = ++ids, changes++;
    if (kind != Kind::Pinned) in_use += bytes;
    *pointer = start;
    return CUDA_SUCCESS;
}

void register_memory(char* start, size_t bytes, Kind kind, const Site& site)
{
    Allocation& made = allocations[start + bytes];
    made = {start, start, bytes, bytes, kind, false, site, {}};
    made.device = current_device(), made.id = ++ids, changes++;
}

void forget_memory(Allocation& memory)
{
    changes++;
    allocations.erase(memory.mapped + memory.length);
}

Allocation* allocation_at(const void* address)
{
    const auto found = allocations.upper_bound(static_cast<const char*>(address));
    return found != allocations.end() && address >= found->second.mapped ? &found->second : nullptr;
}

CUresult release(void* pointer, bool pinned, const Site& site)
{
    if (!pointer) return CUDA_SUCCESS;
    Allocation* const memory = allocation_at(pointer);
    if (memory && memory->freed) {
        tell(MISUSED, {"double free",
                       called(site) + " frees what was freed at " + called(memory->ended) + ": " +
                           number(memory->bytes) + " bytes from " + made_at(*memory),
                       site});
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!memory || memory->start != pointer || memory->kind == Kind::Registered || memory->kind == Kind::Mapped ||
        (memory->kind == Kind::Pinned) != pinned) {
        tell(MISUSED, {"free",
                       called(site) + " " +
                           (memory && memory->start == pointer ? "frees memory from " + made_at(*memory)
                            : memory ? "is given a pointer into the middle of an allocation: " + describe(pointer)
                                     : std::string("is given a pointer that no CUDA function has allocated")),
                       site});
        return CUDA_ERROR_INVALID_VALUE;
    }
    tell_short(memory->start);
    end(*memory, site);
    return CUDA_SUCCESS;
}

std::function<void()> beginning(void* of_graph)
{
    Allocation* const memory = allocation_at(of_graph);
    memory->of_graph = true, memory->begun = false;
    return [memory] {
        memory->begun = true;
        if (!memory->freed) return;
        mprotect(memory->mapped + GUARD, memory->length - 2 * GUARD, PROT_READ | PROT_WRITE);
        if (memory->kind == Kind::Device)
            rung_machine::fill_unwritten(memory->start, std::min(memory->bytes, FILLED), uint64_t(memory->start));
        if (memory->kind != Kind::Pinned) in_use += memory->bytes;
        memory->freed = false, memory->id = ++ids, changes++;
    };
}

std::function<void()> ending(void* of_any, const Site& site)
{
    return [=] {
        const Allocation* const memory = allocation_at(of_any);
        if (memory) release(of_any, memory->kind == Kind::Pinned, site);
    };
}

void free_all()
{
    for (auto& [_, memory] : allocations)
        if (!memory.freed && memory.kind != Kind::Registered && memory.kind != Kind::Mapped) end(memory, {});
}

size_t bytes_in_use() { return in_use; }
uint64_t allocations_changed() { return changes; }

std::string kept_allocations()
{
    size_t count = 0, bytes = 0;
    std::map<std::string, size_t> places;
    for (const auto& [_, memory] : allocations)
        if (!memory.freed && memory.begun && memory.kind != Kind::Registered && place_of(memory.made).line)
            count++, bytes += memory.bytes, places[made_at(memory)]++;
    if (!count) return "";
    std::string text = number(count) + (count == 1 ? " allocation of " : " allocations of ") + number(bytes) +
                       " bytes" + (count == 1 ? "" : " in all") + " not freed: ";
    for (const auto& [place, times] : places)
        text += (text.back() == ' ' ? "" : ", ") + place + (times > 1 ? " (" + number(times) + " times)" : "");
    return text;
}

bool device_may_touch(const void* address)
{
    if (const Allocation* memory = allocation_at(address)) return !memory->freed;
    return is_variable(address) || in_heap(address);
}

std::string describe(const void* address)
{
    if (uintptr_t(address) < 1 << 16) return "a null pointer is followed";
    const Allocation* const memory = allocation_at(address);
    if (!memory)
        return in_heap(address)       ? "memory from malloc or new in a kernel"
               : is_variable(address) ? "a global variable"
                                      : "memory of the host, or of nobody (is a host pointer handed to the kernel?)";
    const std::string whole = "the " + number(memory->bytes) + " bytes from " + made_at(*memory);
    if (memory->freed) return "memory that was freed at " + called(memory->ended) + ": " + whole;
    const char* const at = static_cast<const char*>(address);
    if (at < memory->start) return number(size_t(memory->start - at)) + " bytes before the start of " + whole;
    if (at >= memory->start + memory->bytes)
        return "byte " + number(size_t(at - memory->start)) + ", past the end of " + whole;
    return "byte " + number(size_t(at - memory->start)) + " of " + whole;
}

// Why a copy cannot touch these bytes; nothing if it can.
std::string objection(const void* address, size_t bytes, int device)
{
    if (!address) return "a null pointer";
    const Allocation* const memory = allocation_at(address);
    if (!memory) return device == 1 && !device_may_touch(address) ? "a pointer to host memory as the device's" : "";
    if (memory->freed)
        return "memory that was freed at " + called(memory->ended) + " (" + number(memory->bytes) + " bytes from " +
               made_at(*memory) + ")";
    if (device == 0 && memory->kind == Kind::Device) return "a device pointer as the host's";
    if (address < memory->start || static_cast<const char*>(address) + bytes > memory->start + memory->bytes) {
        const size_t offset = size_t(static_cast<const char*>(address) - memory->start);
        return number(bytes) + " bytes" + (offset ? " from byte " + number(offset) : "") + " of an allocation of " +
               number(memory->bytes) + " (" + made_at(*memory) + ")";
    }
    return "";
}

void each_allocation(const std::function<void(Allocation&)>& work)
{
    for (auto& [_, memory] : allocations)
        if (!memory.freed) work(memory);
}

}  // namespace gpuless

using namespace gpuless;

CUresult cuMemAlloc(CUdeviceptr* pointer, size_t bytes)
{
    BEGIN("cuMemAlloc");
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    return allocate(reinterpret_cast<void**>(pointer), bytes, Kind::Device, site);
}
CUresult cuMemAllocPitch(CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height, unsigned element)
{
    BEGIN("cuMemAllocPitch");
    if (!pointer || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = (width + 511) / 512 * 512;
    return allocate(reinterpret_cast<void**>(pointer), *pitch * height, Kind::Device, site);
}
CUresult cuMemFree(CUdeviceptr pointer)
{
    BEGIN("cuMemFree");
    wait_for_all();
    if (const CUresult error = stuck()) return error;
    return release(bytes_at(pointer), false, site);
}
CUresult cuMemGetInfo(size_t* free, size_t* total)
{
    BEGIN("cuMemGetInfo");
    *total = size_t(gpu().gib) << 30;
    *free = *total - std::min(*total, in_use);
    return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer)
{
    BEGIN("cuMemGetAddressRange");
    const Allocation* const memory = allocation_at(bytes_at(pointer));
    if (!memory || memory->freed || bytes_at(pointer) < memory->start ||
        bytes_at(pointer) >= memory->start + memory->bytes)
        return CUDA_ERROR_NOT_FOUND;
    if (base) *base = device_pointer(memory->start);
    if (bytes) *bytes = memory->bytes;
    return CUDA_SUCCESS;
}
CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned flags)
{
    BEGIN("cuMemAllocManaged");
    if (!pointer || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) return CUDA_ERROR_INVALID_VALUE;
    return allocate(reinterpret_cast<void**>(pointer), bytes, Kind::Managed, site);
}
CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags)
{
    BEGIN("cuMemHostAlloc");
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    const CUresult error = allocate(pointer, bytes, Kind::Pinned, site);
    if (!error) allocation_at(*pointer)->flags = flags;
    return error;
}
CUresult cuMemAllocHost(void** pointer, size_t bytes)
{
    BEGIN("cuMemAllocHost");
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    return allocate(pointer, bytes, Kind::Pinned, site);
}
CUresult cuMemFreeHost(void* pointer)
{
    BEGIN("cuMemFreeHost");
    wait_for_all();
    if (const CUresult error = stuck()) return error;
    return release(pointer, true, site);
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr* device, void* host, unsigned)
{
    BEGIN("cuMemHostGetDevicePointer");
    const Allocation* const memory = allocation_at(host);
    if (!device || !memory || memory->freed || memory->kind == Kind::Device) return CUDA_ERROR_INVALID_VALUE;
    return *device = device_pointer(host), CUDA_SUCCESS;
}
CUresult cuMemHostGetFlags(unsigned* flags, void* host)
{
    BEGIN("cuMemHostGetFlags");
    const Allocation* const memory = allocation_at(host);
    if (!memory || memory->freed || memory->kind != Kind::Pinned) return CUDA_ERROR_INVALID_VALUE;
    return *flags = memory->flags | CU_MEMHOSTALLOC_DEVICEMAP, CUDA_SUCCESS;
}
CUresult cuMemHostRegister(void* pointer, size_t bytes, unsigned flags)
{
    BEGIN("cuMemHostRegister");
    if (!pointer || !bytes) return CUDA_ERROR_INVALID_VALUE;
    char* const start = static_cast<char*>(pointer);
    if (allocation_at(start) || allocation_at(start + bytes - 1)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    register_memory(start, bytes, Kind::Registered, site);
    return allocation_at(start)->flags = flags, CUDA_SUCCESS;
}
CUresult cuMemHostUnregister(void* pointer)
{
    BEGIN("cuMemHostUnregister");
    Allocation* const memory = allocation_at(pointer);
    if (!memory || memory->kind != Kind::Registered || memory->start != pointer)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    wait_for_all();
    return forget_memory(*memory), CUDA_SUCCESS;
}
static Allocation* managed_at(CUdeviceptr pointer)
{
    Allocation* const memory = allocation_at(bytes_at(pointer));
    return memory && !memory->freed && memory->kind != Kind::Device ? memory : nullptr;
}
static bool is_location(const CUmemLocation& at)
{
    return at.type == CU_MEM_LOCATION_TYPE_DEVICE ? at.id >= 0 && size_t(at.id) < gpus().size()
                                                  : at.type != CU_MEM_LOCATION_TYPE_INVALID;
}
static int number_of(const CUmemLocation& at)
{ return at.type == CU_MEM_LOCATION_TYPE_DEVICE ? at.id : at.type ? CU_DEVICE_CPU : CU_DEVICE_INVALID; }
CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t, CUmemLocation to, unsigned, CUstream stream)
{
    BEGIN("cuMemPrefetchAsync");
    if (const CUresult error = check_stream(stream)) return error;
    Allocation* const memory = managed_at(pointer);
    if (!memory || !is_location(to)) return CUDA_ERROR_INVALID_VALUE;
    return memory->prefetched = to, CUDA_SUCCESS;
}
CUresult cuMemPrefetchBatchAsync(CUdeviceptr* pointers, size_t* sizes, size_t count, CUmemLocation* places,
                                 size_t* which, size_t kinds, unsigned long long flags, CUstream stream)
{
    if (!pointers || !sizes || !count || !places || !which || !kinds || flags) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, kind = 0; i < count; i++) {
        while (kind + 1 < kinds && which[kind + 1] <= i) kind++;
        if (const CUresult error = cuMemPrefetchAsync(pointers[i], sizes[i], places[kind], 0, stream)) return error;
    }
    return CUDA_SUCCESS;
}
// The content of discarded memory is undefined: it stays as it is.
CUresult cuMemDiscardBatchAsync(CUdeviceptr* pointers, size_t*, size_t count, unsigned long long flags, CUstream stream)
{
    BEGIN("cuMemDiscardBatchAsync");
    if (const CUresult error = check_stream(stream)) return error;
    for (size_t i = 0; i < count; i++)
        if (!managed_at(pointers[i])) return CUDA_ERROR_INVALID_VALUE;
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* pointers, size_t* sizes, size_t count, CUmemLocation* places,
                                           size_t* which, size_t kinds, unsigned long long flags, CUstream stream)
{ return cuMemPrefetchBatchAsync(pointers, sizes, count, places, which, kinds, flags, stream); }
CUresult cuMemAdvise(CUdeviceptr pointer, size_t, CUmem_advise advice, CUmemLocation at)
{
    BEGIN("cuMemAdvise");
    Allocation* const memory = managed_at(pointer);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY: memory->read_mostly = true; break;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY: memory->read_mostly = false; break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        if (!is_location(at)) return CUDA_ERROR_INVALID_VALUE;
        memory->preferred = at;
        break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: memory->preferred = {}; break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        if (!is_location(at)) return CUDA_ERROR_INVALID_VALUE;
        memory->accessed_by.insert(number_of(at));
        break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY: memory->accessed_by.erase(number_of(at)); break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
CUresult cuMemRangeGetAttribute(void* data, size_t bytes, CUmem_range_attribute attribute, CUdeviceptr pointer, size_t)
{
    BEGIN("cuMemRangeGetAttribute");
    const Allocation* const memory = managed_at(pointer);
    if (!data || !memory || bytes < 4) return CUDA_ERROR_INVALID_VALUE;
    int* const to = static_cast<int*>(data);
    switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: *to = memory->read_mostly; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: *to = number_of(memory->preferred); break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: *to = number_of(memory->prefetched); break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: *to = memory->preferred.type; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: *to = memory->preferred.id; break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: *to = memory->prefetched.type; break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: *to = memory->prefetched.id; break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
        auto one = memory->accessed_by.begin();
        for (size_t i = 0; i < bytes / 4; i++) to[i] = one == memory->accessed_by.end() ? CU_DEVICE_INVALID : *one++;
        break;
    }
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
CUresult cuMemRangeGetAttributes(void** data, size_t* sizes, CUmem_range_attribute* attributes, size_t count,
                                 CUdeviceptr pointer, size_t bytes)
{
    for (size_t i = 0; i < count; i++)
        if (const CUresult error = cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], pointer, bytes))
            return error;
    return CUDA_SUCCESS;
}
CUresult cuPointerSetAttribute(const void*, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    BEGIN("cuPointerSetAttribute");
    const Allocation* const memory = allocation_at(bytes_at(pointer));
    return memory && !memory->freed && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ? CUDA_SUCCESS
                                                                                     : CUDA_ERROR_INVALID_VALUE;
}
// One attribute; `quiet`: unknown memory has zeros.
static CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer, bool quiet)
{
    const Allocation* const found = allocation_at(bytes_at(pointer));
    const Allocation* const memory =
        found && !found->freed && bytes_at(pointer) >= found->start && bytes_at(pointer) < found->start + found->bytes
            ? found
            : nullptr;
    const bool variable = !memory && is_variable(bytes_at(pointer));
    if (!memory && !variable && !quiet) return CUDA_ERROR_INVALID_VALUE;
    const bool host = memory && (memory->kind == Kind::Pinned || memory->kind == Kind::Registered),
               managed = memory && memory->kind == Kind::Managed, known = memory || variable;
    const auto number = [&](auto value) { return *static_cast<decltype(value)*>(data) = value, CUDA_SUCCESS; };
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return number(known ? current() : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return number(!known ? 0u : unsigned(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return number(known ? pointer : CUdeviceptr(0));
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!host && !managed && !quiet) return CUDA_ERROR_INVALID_VALUE;
        return number(host || managed ? reinterpret_cast<void*>(pointer) : nullptr);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return number(0u);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return number((unsigned long long)(memory ? memory->id : 0));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return number(unsigned(managed));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return number(!known ? -2 : memory ? memory->device : 0);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return number(0u);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return number(memory ? device_pointer(memory->start) : CUdeviceptr(0));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return number(memory ? memory->bytes : size_t(0));
    case CU_POINTER_ATTRIBUTE_MAPPED: return number(unsigned(known));
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return number(0ull);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return number(0u);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return number(unsigned(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return number(memory ? memory->pool : nullptr);
    default: return quiet ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
}
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    BEGIN("cuPointerGetAttribute");
    if (!data) return CUDA_ERROR_INVALID_VALUE;
    return pointer_attribute(data, attribute, pointer, false);
}
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr pointer)
{
    BEGIN("cuPointerGetAttributes");
    for (unsigned i = 0; i < count; i++) pointer_attribute(data[i], attributes[i], pointer, true);
    return CUDA_SUCCESS;
}
