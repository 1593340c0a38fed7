// Launches: their checks, and their blocks, in several processes where no race check runs. Forked workers share all device memory and
// the program's global variables, so that atomics and flags between blocks work.
#include "host.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>

using rung_emulator::FaultKind;
using rung_emulator::Index;
using rung_emulator::Launch;
using rung_emulator::Report;

extern "C" int rung_launch(const Launch* asked, Report* answer);
extern "C" void rung_tensor(uintptr_t memory, uintptr_t from, uintptr_t to, uintptr_t end, int input);
extern "C" void rung_known_only(bool on);
extern "C" void rung_unknown_launch_ahead();
extern "C" bool rung_in_kernel();
extern "C" [[noreturn]] void __assert_fail(const char*, const char*, unsigned, const char*) noexcept(true);

namespace rung_host {
namespace {

struct Known
{
    std::string name;
    void (*enter)(void**);
    std::vector<unsigned> sizes, alignments;
    const unsigned* pointers;
    dim3 cluster = {0, 0, 0};
    size_t dynamic_limit = 48 * 1024;
    bool any_cluster = false;
};
std::map<const void*, Known>& kernels()
{
    static auto& all = *new std::map<const void*, Known>;
    return all;
}

const rung_emulator::Module* module;
char *image, *image_end;  // of the executable
char *globals, *globals_end;

// ---- the race check's budget ----------------------------------------------------------------------------------------

constexpr size_t MOST_RACE_BYTES = size_t(96) << 20;  // of device memory: the history takes 18 times as much
constexpr double RACE_SECONDS = 20;                  // of all launches, where the work decides
double race_seconds;

bool checks_races(const Launch&)
{
    const Settings& chosen = settings();
    if (chosen.races != 1) return chosen.races;
    if (device_bytes() > MOST_RACE_BYTES) {
        note_once("races: not looked for while more than 96 MB of device memory are allocated (--races checks them all the same)");
        return false;
    }
    if (race_seconds > RACE_SECONDS) {
        note_once("races: only looked for in the first 20 seconds of launches (--races checks all)");
        return false;
    }
    return true;
}

// ---- several processes ------------------------------------------------------------------------------------------------

constexpr int MOST_WORKERS = 64;
struct Common
{
    std::atomic<unsigned> next, moved, alive;
    std::atomic<bool> stop;
    Report reports[MOST_WORKERS];
};
Common* common;
bool worker, shared_globals;

unsigned next_set() { return common->stop ? ~0u : (common->moved++, common->next++); }

// A worker's blocks may wait for another's: true for as long as those go on.
bool others_go_on()
{
    static unsigned moved;
    static time_t since;
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (moved != common->moved) moved = common->moved, since = t.tv_sec;
    if (common->alive < 2 || common->stop || t.tv_sec - since > 5) return false;
    usleep(50);
    return true;
}

void share_globals()
{
    if (shared_globals) return;
    shared_globals = true;
    const size_t bytes = size_t(globals_end - globals);
    std::string copy(globals, bytes);
    void* const at = mmap(globals, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (at != globals) abort();
    memcpy(globals, copy.data(), bytes);
    common = static_cast<Common*>(mmap(nullptr, sizeof(Common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

void run_in_workers(Launch& launch, Report& report, int workers)
{
    fflush(nullptr);
    share_globals();
    new (common) Common{};
    common->alive = unsigned(workers);
    launch.next = next_set;
    launch.others_go_on = others_go_on;
    std::vector<pid_t> children;
    const auto work = [&](int number) {
        // Indices are each process's own.
        char* const page = reinterpret_cast<char*>(uintptr_t(module->thread_index) / 4096 * 4096);
        if (number) mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        Report& mine = common->reports[number];
        rung_launch(&launch, &mine);
        if (mine.fault) common->stop = true;
        common->alive--;
    };
    for (int i = 1; i < workers; i++) {
        const pid_t child = fork();
        if (!child) {
            worker = true;
            work(i);
            fflush(nullptr);
            _exit(0);
        }
        if (child > 0) children.push_back(child);
        else common->alive--;
    }
    work(0);
    for (pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        if (status && !common->stop) {
            common->stop = true;
            common->reports[0].fault = int(FaultKind::Trap);
            snprintf(common->reports[0].text, sizeof report.text, "a process that ran some of the blocks was killed");
        }
    }
    for (int i = 0; i < workers; i++)
        if (common->reports[i].fault) {
            report = common->reports[i];
            return;
        }
    report = common->reports[0];
}

// ---- faults -----------------------------------------------------------------------------------------------------------

const char* const KINDS[] = {"", "barrier", "deadlock", "bounds", "shared", "unsupported", "trap", "race", "async"};

std::string shared_variable(unsigned long long offset)
{
    FILE* const table = popen(("readelf -sWC /proc/" + std::to_string(getpid()) + "/exe 2>/dev/null").c_str(), "r");
    std::string found;
    unsigned long long nearest = 0;
    char line[4096];
    while (table && fgets(line, sizeof line, table)) {
        unsigned long long value;
        char kind[16];
        int at = 0;
        if (sscanf(line, " %*d: %llx %*s %15s %*s %*s %*s %n", &value, kind, &at) < 2 || strcmp(kind, "TLS") || !at) continue;
        std::string name(line + at, strcspn(line + at, "\n"));
        if (value > offset || (value < nearest && !found.empty()) || name.find("rung_") != std::string::npos) continue;
        nearest = value;
        const size_t colons = name.rfind("::");
        found = colons == std::string::npos ? name : name.substr(colons + 2);
    }
    if (table) pclose(table);
    return found.empty() ? "shared memory, byte " + std::to_string(offset)
                         : "shared variable '" + found + "', byte " + std::to_string(offset - nearest);
}

std::string with_lines(const char* text)  // {hex} stands for the line of an instruction
{
    std::string out;
    for (const char* at = text; *at; at++) {
        unsigned long long counter;
        int length = 0;
        if (*at == '{' && sscanf(at, "{%llx}%n", &counter, &length) == 1 && length) {
            const std::string line = line_of(counter - 1);
            out += line.empty() ? "some line" : line;
            at += length - 1;
        } else out += *at;
    }
    return out;
}

void explain(const char* kernel, const Report& report, const std::string& site)
{
    const FaultKind kind = FaultKind(report.fault);
    std::string where = "kernel '" + std::string(kernel) + "'";
    char text[200];
    snprintf(text, sizeof text, ", block (%u, %u, %u)", report.block.x, report.block.y, report.block.z);
    where += text;
    if (report.thread.x != ~0u) {
        snprintf(text, sizeof text, ", thread (%u, %u, %u)", report.thread.x, report.thread.y, report.thread.z);
        where += text;
    }
    if (const std::string line = report.counter ? line_of(report.counter) : ""; !line.empty()) where += ", " + line;
    std::string what = with_lines(report.text);
    if (kind == FaultKind::Race) {
        const size_t bar = what.find('|');
        const std::string line = report.other_counter ? line_of(report.other_counter) : "";
        const std::string lacks = bar == std::string::npos ? "" : ", " + what.substr(bar + 1);
        what = what.substr(0, bar) + (line.empty() ? "" : " at " + line) + lacks + ": " +
               (report.address < 1 << 20 ? shared_variable(report.address) : describe(reinterpret_cast<void*>(report.address)));
    } else if (what.empty()) what = (report.address < 1 << 16 ? "" : "touches ") + describe(reinterpret_cast<void*>(report.address));
    tell(kind == FaultKind::Race ? RACED : FAULTED, KINDS[report.fault], where + ": " + what, site);
}

cudaError_t error_of(const Report& report)
{
    switch (FaultKind(report.fault)) {
        case FaultKind::Bounds: return strstr(report.text, "multiple") ? cudaErrorMisalignedAddress : cudaErrorIllegalAddress;
        case FaultKind::Deadlock: case FaultKind::Barrier: return cudaErrorLaunchTimeout;
        case FaultKind::Trap: return strstr(report.text, "assert") ? cudaErrorAssert : cudaErrorLaunchFailure;
        default: return cudaErrorLaunchFailure;
    }
}

// ---- one launch -------------------------------------------------------------------------------------------------------

void run(const Call& call, const Configuration& how)
{
    const unsigned long blocks = (unsigned long)how.grid.x * how.grid.y * how.grid.z, threads = blocks * how.block.x * how.block.y * how.block.z;
    timespec begun, ended;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    const auto done = [&](bool checked) {
        clock_gettime(CLOCK_MONOTONIC, &ended);
        const double seconds = double(ended.tv_sec - begun.tv_sec) + 1e-9 * double(ended.tv_nsec - begun.tv_nsec);
        note_launch({call.name, blocks, threads, seconds, checked});
        return seconds;
    };
    if (counting()) {
        begin_heap();
        run_machine_code(call, how);
        done(false);
        return check_tails(call.name);
    }
    Launch launch = {};
    launch.module = module;
    launch.entry = call.enter;
    launch.args = call.values;
    launch.grid = {how.grid.x, how.grid.y, how.grid.z};
    launch.block = {how.block.x, how.block.y, how.block.z};
    launch.cluster = {how.cluster.x, how.cluster.y, how.cluster.z};
    launch.dynamic_bytes = unsigned(how.shared);
    launch.cooperative = how.cooperative;
    launch.dependent = how.dependent;
    launch.order = settings().order;
    launch.seed = settings().seed;
    static int launches;
    launch.poison = 1 + int((settings().seed + unsigned(launches++)) % 5);
    launch.races = checks_races(launch);
    begin_heap();
    static unsigned long last_moment;
    if (moment() != last_moment + 1) rung_unknown_launch_ahead();
    last_moment = moment();
    launch.seconds = settings().seconds;

    static Report report;
    const bool alone = launch.races || how.cooperative || how.dependent || how.cluster.x * how.cluster.y * how.cluster.z > 1;
    const int workers = int(std::min((unsigned long)settings().workers, blocks / 4));
    if (alone || workers < 2 || threads < 100000) rung_launch(&launch, &report);
    else run_in_workers(launch, report, std::min(workers, MOST_WORKERS));
    const double seconds = done(launch.races && !report.unwatched);
    if (launch.races) race_seconds += seconds;
    if (report.unwatched)
        note_once("races: kernel '" + std::string(call.name) + "' has " + std::to_string(report.unwatched) + " threads at once, too many to look for races");
    if (report.fault) {
        explain(call.name, report, place_of_call(call.site));
        return stick(error_of(report));
    }
    check_tails(call.name);
}

const Known* known(const void* kernel)
{
    const auto found = kernels().find(kernel);
    return found == kernels().end() ? nullptr : &found->second;
}

cudaError_t refusal(const Call& call, const Configuration& how)
{
    const cudaDeviceProp& p = device();
    const dim3 g = how.grid, b = how.block, c = how.cluster;
    if (!g.x || !g.y || !g.z || !b.x || !b.y || !b.z) return cudaErrorInvalidConfiguration;
    if (b.x > 1024 || b.y > 1024 || b.z > 64 || size_t(b.x) * b.y * b.z > 1024) return cudaErrorInvalidConfiguration;
    if (g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) return cudaErrorInvalidConfiguration;
    const Known* const k = known(call.kernel);
    if (how.shared > (k ? k->dynamic_limit : p.sharedMemPerBlockOptin)) return cudaErrorInvalidValue;
    if (c.x * c.y * c.z > 1) {
        if (!p.clusterLaunch) return cudaErrorInvalidConfiguration;
        if (g.x % c.x || g.y % c.y || g.z % c.z || c.x * c.y * c.z > (k && k->any_cluster ? 16u : 8u)) return cudaErrorInvalidConfiguration;
    }
    if (how.cooperative) {
        int blocks = 0;
        if (k && !active_blocks(&blocks, call.kernel, int(b.x * b.y * b.z), how.shared) &&
            size_t(g.x) * g.y * g.z > size_t(blocks) * size_t(p.multiProcessorCount)) return cudaErrorCooperativeLaunchTooLarge;
    }
    return cudaSuccess;
}

int find_image(dl_phdr_info* info, size_t, void*)  // the executable comes first
{
    uintptr_t relro_end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr)& header = info->dlpi_phdr[i];
        char* const start = reinterpret_cast<char*>(info->dlpi_addr + header.p_vaddr);
        if (header.p_type == PT_GNU_RELRO) relro_end = uintptr_t(start) + header.p_memsz;
        if (header.p_type != PT_LOAD) continue;
        if (!image || start < image) image = start;
        image_end = std::max(image_end, start + header.p_memsz);
        if (header.p_flags & PF_W) globals = start, globals_end = start + header.p_memsz;
    }
    globals = reinterpret_cast<char*>((std::max(uintptr_t(globals), relro_end) + 4095) / 4096 * 4096);
    globals_end = reinterpret_cast<char*>((uintptr_t(globals_end) + 4095) / 4096 * 4096);
    return 1;
}

}  // namespace

bool forked() { return worker; }

bool device_may_touch(const void* address)
{
    if (const Allocation* memory = allocation_at(address)) return !memory->freed;
    return (address >= image && address < image_end) || in_heap(address);
}

void register_kernel(const void* kernel, const char* name, void (*enter)(void**), const unsigned* sizes, const unsigned* alignments,
                     const unsigned* pointers, unsigned count, dim3 cluster)
{
    Known& one = kernels()[kernel];
    if (name && one.name.empty()) one.name = name;
    if (cluster.x && !one.cluster.x) one.cluster = cluster;
    if (one.enter) return;
    one.enter = enter, one.pointers = pointers;
    one.sizes.assign(sizes, sizes + count), one.alignments.assign(alignments, alignments + count);
}

cudaError_t prepare(Call call, const Configuration& configuration, std::function<void()>& work)
{
    if (rung_in_kernel()) {
        fprintf(stderr, "rung: %s: a kernel launches a kernel, which is not modelled\n", place_of_call(call.site).c_str());
        exit(2);
    }
    const Known* const k = known(call.kernel);
    if (k && !call.name) call.name = k->name.empty() ? "kernel" : k->name.c_str();
    Configuration how = configuration;
    if (!how.cluster.x) how.cluster = k && k->cluster.x ? k->cluster : dim3(1, 1, 1);
    if (cudaError_t error = stuck()) return error;
    if (cudaError_t error = refusal(call, how)) return error;
    if (settings().races == 0)  // the race check names the line of the access instead
        for (unsigned i = 0; i < call.count; i++) {
            if (!call.pointers[i]) continue;
            const void* const at = *static_cast<void**>(call.values[i + 1]);
            unsigned char resident;
            if (!at || allocation_at(at) || device_may_touch(at)) continue;
            if (mincore(reinterpret_cast<void*>(uintptr_t(at) / 4096 * 4096), 1, &resident)) continue;
            tell(FAULTED, "host pointer", "kernel '" + std::string(call.name) + "', launched at " + place_of_call(call.site) + ": argument " +
                 std::to_string(i + 1) + " is a pointer to host memory");
            stick(cudaErrorIllegalAddress);
            return cudaErrorIllegalAddress;
        }
    work = [call = std::move(call), how] { run(call, how); };
    return cudaSuccess;
}

cudaError_t submit(Call call, const Configuration& configuration)
{
    std::function<void()> work;
    if (cudaError_t error = prepare(std::move(call), configuration, work)) return failed(error);
    enqueue(configuration.stream, std::move(work), cudaGraphNodeTypeKernel);
    return cudaSuccess;
}

bool call_of(const void* kernel, void** arguments, Call& call)
{
    const Known* const k = known(kernel);
    if (!k) return false;
    const size_t count = k->sizes.size();
    size_t bytes = rounded((count + 1) * sizeof(void*)) + 64;
    for (unsigned size : k->sizes) bytes += rounded(size);
    char* const memory = static_cast<char*>(argument_memory(bytes));
    call.name = nullptr, call.kernel = kernel, call.enter = k->enter, call.values = reinterpret_cast<void**>(memory);
    char* at = memory + rounded((count + 1) * sizeof(void*));
    *reinterpret_cast<const void**>(at) = kernel;
    call.values[0] = at, at += 64;
    for (size_t i = 0; i < count; i++) {
        memcpy(at, arguments[i], k->sizes[i]);
        call.values[i + 1] = at, at += rounded(k->sizes[i]);
    }
    call.held = std::shared_ptr<void>(memory, [bytes](void* held) { argument_memory_free(held, bytes); });
    call.pointers = k->pointers, call.count = unsigned(count), call.bytes = bytes;
    return true;
}

static cudaError_t launch_known(const void* kernel, const Configuration& how, void** arguments, RungSite site)
{
    Call call;
    if (!call_of(kernel, arguments, call)) return failed(cudaErrorInvalidDeviceFunction);
    call.site = site;
    return submit(std::move(call), how);
}

cudaError_t launch_by_address(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream, bool cooperative,
                              RungSite site)
{
    Configuration how(grid, block, shared, stream);
    how.cooperative = cooperative;
    return launch_known(kernel, how, arguments, site);
}

Configuration configuration_of(const cudaLaunchConfig_t* config)
{
    Configuration how(config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute& attribute = config->attrs[i];
        if (attribute.id == cudaLaunchAttributeCooperative) how.cooperative = attribute.val.cooperative;
        if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization)
            how.dependent = attribute.val.programmaticStreamSerializationAllowed;
        if (attribute.id == cudaLaunchAttributeClusterDimension)
            how.cluster = dim3(attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z);
    }
    return how;
}

cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value)
{
    const auto found = kernels().find(kernel);
    if (found == kernels().end()) return failed(cudaErrorInvalidDeviceFunction);
    if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) found->second.any_cluster = value;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || size_t(value) > device().sharedMemPerBlockOptin) return failed(cudaErrorInvalidValue);
    found->second.dynamic_limit = size_t(value);
    return cudaSuccess;
}

