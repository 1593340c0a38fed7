// `rung run --device cuda`: the host functions that programs are compiled against, on CUDA's own runtime library. Most
// forward their arguments as they are, and are written by emulator/gpu_runtime.py; these differ. Kernels lie in the
// cubins of the program's objects.
#include "host/include/rung_host/program.h"

#include "host/modules.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

void* library()
{
    static void* const found = [] {
        const char* const path = getenv("RUNG_CUDART");
        void* const handle = dlopen(path ? path : "libcudart.so.13", RTLD_NOW | RTLD_GLOBAL);
        if (!handle) fprintf(stderr, "rung: CUDA's runtime library was not found: %s\n", dlerror()), exit(2);
        return handle;
    }();
    return found;
}

template <class R = cudaError_t, class... A>
R real(const char* name, A... arguments)
{
    void* const function = dlsym(library(), name);
    if (!function) fprintf(stderr, "rung: this version of CUDA has no %s\n", name), exit(2);
    return reinterpret_cast<R (*)(A...)>(function)(arguments...);
}

// ---- cubins
// -----------------------------------------------------------------------------------------------------------

using Handle = struct RungOpaque*;
struct Symbol
{
    size_t size, module;
    std::string name;
    bool kernel;
    Handle handle;
};

struct Modules
{
    std::vector<Handle> loaded;
    std::map<size_t, Symbol> symbols;  // by the address in the executable
    cudaError_t error = cudaSuccess;

    void add(const rung_host::Record& record)
    {
        rung_host::Reader read(record);
        read.line(), read.line();
        const std::string code = read.piece();
        Handle module = nullptr;
        const cudaError_t status = real("cudaLibraryLoadData", &module, static_cast<const void*>(code.data()),
                                        (void*)nullptr, (void*)nullptr, 0u, (void*)nullptr, (void*)nullptr, 0u);
        if (status && !error) error = status;
        loaded.push_back(module);
        for (std::string kind; read.word(kind);) {
            Symbol one = {};
            one.kernel = read.word() == "kernel";
            const char* const address = record.addresses[read.number()];
            one.size = read.number(), one.name = read.word(), one.module = loaded.size() - 1;
            symbols.emplace(size_t(address), one);
        }
    }
};
const rung_host::Record *first_record, *last_record;

// The symbol at an address of the executable; nothing if the cubins do not have it.
Symbol* symbol_at(const void* address, cudaError_t& error)
{
    static Modules& modules = *[] {
        Modules* const made = new Modules;
        for (const rung_host::Record* one = first_record; one < last_record; one++) made->add(*one);
        return made;
    }();
    static std::mutex one_at_a_time;
    const std::lock_guard<std::mutex> held(one_at_a_time);
    error = modules.error;
    const size_t offset = size_t(address);
    auto found = modules.symbols.upper_bound(offset);
    if (error || found == modules.symbols.begin()) return nullptr;
    Symbol& symbol = (--found)->second;
    if (offset >= found->first + std::max<size_t>(symbol.size, 1)) return nullptr;
    if (symbol.handle) return &symbol;
    const Handle module = modules.loaded[symbol.module];
    size_t bytes;
    error = symbol.kernel ? real("cudaLibraryGetKernel", &symbol.handle, module, symbol.name.c_str())
                          : real("cudaLibraryGetGlobal", &symbol.handle, &bytes, module, symbol.name.c_str());
    return error ? nullptr : &symbol;
}

