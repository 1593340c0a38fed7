// Launches: their checks, and when races are looked for.
#include "host.h"
#include "modules.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <math.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

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

// How long races are looked for in this launch: in a kernel's launches of one shape until they have taken
// RUNG_RACE_SECONDS, in all launches ten times as long, and in any kernel's first launch.
struct Raced
{
    double of_all = 0;
    std::map<std::array<size_t, 8>, double> of_shape;
    std::set<const void*> kernels;
};
double race_seconds(const Call& call, const Configuration& how, Raced& raced, double& of_shape)
{
    if (settings().races != 1) return settings().races ? HUGE_VAL : 0;
    const double most = settings().race_seconds, left = std::min(most - of_shape, 10 * most - raced.of_all);
    return raced.kernels.insert(call.kernel).second ? std::max(left, most / 3) : std::max(left, 0.0);
}

void run(const Call& call, const Configuration& how)
{
    const unsigned long blocks = (unsigned long)how.grid.x * how.grid.y * how.grid.z,
                        threads = blocks * how.block.x * how.block.y * how.block.z;
    static auto& raced = *new Raced;
    double& of_shape = raced.of_shape[{size_t(call.kernel), how.grid.x, how.grid.y, how.grid.z, how.block.x,
                                       how.block.y, how.block.z, how.shared}];
    const double races = race_seconds(call, how, raced, of_shape);
    const double begun = seconds_now();
    begin_heap();
    begin_progress(call.name, call.site);
    run_machine_code(call, how, races);
    end_progress();
    const double seconds = seconds_now() - begun;
    of_shape += std::min(seconds, races), raced.of_all += std::min(seconds, races);
    if (settings().races == 1 && seconds > races)
        note_once("races: only looked for while a kernel's launches of one shape have not taken long, and in some "
                  "blocks beyond (--races looks in all)");
    note_launch({call.name, blocks, threads, seconds, races > 0});
}

const Known* known(const void* kernel)
{
    const auto found = kernels().find(kernel);
    return found == kernels().end() ? nullptr : &found->second;
}

std::string sizes_of(const dim3& d)
{ return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")"; }

cudaError_t refusal(const Call& call, const Configuration& how)
{
    const cudaDeviceProp& p = device();
    const dim3 g = how.grid, b = how.block, c = how.cluster;
    if (!g.x || !g.y || !g.z || !b.x || !b.y || !b.z) return cudaErrorInvalidConfiguration;
    if (b.x > 1024 || b.y > 1024 || b.z > 64 || size_t(b.x) * b.y * b.z > 1024) return cudaErrorInvalidConfiguration;
    if (g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) return cudaErrorInvalidConfiguration;
    const Known* const k = known(call.kernel);
    const KernelFacts* const facts = facts_of(call.kernel);
    if (facts && !warps_of(facts->registers, size_t(b.x) * b.y * b.z)) return cudaErrorLaunchOutOfResources;
    if (how.shared > (k ? k->dynamic_limit : p.sharedMemPerBlockOptin)) return cudaErrorInvalidValue;
    if (c.x * c.y * c.z > 1) {
        if (!p.clusterLaunch) return cudaErrorInvalidConfiguration;
        if (g.x % c.x || g.y % c.y || g.z % c.z || c.x * c.y * c.z > (k && k->any_cluster ? 16u : 8u))
            return cudaErrorInvalidConfiguration;
    }
    if (how.cooperative) {
        int blocks = 0;
        if (k && !active_blocks(&blocks, call.kernel, int(b.x * b.y * b.z), how.shared) &&
            size_t(g.x) * g.y * g.z > size_t(blocks) * size_t(p.multiProcessorCount))
            return cudaErrorCooperativeLaunchTooLarge;
    }
    return cudaSuccess;
}

}  // namespace

bool device_may_touch(const void* address)
{
    if (const Allocation* memory = allocation_at(address)) return !memory->freed;
    return is_variable(address) || in_heap(address);
}

void register_kernel(const void* kernel, const char* name, void (*enter)(void**), const unsigned* sizes,
                     const unsigned* alignments, const unsigned* pointers, unsigned count, dim3 cluster)
{
    const Alone alone;
    Known& one = kernels()[kernel];
    if (name && one.name.empty()) one.name = name;
    if (cluster.x && !one.cluster.x) one.cluster = cluster;
    if (one.enter) return;
    one.enter = enter, one.pointers = pointers;
    one.sizes.assign(sizes, sizes + count), one.alignments.assign(alignments, alignments + count);
}

cudaError_t prepare(Call call, const Configuration& configuration, std::function<void()>& work)
{
    const Alone alone;
    const Known* const k = known(call.kernel);
    if (k && !call.name) call.name = k->name.empty() ? "kernel" : k->name.c_str();
    Configuration how = configuration;
    if (!how.cluster.x) how.cluster = k && k->cluster.x ? k->cluster : dim3(1, 1, 1);
    if (cudaError_t error = stuck()) return error;
    if (cudaError_t error = refusal(call, how)) return error;
    work = [call = std::move(call), how] { run(call, how); };
    return cudaSuccess;
}

cudaError_t submit(Call call, const Configuration& configuration)
{
    const Alone alone;
    std::function<void()> work;
    const RungSite site = call.site;
    const std::string name = call.name ? call.name : "kernel";
    std::vector<Watch> watches;
    for (unsigned i = 0; i < call.count; i++) {
        const Allocation* const memory =
            call.pointers[i] ? allocation_at(*static_cast<void**>(call.values[i + 1])) : nullptr;
        if (memory && memory->kind == Kind::Managed)
            watches.push_back({memory->start, memory->bytes, true, false, "kernel '" + name + "'", site});
    }
    if (cudaError_t error = prepare(std::move(call), configuration, work)) {
        const Configuration& how = configuration;
        unasked("the launch of '" + name + "' with a grid of " + sizes_of(how.grid) + ", a block of " +
                    sizes_of(how.block) + " and " + std::to_string(how.shared) + " bytes of dynamic shared memory",
                error, site);
        return failed(error);
    }
    enqueue(configuration.stream, std::move(work), cudaGraphNodeTypeKernel, watches);
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

cudaError_t launch_by_address(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                              cudaStream_t stream, bool cooperative, RungSite site)
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
    if (const KernelFacts* facts = facts_of(kernel))
        attributes->numRegs = int(facts->registers), attributes->sharedSizeBytes = facts->shared,
        attributes->localSizeBytes = facts->local;
    return cudaSuccess;
}

}  // namespace rung_host

using namespace rung_host;

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments, RungSite site)
{ return launch_known(kernel, configuration_of(config), arguments, site); }

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                                   const cudaKernelNodeParams* kernel, RungSite site)
{
    Call call;
    if (!call_of(kernel->func, kernel->kernelParams, call)) return failed(cudaErrorInvalidDeviceFunction);
    call.site = site;
    std::function<void()> work;
    if (cudaError_t error =
            prepare(std::move(call), Configuration(kernel->gridDim, kernel->blockDim, kernel->sharedMemBytes), work))
        return failed(error);
    return add_node(node, graph, needs, count, std::move(work), cudaGraphNodeTypeKernel);
}

// Called by the program before main.
extern "C" RUNG_HOST void rung_program_begins(const Record* first, const Record* last) { begin_modules(first, last); }
