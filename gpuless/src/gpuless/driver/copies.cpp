// Copies and sets: a copy beyond an allocation, of what nothing has written, or of elements in place of bytes is
// reported.
#include "driver.h"

#include "../machine/unwritten.h"
#include "graphs.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <tuple>

namespace gpuless {
namespace {

bool refuse(const Site& site, const std::string& why, const char* verb)
{
    if (why.empty()) return false;
    tell(MISUSED, {"copy", called(site) + " " + verb + " " + why, site});
    return true;
}

// What a copy or set does beside the work of other streams.
void touch_bytes(const Site& site, const Block3& part, size_t width, size_t height, size_t depth, bool write)
{
    if (!beside() || (!allocation_at(part.start) && !device_may_touch(part.start))) return;
    for (size_t row = 0; row < height * depth; row++) {
        const char* const from = part.start + row % height * part.pitch + row / height * part.slice;
        for (uintptr_t at = uintptr_t(from), end = at + width; at < end;) {
            const uintptr_t next = std::min(at / 128 * 128 + 128, end);
            const uint64_t words = (uint64_t(1) << ((next + 3) / 4 - at / 4)) - 1;
            const uint32_t mask = uint32_t(words << at / 4 % 32);
            touch(site.function, site, at / 128, write ? 0 : mask, write ? mask : 0, mask);
            at = next;
        }
    }
}

bool staged(const void* address)  // host memory that a copy reads or writes before the call returns
{ return !allocation_at(address) && !device_may_touch(address); }

struct Launched
{
    std::string kernel;
    Site site;
};
std::map<uint64_t, Launched> launched, launched_blocks;  // threads and blocks of a launch, and which it was
constexpr uint64_t FEW = 4;                              // blocks, as many as numbers are written by chance

std::string told_of(const Launched& one)
{
    const Place place = place_of(one.site);
    return "kernel '" + one.kernel + "'" +
           (place.line ? " (" + place.file + ":" + std::to_string(place.line) + ")" : std::string());
}

std::string from_where(const Allocation& memory) { return number(memory.bytes) + " bytes from " + called(memory.made); }

// The launch whose threads or blocks wrote these bytes, one number each, if there is any.
std::string written_by(size_t bytes)
{
    for (const auto& [launches, units, least] :
         {std::tuple(&launched, " threads", uint64_t(1)), std::tuple(&launched_blocks, " blocks", FEW)})
        for (size_t each = 1; each <= 16; each *= 2)
            if (const auto found = launches->find(bytes / each);
                bytes % each == 0 && bytes / each >= least && found != launches->end())
                return "; " + told_of(found->second) + " has " + number(bytes / each) + units + " and wrote " +
                       number(bytes / each) + " numbers of " + number(each) +
                       " bytes: the grid is too small, or the copy too long";
    return "";
}

// What a copy brings to the host that nothing has written.
void look_for_unwritten(const Copy& c, const Site& site)
{
    const char* const from = c.from.start;
    const Allocation *const memory = allocation_at(from), *const target = allocation_at(c.to.start);
    if (!memory || memory->kind != Kind::Device || (target && target->kind == Kind::Device)) return;
    size_t found = 0;
    for (size_t row = 0; row < c.height * c.depth; row++) {
        const char* const at = from + row % c.height * c.from.pitch + row / c.height * c.from.slice;
        found += rung_machine::unwritten_bytes(at, uint64_t(at), c.width);
    }
    const std::string out_of = " bytes to the host, out of the " + from_where(*memory), call = called(site);
    const size_t all = c.width * c.height * c.depth;
    if (found == all)
        tell(FAULTED, {"unwritten", call + " copies " + number(found) + out_of + ", that nothing has written", site});
    else if (const std::string by =
                 found && c.height * c.depth == 1 &&
                         found == rung_machine::unwritten_bytes(from + c.width - found,
                                                                uint64_t(from + c.width - found), found)
                     ? written_by(c.width - found)
                     : "";
             !by.empty())
        tell(FAULTED, {"unwritten",
                       call + " copies " + number(c.width) + out_of + ", the last " + number(found) +
                           " of which nothing has written" + by,
                       site});
    else if (found)
        note_once(call + " copies " + number(all) + out_of + ": " + number(found) + " of them nothing has written");
}

// Whether nobody has touched these bytes of pinned memory: none of their pages has been made.
bool untouched(const char* from, size_t bytes)
{
    const Allocation* const memory = allocation_at(from);
    if (!memory || memory->kind != Kind::Pinned) return false;
    const uintptr_t first = uintptr_t(from) / PAGE * PAGE, end = (uintptr_t(from) + bytes + PAGE - 1) / PAGE * PAGE;
    std::vector<unsigned char> made((end - first) / PAGE);
    if (mincore(reinterpret_cast<void*>(first), end - first, made.data())) return false;
    return std::none_of(made.begin(), made.end(), [](unsigned char one) { return one & 1; });
}

// What a copy brings to the device that the host has not written: a fault where it takes the place of what a kernel has
// used.
void look_for_untouched(const Copy& c, const Site& site)
{
    Allocation* const target = allocation_at(c.to.start);
    if (!target || target->kind != Kind::Device) return;
    const bool used = target->used_by_kernel;
    target->used_by_kernel = false;
    if (!untouched(c.from.start, c.width)) return;
    const std::string text = called(site) + " copies " + number(c.width) + " bytes, out of the " +
                             from_where(*allocation_at(c.from.start)) + ", that nothing has written, to the device";
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

void look_for_short(const Copy& c, const Site& site)
{
    const size_t width = c.width;
    const Allocation *const memory = allocation_at(c.from.start), *const target = allocation_at(c.to.start);
    const bool of_device = memory && memory->kind == Kind::Device, to_device = target && target->kind == Kind::Device;
    copied_in |= to_device && !of_device, copied_out |= !to_device;
    if (!of_device || to_device || c.height * c.depth > 1) return;
    const char *const start = memory->start, *const end = c.from.start + width;
    shorts.erase(std::remove_if(shorts.begin(), shorts.end(),
                                [&](const Short& one) { return one.from == start && end > start + one.bytes; }),
                 shorts.end());
    const auto threads = launched.lower_bound(width);
    const size_t each = memory->bytes / width, rest = memory->bytes - width;
    if (c.from.start != start || memory->bytes % width || (each != 2 && each != 4 && each != 8) ||
        threads == launched.end() || threads->first >= std::min(width + BLOCK, 4 * width))
        return;
    if (rung_machine::unwritten_bytes(end, uint64_t(end), rest)) return;
    shorts.push_back({start,
                      width,
                      {"copy",
                       called(site) + " copies " + number(width) + " bytes to the host, out of the " +
                           from_where(*memory) + ", and nothing reads the rest; " + told_of(threads->second) + " has " +
                           number(threads->first) + " threads: is a * sizeof(T) missing?",
                       site}});
}

void move_rows(const Copy& c)
{
    const Allocation* const memory = allocation_at(c.to.start);
    const bool note = memory && memory->kind == Kind::Device;
    for (size_t z = 0; z < c.depth; z++)
        for (size_t y = 0; y < c.height; y++) {
            char* const to = c.to.start + z * c.to.slice + y * c.to.pitch;
            memmove(to, c.from.start + z * c.from.slice + y * c.from.pitch, c.width);
            if (note) rung_machine::note_written(to, uint64_t(to), c.width);
        }
}

size_t span(const Block3& part, const Copy& c)
{ return (c.depth - 1) * part.slice + (c.height - 1) * part.pitch + c.width; }

NodeParameters node_of(const Copy& c)
{
    NodeParameters node(CU_GRAPH_NODE_TYPE_MEMCPY);
    CUDA_MEMCPY3D& p = node.memcpy;
    const auto type = [](const void* at) {
        const Allocation* const memory = allocation_at(at);
        return (memory && memory->kind == Kind::Device) || (!memory && device_may_touch(at)) ? CU_MEMORYTYPE_DEVICE
                                                                                             : CU_MEMORYTYPE_HOST;
    };
    p.srcMemoryType = type(c.from.start), p.dstMemoryType = type(c.to.start);
    p.srcHost = c.from.start, p.dstHost = c.to.start;
    p.srcDevice = device_pointer(c.from.start), p.dstDevice = device_pointer(c.to.start);
    p.srcPitch = c.from.pitch, p.dstPitch = c.to.pitch;
    p.srcHeight = p.dstHeight = c.height;
    p.WidthInBytes = c.width, p.Height = c.height, p.Depth = c.depth;
    return node;
}

}  // namespace

void tell_short(const char* start)
{
    for (const Short& one : shorts)
        if (one.from == start) tell(MISUSED, one.what);
    shorts.erase(std::remove_if(shorts.begin(), shorts.end(), [&](const Short& one) { return one.from == start; }),
                 shorts.end());
}

void tell_shorts()
{
    while (!shorts.empty()) tell_short(shorts.back().from);
    bool shared = false;
    each_allocation([&](const Allocation& one) { shared |= one.kind != Kind::Device; });
    if (copied_in && !copied_out && !launched.empty() && !shared)
        note_once("memory is copied to the device, and nothing that a kernel writes is copied to the host");
}

void ran(uint64_t blocks, uint64_t threads, const std::string& kernel, const Site& site,
         const std::vector<const void*>& pointers)
{
    launched[blocks * threads] = launched_blocks[blocks] = {kernel, site};
    shorts.clear();  // it may read the rest
    for (const void* one : pointers)
        if (Allocation* const memory = allocation_at(one)) memory->used_by_kernel = true;
}

Work copying(const Copy& what, const Site& site)
{
    return [what, site] {
        for (const char* end : {what.to.start, what.from.start})
            if (const Allocation* memory = allocation_at(end); memory && memory->freed) {
                tell(MISUSED, {"use after free",
                               called(site) + " runs after its memory was freed at " + called(memory->ended), site});
                return stick(CUDA_ERROR_ILLEGAL_ADDRESS);
            }
        look_for_unwritten(what, site);
        look_for_short(what, site);
        look_for_untouched(what, site);
        touch_bytes(site, what.from, what.width, what.height, what.depth, false);
        touch_bytes(site, what.to, what.width, what.height, what.depth, true);
        move_rows(what);
    };
}

bool refused(const Copy& c, const Site& site)
{
    return c.width && c.height && c.depth &&
           (refuse(site, objection(c.from.start, span(c.from, c), c.from_device), "reads") ||
            refuse(site, objection(c.to.start, span(c.to, c), c.to_device), "writes"));
}

CUresult copy(const Copy& c, CUstream stream, bool wait, const Site& site)
{
    if (const CUresult error = check_stream(stream)) return error;
    if (!c.width || !c.height || !c.depth) return CUDA_SUCCESS;
    const size_t read = span(c.from, c), written = span(c.to, c);
    if (refused(c, site)) return CUDA_ERROR_INVALID_VALUE;
    const NodeParameters node = node_of(c);
    if (!wait && staged(c.from.start) && !capturing(stream)) {
        copied_in = true;
        enqueue(
            stream,
            [c, site, held = std::string(c.from.start, read)]() mutable {
                Copy from = c;
                from.from.start = held.data();
                touch_bytes(site, c.to, c.width, c.height, c.depth, true);
                move_rows(from);
            },
            node);
        return CUDA_SUCCESS;
    }
    std::vector<Watch> watches;
    if (!wait && !staged(c.to.start))
        watches = {{c.from.start, read, false, true, site.function, site},
                   {c.to.start, written, true, true, site.function, site}};
    enqueue(stream, copying(c, site), node, watches);
    return (wait || staged(c.to.start)) && !capturing(stream) ? wait_for(stream) : CUDA_SUCCESS;
}

Work filling(const Fill& f, const Site& site)
{
    return [f, site] {
        const size_t bytes = f.width * f.size;
        touch_bytes(site, {f.to, f.pitch, 0}, bytes, f.height, 1, true);
        for (size_t y = 0; y < f.height; y++) {
            char* const row = f.to + y * f.pitch;
            if (f.size == 1)
                memset(row, int(f.value), bytes);
            else
                for (size_t x = 0; x < f.width; x++) memcpy(row + x * f.size, &f.value, f.size);
            rung_machine::note_written(row, uint64_t(row), bytes);
        }
    };
}

CUresult fill(const Fill& f, CUstream stream, const Site& site)
{
    if (const CUresult error = check_stream(stream)) return error;
    if (!f.width || !f.height) return CUDA_SUCCESS;
    if (uintptr_t(f.to) % f.size || (f.height > 1 && f.pitch % f.size)) return CUDA_ERROR_INVALID_VALUE;
    if (refuse(site, objection(f.to, (f.height - 1) * f.pitch + f.width * f.size, 1), "writes"))
        return CUDA_ERROR_INVALID_VALUE;
    NodeParameters node(CU_GRAPH_NODE_TYPE_MEMSET);
    node.memset = {device_pointer(f.to), f.pitch, f.value, f.size, f.width, f.height};
    enqueue(stream, filling(f, site), node);
    return CUDA_SUCCESS;
}

}  // namespace gpuless