cudaError_t kernel_of(const void* address, const void*& kernel)
{
    cudaError_t error;
    const Symbol* const symbol = symbol_at(address, error);
    kernel = symbol && symbol->kernel ? symbol->handle : nullptr;
    return error ? error : kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

void* variable_of(const void* address)
{
    cudaError_t error;
    const Symbol* const symbol = symbol_at(address, error);
    return symbol && !symbol->kernel ? symbol->handle : nullptr;
}

// ---- launches
// ---------------------------------------------------------------------------------------------------------

thread_local cudaError_t launched;
thread_local const rung_host::Configuration* pending;
thread_local cudaError_t refused;  // not yet taken by cudaGetLastError

// Sizes that no GPU takes. The library says "invalid value" of a kernel that it has not registered itself.
bool too_large(dim3 g, dim3 b)
{
    return !g.x || !g.y || !g.z || !b.x || !b.y || !b.z || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535 ||
           b.x > 1024 || b.y > 1024 || b.z > 64 || size_t(b.x) * b.y * b.z > 1024;
}

cudaError_t launch(const void* kernel, const rung_host::Configuration& how, void** arguments)
{
    if (too_large(how.grid, how.block)) return refused = cudaErrorInvalidConfiguration;
    cudaLaunchAttribute attributes[3];
    cudaLaunchConfig_t config = {how.grid, how.block, how.shared, how.stream, attributes, 0};
    const auto add = [&](cudaLaunchAttributeID id) -> cudaLaunchAttributeValue& {
        cudaLaunchAttribute& one = attributes[config.numAttrs++];
        one = {}, one.id = id;
        return one.val;
    };
    if (how.cooperative) add(cudaLaunchAttributeCooperative).cooperative = 1;
    if (how.dependent)
        add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
    if (how.cluster.x)
        add(cudaLaunchAttributeClusterDimension).clusterDim = {how.cluster.x, how.cluster.y, how.cluster.z};
    if (!config.numAttrs)  // as nvcc launches, with its error codes
        return real("cudaLaunchKernel", kernel, how.grid, how.block, arguments, how.shared, how.stream);
    return real("cudaLaunchKernelExC", static_cast<const cudaLaunchConfig_t*>(&config), kernel, arguments);
}

}  // namespace

// What the body of each kernel calls in the host's code, with the addresses of its parameters.
RUNG_HOST __attribute__((noinline)) void rung_stub(void** parameters)
{
    const void* kernel;
    launched = kernel_of(__builtin_return_address(0), kernel);
    if (!launched) launched = launch(kernel, *pending, parameters);
}

namespace rung_host {

cudaError_t submit(Call call, const Configuration& how)
{
    pending = &how, launched = cudaErrorInvalidDeviceFunction;
    call.enter(call.values);
    if (launched == cudaErrorInvalidDeviceFunction)
        fprintf(stderr, "rung: no cubin has the kernel '%s'\n", call.name ? call.name : "?");
    return launched;
}
void* argument_memory(size_t bytes) { return aligned_alloc(64, rounded(bytes)); }
void argument_memory_free(void* memory, size_t) { free(memory); }
void register_kernel(const void*, const char*, void (*)(void**), const unsigned*, const unsigned*, const unsigned*,
                     unsigned, dim3)
{
}
void not_modelled(const char* function, const char* place)
{
    fprintf(stderr, "rung: %s is not modelled (%s).\n", function, place);
    exit(2);
}
void ignored_error(const char*, cudaError_t, RungSite) {}

cudaError_t launch_by_address(const void* address, dim3 grid, dim3 block, void** arguments, size_t shared,
                              cudaStream_t stream, bool cooperative, RungSite)
{
    Configuration how(grid, block, shared, stream);
    how.cooperative = cooperative;
    const void* kernel;
    const cudaError_t error = kernel_of(address, kernel);
    return error ? error : launch(kernel, how, arguments);
}
Configuration configuration_of(const cudaLaunchConfig_t* config)
{
    Configuration how(config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute& one = config->attrs[i];
        if (one.id == cudaLaunchAttributeCooperative) how.cooperative = one.val.cooperative;
        if (one.id == cudaLaunchAttributeProgrammaticStreamSerialization)
            how.dependent = one.val.programmaticStreamSerializationAllowed;
        if (one.id == cudaLaunchAttributeClusterDimension)
            how.cluster = dim3(one.val.clusterDim.x, one.val.clusterDim.y, one.val.clusterDim.z);
    }
    return how;
}
cudaError_t set_attribute(const void* address, cudaFuncAttribute attribute, int value)
{
    const void* kernel;
    const cudaError_t error = kernel_of(address, kernel);
    return error ? error : real("cudaFuncSetAttribute", kernel, attribute, value);
}
cudaError_t get_attributes(cudaFuncAttributes* attributes, const void* address)
{
    const void* kernel;
    char all[1024] = {};  // more of them than ours, behind the same first ones
    cudaError_t error = kernel_of(address, kernel);
    if (!error) error = real("cudaFuncGetAttributes", static_cast<void*>(all), kernel);
    return memcpy(attributes, all, sizeof *attributes), error;
}
cudaError_t active_blocks(int* blocks, const void* address, int threads, size_t shared)
{
    const void* kernel;
    const cudaError_t error = kernel_of(address, kernel);
    return error ? error : real("cudaOccupancyMaxActiveBlocksPerMultiprocessor", blocks, kernel, threads, shared);
}
cudaError_t best_block(int* grid, int* block, const void* address, size_t (*shared)(void*, int), void* context,
                       int limit)
{
    int processors = 0, best = 0, blocks = 0;
    real("cudaDeviceGetAttribute", &processors, cudaDevAttrMultiProcessorCount, 0);
    for (int threads = limit ? limit / 32 * 32 : 1024; threads >= 32; threads -= 32) {
        if (cudaError_t error = active_blocks(&blocks, address, threads, shared(context, threads))) return error;
        if (blocks * threads > best) best = blocks * threads, *block = threads, *grid = blocks * processors;
    }
    return best ? cudaSuccess : cudaErrorInvalidValue;
}
void* symbol_address(void* symbol) { return variable_of(symbol); }
cudaError_t copy_symbol(void* symbol, size_t, void* other, size_t bytes, size_t offset, bool to, cudaMemcpyKind kind,
                        cudaStream_t stream, bool wait, RungSite)
{
    char* const at = static_cast<char*>(variable_of(symbol));
    if (!at) return cudaErrorInvalidSymbol;
    void* const target = to ? at + offset : other;
    const void* const source = to ? other : at + offset;
    return wait ? real("cudaMemcpy", target, source, bytes, kind)
                : real("cudaMemcpyAsync", target, source, bytes, kind, stream);
}

}  // namespace rung_host

