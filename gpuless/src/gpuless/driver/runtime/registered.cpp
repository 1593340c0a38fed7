// What NVIDIA's compiler registers before `main` (crt/host_runtime.h): binaries, kernels, variables; and their
// launches.
#include "cudart.h"

#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace cudart {
namespace {

struct Binary
{
    const void* wrapper;
    CUlibrary library = nullptr;
    CUresult error = CUDA_SUCCESS;
    bool loaded = false;
    std::vector<std::pair<void**, const char*>> managed = {};
    std::vector<const void*> names = {};  // of kernels and variables, forgotten with the binary
};

struct Named
{
    Binary* binary;
    std::string name;
    CUkernel kernel = nullptr;
    CUdeviceptr address = 0;
    size_t bytes = 0;
    bool managed = false;
};

// Never destroyed: programs launch and free from destructors of static objects.
auto& kernels = *new std::unordered_map<const void*, Named>;
auto& variables = *new std::unordered_map<const void*, Named>;
auto& hosts = *new std::unordered_map<CUkernel, const void*>;
auto& lock = *new std::recursive_mutex;

using Held = std::lock_guard<std::recursive_mutex>;

cudaError_t load(Binary& binary)
{
    if (binary.loaded) return cudaError_t(binary.error);
    if (const cudaError_t error = ready()) return error;
    binary.loaded = true;
    binary.error = cuLibraryLoadData(&binary.library, binary.wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0);
    for (const auto& [host, name] : binary.managed) {
        CUdeviceptr address = 0;
        size_t bytes = 0;
        if (!binary.error && !cuLibraryGetManaged(&address, &bytes, binary.library, name))
            *host = reinterpret_cast<void*>(address);
    }
    return cudaError_t(binary.error);
}

}  // namespace

cudaError_t kernel_of(const void* host, CUkernel* kernel)
{
    const Held held(lock);
    const auto found = kernels.find(host);
    if (found == kernels.end()) {
        if (!hosts.count(CUkernel(host))) return cudaErrorInvalidDeviceFunction;
        *kernel = CUkernel(host);
        return cudaSuccess;
    }
    Named& named = found->second;
    if (!named.kernel) {
        if (const cudaError_t error = load(*named.binary)) return error;
        if (cuLibraryGetKernel(&named.kernel, named.binary->library, named.name.c_str()))
            return cudaErrorInvalidDeviceFunction;
        hosts.emplace(named.kernel, host);
    }
    *kernel = named.kernel;
    return cudaSuccess;
}

cudaError_t function_of(const void* host, CUfunction* function)
{
    CUkernel kernel;
    if (const cudaError_t error = kernel_of(host, &kernel)) return error;
    return cudaError_t(cuKernelGetFunction(function, kernel));
}

cudaError_t variable_of(const void* host, CUdeviceptr* address, size_t* bytes)
{
    const Held held(lock);
    auto found = variables.find(host);
    if (found == variables.end()) return cudaErrorInvalidSymbol;
    Named& named = found->second;
    if (!named.address) {
        if (const cudaError_t error = load(*named.binary)) return error;
        const auto get = named.managed ? cuLibraryGetManaged : cuLibraryGetGlobal;
        if (get(&named.address, &named.bytes, named.binary->library, named.name.c_str())) return cudaErrorInvalidSymbol;
    }
    *address = named.address;
    if (bytes) *bytes = named.bytes;
    return cudaSuccess;
}

const void* host_of(CUkernel kernel)
{
    const Held held(lock);
    const auto found = hosts.find(kernel);
    return found == hosts.end() ? kernel : found->second;
}

void remember(CUkernel kernel)
{
    const Held held(lock);
    hosts.emplace(kernel, kernel);
}

}  // namespace cudart

using namespace cudart;

EXPORT void** __cudaRegisterFatBinary(void* wrapper) { return reinterpret_cast<void**>(new Binary{wrapper}); }
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}

EXPORT void __cudaUnregisterFatBinary(void** handle)
{
    const Held held(lock);
    Binary* const binary = reinterpret_cast<Binary*>(handle);
    for (const void* const host : binary->names) {
        if (const auto found = kernels.find(host); found != kernels.end()) hosts.erase(found->second.kernel);
        kernels.erase(host), variables.erase(host);
    }
    if (binary->library) cuLibraryUnload(binary->library);
    delete binary;
}

EXPORT void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*,
                                   dim3*, int*)
{
    const Held held(lock);
    Binary* const binary = reinterpret_cast<Binary*>(handle);
    kernels.insert_or_assign(host, Named{binary, name});
    binary->names.push_back(host);
}

EXPORT void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, size_t, int, int)
{
    const Held held(lock);
    Binary* const binary = reinterpret_cast<Binary*>(handle);
    variables.insert_or_assign(host, Named{binary, name});
    binary->names.push_back(host);
}

EXPORT void __cudaRegisterManagedVar(void** handle, void** host, char*, const char* name, int, size_t, int, int)
{
    const Held held(lock);
    Binary* const binary = reinterpret_cast<Binary*>(handle);
    variables.insert_or_assign(host, Named{binary, name, nullptr, 0, 0, true});
    binary->names.push_back(host), binary->managed.emplace_back(host, name);
}

EXPORT char __cudaInitModule(void** handle)
{
    const Held held(lock);
    return !load(*reinterpret_cast<Binary*>(handle));
}