cudaError_t get_attributes(cudaFuncAttributes* attributes, const void* kernel)
{
    const Known* const k = known(kernel);
    if (!k) return failed(cudaErrorInvalidDeviceFunction);
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->ptxVersion = attributes->binaryVersion = device().major * 10 + device().minor;
    attributes->maxDynamicSharedSizeBytes = int(k->dynamic_limit);
    return cudaSuccess;
}

}  // namespace rung_host

using namespace rung_host;

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments, RungSite site)
{
    return launch_known(kernel, configuration_of(config), arguments, site);
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                                   const cudaKernelNodeParams* kernel, RungSite site)
{
    Call call;
    if (!call_of(kernel->func, kernel->kernelParams, call)) return failed(cudaErrorInvalidDeviceFunction);
    call.site = site;
    std::function<void()> work;
    if (cudaError_t error = prepare(std::move(call), Configuration(kernel->gridDim, kernel->blockDim, kernel->sharedMemBytes), work)) return failed(error);
    return add_node(node, graph, needs, count, std::move(work), cudaGraphNodeTypeKernel);
}

// Called by the program before main.
extern "C" RUNG_HOST void rung_program_begins(const rung_emulator::Module* own)
{
    module = own;
    dl_iterate_phdr(find_image, nullptr);
    const uintptr_t first = uintptr_t(image) / 4096 * 4096, past = (uintptr_t(image_end) + 4095) / 4096 * 4096;
    rung_tensor(first, first, past, past, 0);
    rung_known_only(true);
    if (counting()) begin_counting();
}

extern "C" [[noreturn]] RUNG_HOST void rung_assert_failed(const char* condition, const char* file, unsigned line, const char* function)
{
    if (rung_in_kernel()) rung_fault(FaultKind::Trap, {file, int(line)}, (std::string("assertion failed: ") + condition).c_str());
    __assert_fail(condition, file, line, function);
}
