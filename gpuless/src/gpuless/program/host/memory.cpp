// Memory: kernels may touch each allocation to its last byte, and it lies between pages that fault, as freed memory
// does until the process ends. A copy beyond an allocation is reported.
#include "host.h"

#include "../../machine/unwritten.h"

#include <errno.h>
#include <sys/mman.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace rung_host {
namespace {

constexpr size_t GUARD = 16 * PAGE, ALIGNMENT = 256;
constexpr size_t FILLED = size_t(64) << 20;  // bytes of an allocation that hold NaN at first

// Never destroyed: the program's last destructors may free memory.
auto& allocations = *new std::map<const char*, Allocation>;  // by the end of the mapping, guards included
size_t in_use;

std::string number(size_t n)
{
    std::string text = std::to_string(n);
    for (int at = int(text.size()) - 3; at > 0; at -= 3) text.insert(size_t(at), ",");
    return text;
}

const char* name_of(Kind kind)
{
    const char* const names[] = {"cudaMalloc", "cudaMallocManaged", "cudaMallocHost", "cudaHostRegister"};
    return names[int(kind)];
}

cudaError_t allocate(void** pointer, size_t bytes, Kind kind, RungSite site)
{
    const Alone alone;
    if (cudaError_t error = stuck()) return error;
    if (!pointer) return failed(cudaErrorInvalidValue);
    *pointer = nullptr;
    if (!bytes) return cudaSuccess;
    if (bytes > device().totalGlobalMem || (kind == Kind::Device && in_use + bytes > device().totalGlobalMem))
        return failed(cudaErrorMemoryAllocation);
    const size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, inner = (rounded + PAGE - 1) / PAGE * PAGE;
    char* const memory = static_cast<char*>(
        mmap(nullptr, inner + 2 * GUARD, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (memory == MAP_FAILED || mprotect(memory + GUARD, inner, PROT_READ | PROT_WRITE))
        return failed(cudaErrorMemoryAllocation);
    char* const start = memory + GUARD + inner - rounded;
    if (kind == Kind::Device) rung_machine::fill_unwritten(start, std::min(rounded, FILLED), uint64_t(start));
    allocations[memory + inner + 2 * GUARD] = {
        start, memory, bytes, inner + 2 * GUARD, kind, false, place_of_call(site), ""};
    if (kind != Kind::Pinned) in_use += bytes;
    *pointer = start;
    return cudaSuccess;
}

Allocation* find(const void* address)
{
    const Alone alone;
    const auto found = allocations.upper_bound(static_cast<const char*>(address));
    return found != allocations.end() && address >= found->second.mapped ? &found->second : nullptr;
}

void end(Allocation& memory, RungSite site)
{
    memory.freed = true;
    memory.ended = place_of_call(site);
    const uintptr_t first = uintptr_t(memory.start) / PAGE * PAGE;
    madvise(reinterpret_cast<void*>(first), memory.length - 2 * GUARD, MADV_REMOVE);
    mprotect(memory.mapped, memory.length, PROT_NONE);
    if (memory.kind != Kind::Pinned) in_use -= memory.bytes;
}

void tell_short(const char* start);

cudaError_t release(void* pointer, bool pinned, const char* function, RungSite site)
{
    const Alone alone;
    if (!pointer) return cudaSuccess;
    Allocation* const memory = find(pointer);
    const std::string at = std::string(function) + " (" + place_of_call(site) + ") ";
    if (memory && memory->freed) {
        tell(MISUSED, {"double free",
                       at + "frees what was freed at " + memory->ended + ": " + number(memory->bytes) + " bytes from " +
                           name_of(memory->kind) + " (" + memory->made + ")",
                       site});
        return failed(cudaErrorInvalidValue);
    }
    if (!memory || memory->start != pointer || memory->kind == Kind::Registered ||
        (memory->kind == Kind::Pinned) != pinned) {
        tell(MISUSED,
             {"free",
              at + (memory && memory->start == pointer ? std::string("frees memory from ") + name_of(memory->kind)
                    : memory ? "is given a pointer into the middle of an allocation: " + describe(pointer)
                             : "is given a pointer that no CUDA function has allocated"),
              site});
        return failed(cudaErrorInvalidValue);
    }
    tell_short(memory->start);
    end(*memory, site);
    return cudaSuccess;
}

// Why a copy cannot touch these bytes; nothing if it can. `device`: 1 device memory is asked for, 0 host memory, -1
// either.
std::string objection(const void* address, size_t bytes, int device)
{
    if (!address) return "a null pointer";
    const Allocation* memory = find(address);
    if (!memory) return device == 1 && !device_may_touch(address) ? "a pointer to host memory as the device's" : "";
    if (memory->freed)
        return "memory that was freed at " + memory->ended + " (" + number(memory->bytes) + " bytes from " +
               name_of(memory->kind) + ", " + memory->made + ")";
    if (device == 0 && memory->kind == Kind::Device) return "a device pointer as the host's";
    if (address < memory->start || static_cast<const char*>(address) + bytes > memory->start + memory->bytes) {
        const size_t offset = size_t(static_cast<const char*>(address) - memory->start);
        return number(bytes) + " bytes" + (offset ? " from byte " + number(offset) : "") + " of an allocation of " +
               number(memory->bytes) + " (" + name_of(memory->kind) + ", " + memory->made + ")";
    }
    return "";
}

bool refuse(const char* function, RungSite site, const std::string& why, const char* verb)
{
    if (why.empty()) return false;
    tell(MISUSED, {"copy", std::string(function) + " (" + place_of_call(site) + ") " + verb + " " + why, site});
    return true;
}

// What a copy or set does beside the work of other streams.
void touch_bytes(const char* function, RungSite site, const void* from, size_t pitch, size_t width, size_t height,
                 bool write)
{
    if (!beside() || (!find(from) && !device_may_touch(from))) return;
    for (size_t row = 0; row < height; row++)
        for (uintptr_t at = uintptr_t(from) + row * pitch, end = at + width; at < end;) {
            const uintptr_t next = std::min(at / 128 * 128 + 128, end);
            const uint64_t words = (uint64_t(1) << ((next + 3) / 4 - at / 4)) - 1;
            const uint32_t mask = uint32_t(words << at / 4 % 32);
            touch(function, site, at / 128, write ? 0 : mask, write ? mask : 0, mask);
            at = next;
        }
}

bool staged(const void* address)  // host memory that a copy reads or writes before the call returns
{ return !find(address) && !device_may_touch(address); }

std::map<uint64_t, std::string> launched, launched_blocks;  // threads and blocks of a launch, and which it was
constexpr uint64_t FEW = 4;                                 // blocks, as many as numbers are written by chance

// The launch whose threads or blocks wrote these bytes, one number each, if there is any.
std::string written_by(size_t bytes)
{
    for (const auto& [launches, units, least] :
         {std::tuple(&launched, " threads", uint64_t(1)), std::tuple(&launched_blocks, " blocks", FEW)})
        for (size_t each = 1; each <= 16; each *= 2)
            if (const auto found = launches->find(bytes / each);
                bytes % each == 0 && bytes / each >= least && found != launches->end())
                return "; " + found->second + " has " + number(bytes / each) + units + ", as many as numbers of " +
                       number(each) + " bytes are written: the grid is too small, or the copy too long";
    return "";
}

// What a copy brings to the host that nothing has written.
void look_for_unwritten(const std::string& call, const void* to, const char* from, size_t pitch, size_t width,
                        size_t height, RungSite site)
{
    const Allocation *const memory = find(from), *const target = find(to);
    if (!memory || memory->kind != Kind::Device || (target && target->kind == Kind::Device)) return;
    size_t found = 0;
    for (size_t row = 0; row < height; row++)
        found += rung_machine::unwritten_bytes(from + row * pitch, uint64_t(from + row * pitch), width);
    const std::string out_of = " bytes to the host, out of the " + number(memory->bytes) + " bytes from " +
                               name_of(memory->kind) + " (" + memory->made + ")";
    if (found == width * height)
        tell(FAULTED, {"unwritten", call + " copies " + number(found) + out_of + ", that nothing has written", site});
    else if (const std::string by = found && height == 1 &&
                                            found == rung_machine::unwritten_bytes(
                                                         from + width - found, uint64_t(from + width - found), found)
                                        ? written_by(width - found)
                                        : "";
             !by.empty())
        tell(FAULTED, {"unwritten",
                       call + " copies " + number(width) + out_of + ", the last " + number(found) +
                           " of which nothing has written" + by,
                       site});
    else if (found)
        note_once(call + " copies " + number(width * height) + out_of + ": " + number(found) +
                  " of them nothing has written");
}

// Whether nobody has touched these bytes of pinned memory: none of their pages has been made.
bool untouched(const char* from, size_t bytes)
{
    const Allocation* const memory = find(from);
    if (!memory || memory->kind != Kind::Pinned) return false;
    const uintptr_t first = uintptr_t(from) / PAGE * PAGE, end = (uintptr_t(from) + bytes + PAGE - 1) / PAGE * PAGE;
    std::vector<unsigned char> made((end - first) / PAGE);
    if (mincore(reinterpret_cast<void*>(first), end - first, made.data())) return false;
    return std::none_of(made.begin(), made.end(), [](unsigned char one) { return one & 1; });
}

// What a copy brings to the device that the host has not written: a fault where it takes the place of what a kernel has
// used.
void look_for_untouched(const std::string& call, const void* to, const char* from, size_t bytes, RungSite site)
{
    Allocation* const target = find(to);
    if (!target || target->kind != Kind::Device) return;
    const bool used = target->used_by_kernel;
    target->used_by_kernel = false;
    if (!untouched(from, bytes)) return;
    const std::string text = call + " copies " + number(bytes) + " bytes of memory from " + name_of(find(from)->kind) +
                             " (" + find(from)->made + "), that nothing has written, to the device";
    if (used)
        tell(FAULTED, {"unwritten", text + ", over what a kernel has used: is it the wrong direction?", site});
    else
        note_once(text);
}

// Copies to the host of as many bytes as a launch had threads, of an allocation of 2, 4 or 8 times as many that are all
// written: elements may have been counted for bytes. They are told if nothing reads the rest afterwards.
constexpr size_t BLOCK = 1024;
struct Short
{
    const char* from;
    size_t bytes;
    Told what;
};
auto& shorts = *new std::vector<Short>;
bool copied_in, copied_out;

void look_for_short(const std::string& call, const void* to, const char* from, size_t width, RungSite site)
{
    const Allocation *const memory = find(from), *const target = find(to);
    const bool of_device = memory && memory->kind == Kind::Device, to_device = target && target->kind == Kind::Device;
    copied_in |= to_device && !of_device, copied_out |= !to_device;
    if (!of_device || to_device) return;
    const char *const start = memory->start, *const end = from + width;
    shorts.erase(std::remove_if(shorts.begin(), shorts.end(),
                                [&](const Short& one) { return one.from == start && end > start + one.bytes; }),
                 shorts.end());
    const auto threads = launched.lower_bound(width);
    const size_t each = memory->bytes / width, rest = memory->bytes - width;
    if (from != start || memory->bytes % width || (each != 2 && each != 4 && each != 8) || threads == launched.end() ||
        threads->first >= width + BLOCK)
        return;
    if (rung_machine::unwritten_bytes(end, uint64_t(end), rest)) return;
    shorts.push_back({start,
                      width,
                      {"copy",
                       call + " copies " + number(width) + " bytes to the host, out of the " + number(memory->bytes) +
                           " bytes from " + name_of(memory->kind) + " (" + memory->made +
                           "), and nothing reads the rest; " + threads->second + " has " + number(threads->first) +
                           " threads: the copy's size may be a number of elements, not of bytes",
                       site}});
}

void tell_short(const char* start)
{
    for (const Short& one : shorts)
        if (one.from == start) tell(MISUSED, one.what);
    shorts.erase(std::remove_if(shorts.begin(), shorts.end(), [&](const Short& one) { return one.from == start; }),
                 shorts.end());
}

cudaError_t copy(const char* function, void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                 size_t height, cudaMemcpyKind kind, cudaStream_t stream, bool wait, RungSite site)
{
    const Alone alone;
    if (cudaError_t error = stuck()) return error;
    if (unsigned(kind) > cudaMemcpyDefault) return failed(cudaErrorInvalidMemcpyDirection);
    if (!width || !height) return cudaSuccess;
    const size_t read = (height - 1) * from_pitch + width, written = (height - 1) * to_pitch + width;
    const int from_device =
        kind == cudaMemcpyDefault ? -1 : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    const int to_device =
        kind == cudaMemcpyDefault ? -1 : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    if (refuse(function, site, objection(from, read, from_device), "reads") ||
        refuse(function, site, objection(to, written, to_device), "writes"))
        return failed(cudaErrorInvalidValue);
    const auto rows = [](char* to, size_t to_pitch, const char* from, size_t from_pitch, size_t width, size_t height) {
        const Allocation* const memory = find(to);
        for (size_t row = 0; row < height; row++) {
            memmove(to + row * to_pitch, from + row * from_pitch, width);
            if (memory && memory->kind == Kind::Device)
                rung_machine::note_written(to + row * to_pitch, uint64_t(to + row * to_pitch), width);
        }
    };
    char* const target = static_cast<char*>(to);
    const char* const source = static_cast<const char*>(from);
    if (!wait && staged(from) && !capturing(stream)) {
        std::string held(source, read);
        copied_in = true;
        enqueue(
            stream,
            [=, held = std::move(held)] {
                touch_bytes(function, site, target, to_pitch, width, height, true);
                rows(target, to_pitch, held.data(), from_pitch, width, height);
            },
            cudaGraphNodeTypeMemcpy);
        return cudaSuccess;
    }
    const std::string call = std::string(function) + " (" + place_of_call(site) + ")";
    std::vector<Watch> watches;
    if (!wait && !staged(to))
        watches = {{from, read, false, true, function, site}, {to, written, true, true, function, site}};
    enqueue(
        stream,
        [=] {
            for (const void* end : {static_cast<const void*>(to), from})
                if (const Allocation* memory = find(end); memory && memory->freed) {
                    tell(MISUSED,
                         {"use after free", call + " runs after its memory was freed at " + memory->ended, site});
                    return stick(cudaErrorIllegalAddress);
                }
            look_for_unwritten(call, to, source, from_pitch, width, height, site);
            look_for_short(call, to, source, read, site);
            look_for_untouched(call, to, source, read, site);
            touch_bytes(function, site, source, from_pitch, width, height, false);
            touch_bytes(function, site, target, to_pitch, width, height, true);
            rows(target, to_pitch, source, from_pitch, width, height);
        },
        cudaGraphNodeTypeMemcpy, watches);
    return (wait || staged(to)) && !capturing(stream) ? wait_for(stream) : cudaSuccess;
}

cudaError_t set(const char* function, void* to, size_t pitch, int value, size_t width, size_t height,
                cudaStream_t stream, RungSite site)
{
    const Alone alone;
    if (cudaError_t error = stuck()) return error;
    if (!width || !height) return cudaSuccess;
    if (refuse(function, site, objection(to, (height - 1) * pitch + width, 1), "writes"))
        return failed(cudaErrorInvalidValue);
    enqueue(
        stream,
        [=] {
            touch_bytes(function, site, to, pitch, width, height, true);
            for (char* row = static_cast<char*>(to); row < static_cast<char*>(to) + height * pitch; row += pitch)
                memset(row, value, width), rung_machine::note_written(row, uint64_t(row), width);
        },
        cudaGraphNodeTypeMemset);
    return cudaSuccess;
}

cudaError_t copy_3d(const char* function, const cudaMemcpy3DParms& c, cudaStream_t stream, RungSite site)
{
    if (c.srcArray || c.dstArray) not_modelled("cudaArray", place_of_call(site).c_str());
    const auto start = [](const cudaPitchedPtr& of, const cudaPos& at) {
        return static_cast<char*>(of.ptr) + (at.z * of.ysize + at.y) * of.pitch + at.x;
    };
    const bool whole = c.extent.depth == 1 || (c.srcPtr.ysize == c.extent.height &&
                                               c.dstPtr.ysize == c.extent.height);  // every slice follows the last
    for (size_t z = 0; z < (whole ? 1 : c.extent.depth); z++)
        if (cudaError_t error =
                copy(function, start(c.dstPtr, c.dstPos) + z * c.dstPtr.pitch * c.dstPtr.ysize, c.dstPtr.pitch,
                     start(c.srcPtr, c.srcPos) + z * c.srcPtr.pitch * c.srcPtr.ysize, c.srcPtr.pitch, c.extent.width,
                     c.extent.height * (whole ? c.extent.depth : 1), c.kind, stream, false, site))
            return error;
    return cudaSuccess;
}

}  // namespace

void ran(uint64_t blocks, uint64_t threads, const Call& call)
{
    launched[blocks * threads] = launched_blocks[blocks] =
        "kernel '" + std::string(call.name) + "' (" + place_of_call(call.site) + ")";
    shorts.clear();  // it may read the rest
    for (unsigned i = 0; i < call.count; i++)
        if (Allocation* const memory = call.pointers[i] ? find(*static_cast<void**>(call.values[i + 1])) : nullptr)
            memory->used_by_kernel = true;
}

void tell_shorts()
{
    while (!shorts.empty()) tell_short(shorts.back().from);
    const auto shared = [](const auto& one) { return one.second.kind != Kind::Device; };
    if (copied_in && !copied_out && !launched.empty() && std::none_of(allocations.begin(), allocations.end(), shared))
        note_once("memory is copied to the device, and nothing that a kernel writes is copied to the host");
}

const Allocation* allocation_at(const void* address) { return find(address); }

size_t device_bytes() { return in_use; }

std::string kept_allocations()
{
    size_t count = 0, bytes = 0;
    std::map<std::string, size_t> places;
    for (const auto& [_, memory] : allocations)
        if (!memory.freed && memory.kind != Kind::Registered) count++, bytes += memory.bytes, places[memory.made]++;
    if (!count) return "";
    std::string text = number(count) + (count == 1 ? " allocation of " : " allocations of ") + number(bytes) +
                       " bytes" + (count == 1 ? "" : " in all") + " not freed: ";
    for (const auto& [place, times] : places)
        text += (text.back() == ' ' ? "" : ", ") + place + (times > 1 ? " (" + number(times) + " times)" : "");
    return text;
}

std::string describe(const void* address)
{
    const Allocation* memory = find(address);
    if (uintptr_t(address) < 1 << 16) return "a null pointer is followed";
    if (!memory)
        return in_heap(address) ? "memory from malloc or new in a kernel"
               : device_may_touch(address)
                   ? "a global variable"
                   : "memory of the host, or of nobody (is a host pointer handed to the kernel?)";
    const std::string whole =
        "the " + number(memory->bytes) + " bytes from " + name_of(memory->kind) + " (" + memory->made + ")";
    if (memory->freed) return "memory that was freed at " + memory->ended + ": " + whole;
    const char* at = static_cast<const char*>(address);
    if (at < memory->start) return number(size_t(memory->start - at)) + " bytes before the start of " + whole;
    if (at >= memory->start + memory->bytes)
        return "byte " + number(size_t(at - memory->start)) + ", past the end of " + whole;
    return "byte " + number(size_t(at - memory->start)) + " of " + whole;
}

void each_allocation(const std::function<void(const Allocation&)>& work)
{
    for (const auto& [_, memory] : allocations)
        if (!memory.freed) work(memory);
}

void* argument_memory(size_t bytes) { return aligned_alloc(64, rounded(bytes)); }
void argument_memory_free(void* memory, size_t) { free(memory); }

void* symbol_address(void* symbol) { return symbol; }

cudaError_t copy_symbol(void* symbol, size_t room, void* other, size_t bytes, size_t offset, bool to,
                        cudaMemcpyKind kind, cudaStream_t stream, bool wait, RungSite site)
{
    const char* const function = to ? "cudaMemcpyToSymbol" : "cudaMemcpyFromSymbol";
    if (!device_may_touch(symbol)) {
        tell(MISUSED,
             {"symbol",
              std::string(function) + " (" + place_of_call(site) + ") is given a variable that is not the device's",
              site});
        return failed(cudaErrorInvalidSymbol);
    }
    if (offset + bytes > room) {
        tell(MISUSED, {"copy",
                       std::string(function) + " (" + place_of_call(site) + ") touches " + number(bytes) +
                           " bytes from byte " + number(offset) + " of a variable of " + number(room),
                       site});
        return failed(cudaErrorInvalidValue);
    }
    char* const at = static_cast<char*>(symbol) + offset;
    return copy(function, to ? at : other, bytes, to ? other : at, bytes, bytes, 1, kind, stream, wait, site);
}

}  // namespace rung_host

using namespace rung_host;

cudaError_t cudaMalloc(void** pointer, size_t bytes, RungSite site)
{ return allocate(pointer, bytes, Kind::Device, site); }
cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned, RungSite site)
{ return allocate(pointer, bytes, Kind::Managed, site); }
cudaError_t cudaMallocHost(void** pointer, size_t bytes, unsigned, RungSite site)
{ return allocate(pointer, bytes, Kind::Pinned, site); }
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned, RungSite site)
{ return allocate(pointer, bytes, Kind::Pinned, site); }
cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height, RungSite site)
{
    *pitch = (width + 511) / 512 * 512;
    return allocate(pointer, *pitch * height, Kind::Device, site);
}
cudaError_t cudaMalloc3D(cudaPitchedPtr* pointer, cudaExtent extent, RungSite site)
{
    *pointer = {nullptr, 0, extent.width, extent.height};
    return cudaMallocPitch(&pointer->ptr, &pointer->pitch, extent.width, extent.height * extent.depth, site);
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t, RungSite site)
{ return allocate(pointer, bytes, Kind::Device, site); }
cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t, cudaStream_t, RungSite site)
{ return allocate(pointer, bytes, Kind::Device, site); }
cudaError_t cudaFree(void* pointer, RungSite site)
{
    wait_for_all();
    if (cudaError_t error = stuck()) return error;
    return release(pointer, false, "cudaFree", site);
}
cudaError_t cudaFreeHost(void* pointer, RungSite site)
{
    wait_for_all();
    if (cudaError_t error = stuck()) return error;
    return release(pointer, true, "cudaFreeHost", site);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream, RungSite site)
{
    enqueue(stream, [=] { release(pointer, false, "cudaFreeAsync", site); }, cudaGraphNodeTypeEmpty);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned, RungSite site)
{
    if (find(pointer)) return failed(cudaErrorHostMemoryAlreadyRegistered);
    char* const start = static_cast<char*>(pointer);
    allocations[start + bytes] = {start, start, bytes, bytes, Kind::Registered, false, place_of_call(site), ""};
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer, RungSite)
{
    Allocation* const memory = find(pointer);
    if (!memory || memory->kind != Kind::Registered || memory->start != pointer)
        return failed(cudaErrorHostMemoryNotRegistered);
    wait_for_all();
    allocations.erase(memory->start + memory->bytes);
    return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned, RungSite)
{
    if (!find(host) || find(host)->freed) return failed(cudaErrorInvalidValue);
    return *device = host, cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total)
{
    *total = device().totalGlobalMem;
    *free = *total - std::min(*total, in_use);
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer)
{
    const Allocation* const memory = find(pointer);
    void* const plain = const_cast<void*>(pointer);
    if (!memory || memory->freed)
        *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, plain};
    else if (memory->kind == Kind::Device)
        *attributes = {cudaMemoryTypeDevice, 0, plain, nullptr};
    else
        *attributes = {memory->kind == Kind::Managed ? cudaMemoryTypeManaged : cudaMemoryTypeHost, 0, plain, plain};
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, RungSite site)
{ return copy("cudaMemcpy", to, bytes, from, bytes, bytes, 1, kind, nullptr, true, site); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream,
                            RungSite site)
{ return copy("cudaMemcpyAsync", to, bytes, from, bytes, bytes, 1, kind, stream, false, site); }
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes, RungSite site)
{ return copy("cudaMemcpyPeer", to, bytes, from, bytes, bytes, 1, cudaMemcpyDeviceToDevice, nullptr, true, site); }
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream, RungSite site)
{ return copy("cudaMemcpyPeerAsync", to, bytes, from, bytes, bytes, 1, cudaMemcpyDeviceToDevice, stream, false, site); }
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind, RungSite site)
{
    if (width > to_pitch || width > from_pitch) return failed(cudaErrorInvalidPitchValue);
    return copy("cudaMemcpy2D", to, to_pitch, from, from_pitch, width, height, kind, nullptr, true, site);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream, RungSite site)
{
    if (width > to_pitch || width > from_pitch) return failed(cudaErrorInvalidPitchValue);
    return copy("cudaMemcpy2DAsync", to, to_pitch, from, from_pitch, width, height, kind, stream, false, site);
}
cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* given, RungSite site)
{
    const cudaError_t error = copy_3d("cudaMemcpy3D", *given, nullptr, site);
    return error ? error : wait_for(nullptr);
}
cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* given, cudaStream_t stream, RungSite site)
{ return copy_3d("cudaMemcpy3DAsync", *given, stream, site); }
cudaError_t cudaMemset3D(cudaPitchedPtr to, int value, cudaExtent extent, RungSite site)
{
    for (size_t z = 0; z < extent.depth; z++)
        if (cudaError_t error = set("cudaMemset3D", static_cast<char*>(to.ptr) + z * to.pitch * to.ysize, to.pitch,
                                    value, extent.width, extent.height, nullptr, site))
            return error;
    return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes, RungSite site)
{ return set("cudaMemset", to, bytes, value, bytes, 1, nullptr, site); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream, RungSite site)
{ return set("cudaMemsetAsync", to, bytes, value, bytes, 1, stream, site); }
cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height, RungSite site)
{ return set("cudaMemset2D", to, pitch, value, width, height, nullptr, site); }
cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t) { return stuck(); }
cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) { return stuck(); }
cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int) { return stuck(); }
cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) { return stuck(); }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int)
{ return *pool = reinterpret_cast<cudaMemPool_t>(1), cudaSuccess; }
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*)
{ return cudaDeviceGetDefaultMemPool(pool, 0); }
cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