EXPORT void __cudaRegisterTexture(void**, const void*, const void**, const char*, int, int, int) {}
EXPORT void __cudaRegisterSurface(void**, const void*, const void**, const char*, int, int) {}
EXPORT void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}

namespace {

struct Configuration
{
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    const void* site;  // of the <<<>>>: the launch itself is called by a function that the compiler has made
};
thread_local const void* launched_at = nullptr;
thread_local std::vector<Configuration> pushed;  // by <<<>>>, which pops them when its arguments are evaluated

cudaError_t launch(const void* host, const CUlaunchConfig& config, void** arguments)
{
    CUfunction function;
    if (const cudaError_t error = function_of(host, &function)) return error;
    const CUresult error = cuLaunchKernelEx(&config, function, arguments, nullptr);
    int most = 0;  // more shared memory than this is an invalid value, a grid or block that cannot be a configuration
    if (error != CUDA_ERROR_INVALID_VALUE ||
        cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function) ||
        config.sharedMemBytes > unsigned(most))
        return cudaError_t(error);
    return cudaErrorInvalidConfiguration;
}

CUlaunchConfig configured(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    CUlaunchConfig config = {};
    config.gridDimX = grid.x, config.gridDimY = grid.y, config.gridDimZ = grid.z;
    config.blockDimX = block.x, config.blockDimY = block.y, config.blockDimZ = block.z;
    config.sharedMemBytes = unsigned(shared), config.hStream = stream;
    return config;
}

template <bool Thread>
cudaError_t plain(const void* host, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream)
{
    if (const cudaError_t error = ready()) return error;
    return launch(host, configured(grid, block, shared, streamed<Thread>(stream)), arguments);
}

template <bool Thread>
cudaError_t together(const void* host, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream)
{
    if (const cudaError_t error = ready()) return error;
    CUlaunchConfig config = configured(grid, block, shared, streamed<Thread>(stream));
    CUlaunchAttribute cooperative = {};
    cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, cooperative.value.cooperative = 1;
    config.attrs = &cooperative, config.numAttrs = 1;
    return launch(host, config, arguments);
}

template <bool Thread>
cudaError_t extended(const cudaLaunchConfig_t* given, const void* host, void** arguments)
{
    if (const cudaError_t error = ready()) return error;
    CUlaunchConfig config =
        configured(given->gridDim, given->blockDim, given->dynamicSmemBytes, streamed<Thread>(given->stream));
    config.attrs = reinterpret_cast<CUlaunchAttribute*>(given->attrs), config.numAttrs = given->numAttrs;
    return launch(host, config, arguments);
}

}  // namespace

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    pushed.push_back({grid, block, shared, stream, SITE});
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream)
{
    if (pushed.empty()) return cudaErrorMissingConfiguration;
    const Configuration last = pushed.back();
    pushed.pop_back();
    launched_at = last.site;
    *grid = last.grid, *block = last.block, *shared = last.shared, *static_cast<cudaStream_t*>(stream) = last.stream;
    return cudaSuccess;
}

// The handle is the kernel's address on the host: its binary is loaded when it is launched.
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host)
{
    *kernel = cudaKernel_t(host);
    return cudaSuccess;
}

namespace {
const void* place_of_launch(const void* site)
{
    const void* const at = launched_at ? launched_at : site;
    launched_at = nullptr;
    return at;
}
}  // namespace

#define LAUNCHER(name, way)                                                                                            \
    EXPORT cudaError_t name(const void* host, dim3 grid, dim3 block, void** arguments, size_t shared,                  \
                            cudaStream_t stream)                                                                       \
    {                                                                                                                  \
        const void* const site = place_of_launch(SITE);                                                                \
        const Call call("a kernel launch", site);                                                                      \
        return note(way(host, grid, block, arguments, shared, stream), "a kernel launch", const_cast<void*>(site));    \
    }
LAUNCHER(cudaLaunchKernel, plain<false>)
LAUNCHER(cudaLaunchKernel_ptsz, plain<true>)
LAUNCHER(__cudaLaunchKernel, plain<false>)
LAUNCHER(__cudaLaunchKernel_ptsz, plain<true>)
LAUNCHER(cudaLaunchCooperativeKernel, together<false>)
LAUNCHER(cudaLaunchCooperativeKernel_ptsz, together<true>)

EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* host, void** arguments)
{ ENDED(extended<false>(config, host, arguments)); }
EXPORT cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t* config, const void* host, void** arguments)
{ ENDED(extended<true>(config, host, arguments)); }

EXPORT cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* host)
{
    BEGIN;
    ENDED(kernel_of(host, reinterpret_cast<CUkernel*>(kernel)));
}
EXPORT cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* host)
{
    BEGIN;
    ENDED(function_of(host, function));
}
EXPORT cudaError_t cudaGetSymbolAddress(void** address, const void* symbol)
{
    BEGIN;
    ENDED(variable_of(symbol, reinterpret_cast<CUdeviceptr*>(address), nullptr));
}
EXPORT cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol)
{
    BEGIN;
    CUdeviceptr address;
    ENDED(variable_of(symbol, &address, bytes));
}
EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name)
{
    BEGIN;
    TRY(cuLibraryGetKernel(reinterpret_cast<CUkernel*>(kernel), reinterpret_cast<CUlibrary>(library), name));
    remember(reinterpret_cast<CUkernel>(*kernel));
    return cudaSuccess;
}