// ---- functions of another form than the library's
// -----------------------------------------------------------------------

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* address, void** arguments, RungSite)
{
    const void* kernel;
    const cudaError_t error = kernel_of(address, kernel);
    return error ? error : real("cudaLaunchKernelExC", config, kernel, arguments);
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                                   const cudaKernelNodeParams* given, RungSite)
{
    const void* kernel;
    cudaKernelNodeParams own = *given;
    if (cudaError_t error = kernel_of(given->func, kernel)) return error;
    own.func = const_cast<void*>(kernel);
    return real("cudaGraphAddKernelNode", node, graph, needs, count, static_cast<const cudaKernelNodeParams*>(&own));
}
cudaError_t cudaPeekAtLastError() { return refused ? refused : real("cudaPeekAtLastError"); }
cudaError_t cudaGetLastError()
{
    const cudaError_t own = refused, last = real("cudaGetLastError");
    refused = cudaSuccess;
    return own ? own : last;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return real("cudaEventCreate", event); }
cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned flags)
{ return real("cudaEventCreateWithFlags", event, flags); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags)
{ return real("cudaGraphInstantiate", exec, graph, flags); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, cudaGraphNode_t*, char*, size_t)
{ return real("cudaGraphInstantiate", exec, graph, 0ull); }
static cudaMemLocation location(int device)
{ return {device < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice, device < 0 ? 0 : device}; }
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, cudaMemLocation place, unsigned flags,
                                 cudaStream_t stream)
{ return real("cudaMemPrefetchAsync", pointer, bytes, place, flags, stream); }
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, int device, cudaStream_t stream)
{ return cudaMemPrefetchAsync(pointer, bytes, location(device), 0, stream); }
cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation place)
{ return real("cudaMemAdvise", pointer, bytes, advice, place); }
cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice, int device)
{ return cudaMemAdvise(pointer, bytes, advice, location(device)); }
cudaError_t cudaMallocHost(void** pointer, size_t bytes, unsigned flags, RungSite)
{ return real("cudaHostAlloc", pointer, bytes, flags); }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer)
{
    char all[256] = {};
    const cudaError_t error = real("cudaPointerGetAttributes", static_cast<void*>(all), pointer);
    return memcpy(attributes, all, sizeof *attributes), error;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device)
{
    char all[4096] = {};
    if (cudaError_t error = real("cudaGetDeviceProperties", static_cast<void*>(all), device)) return error;
    *p = {};
    memcpy(p->name, all, sizeof p->name), memcpy(&p->uuid, all + sizeof p->name, sizeof p->uuid);
    size_t free;
    real("cudaMemGetInfo", &free, &p->totalGlobalMem);
    const auto of = [device](cudaDeviceAttr attribute) {
        int value = 0;
        real("cudaDeviceGetAttribute", &value, attribute, device);
        return value;
    };
    const struct
    {
        int* to;
        cudaDeviceAttr from;
    } numbers[] = {{&p->regsPerBlock, cudaDevAttrMaxRegistersPerBlock},
                   {&p->warpSize, cudaDevAttrWarpSize},
                   {&p->maxThreadsPerBlock, cudaDevAttrMaxThreadsPerBlock},
                   {&p->maxThreadsDim[0], cudaDevAttrMaxBlockDimX},
                   {&p->maxThreadsDim[1], cudaDevAttrMaxBlockDimY},
                   {&p->maxThreadsDim[2], cudaDevAttrMaxBlockDimZ},
                   {&p->maxGridSize[0], cudaDevAttrMaxGridDimX},
                   {&p->maxGridSize[1], cudaDevAttrMaxGridDimY},
                   {&p->maxGridSize[2], cudaDevAttrMaxGridDimZ},
                   {&p->clockRate, cudaDevAttrClockRate},
                   {&p->major, cudaDevAttrComputeCapabilityMajor},
                   {&p->minor, cudaDevAttrComputeCapabilityMinor},
                   {&p->multiProcessorCount, cudaDevAttrMultiProcessorCount},
                   {&p->concurrentKernels, cudaDevAttrConcurrentKernels},
                   {&p->asyncEngineCount, cudaDevAttrAsyncEngineCount},
                   {&p->unifiedAddressing, cudaDevAttrUnifiedAddressing},
                   {&p->memoryClockRate, cudaDevAttrMemoryClockRate},
                   {&p->memoryBusWidth, cudaDevAttrGlobalMemoryBusWidth},
                   {&p->l2CacheSize, cudaDevAttrL2CacheSize},
                   {&p->maxThreadsPerMultiProcessor, cudaDevAttrMaxThreadsPerMultiProcessor},
                   {&p->regsPerMultiprocessor, cudaDevAttrMaxRegistersPerMultiprocessor},
                   {&p->managedMemory, cudaDevAttrManagedMemory},
                   {&p->concurrentManagedAccess, cudaDevAttrConcurrentManagedAccess},
                   {&p->pageableMemoryAccess, cudaDevAttrPageableMemoryAccess},
                   {&p->cooperativeLaunch, cudaDevAttrCooperativeLaunch},
                   {&p->canMapHostMemory, cudaDevAttrCanMapHostMemory},
                   {&p->maxBlocksPerMultiProcessor, cudaDevAttrMaxBlocksPerMultiprocessor},
                   {&p->memoryPoolsSupported, cudaDevAttrMemoryPoolsSupported},
                   {&p->clusterLaunch, cudaDevAttrClusterLaunch}};
    for (const auto& one : numbers) *one.to = of(one.from);
    p->sharedMemPerBlock = size_t(of(cudaDevAttrMaxSharedMemoryPerBlock)),
    p->totalConstMem = size_t(of(cudaDevAttrTotalConstantMemory));
    p->sharedMemPerMultiprocessor = size_t(of(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
    p->sharedMemPerBlockOptin = size_t(of(cudaDevAttrMaxSharedMemoryPerBlockOptin)),
    p->memPitch = size_t(of(cudaDevAttrMaxPitch));
    return cudaSuccess;
}

extern "C" RUNG_HOST void rung_program_begins(const rung_host::Record* first, const rung_host::Record* last)
{ first_record = first, last_record = last; }

// ---- forwarded as they are
// ------------------------------------------------------------------------------------------------
