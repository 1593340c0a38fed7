// Launches. emulator/rewriting.py turns `kernel<<<grid, block, shared, stream>>>(x)` into
// `rung_host::bound("kernel", kernel, rung_host::Configuration(grid, block, shared, stream))(x)`; where a template's
// arguments are deduced from the call's, into `rung_host::deduced(...)`.
#pragma once
#include <memory>
#include <type_traits>
#include <utility>

#include "api.h"

RUNG_HOST void rung_stub(void** parameters);  // what a kernel calls in a program for a GPU

namespace rung_host {

struct Configuration
{
    dim3 grid, block, cluster = {0, 0, 0};
    size_t shared = 0;
    cudaStream_t stream = nullptr;
    bool cooperative = false, dependent = false;
    Configuration(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr)
        : grid(grid), block(block), shared(shared), stream(stream) {}
};

// A kernel's call, with its arguments copied. `enter` is what each thread runs.
struct Call
{
    const char* name;
    const void* kernel = nullptr;  // its address, if known
    void (*enter)(void**) = nullptr;
    std::shared_ptr<void> held;    // owns the arguments
    void** values = nullptr;       // pointers to them
    const unsigned* pointers = nullptr;  // which of the arguments are pointers
    unsigned count = 0;
    size_t bytes = 0;
    RungSite site;
};

RUNG_HOST cudaError_t submit(Call call, const Configuration& configuration);
RUNG_HOST void* argument_memory(size_t bytes);  // which kernels may read
RUNG_HOST void argument_memory_free(void* memory, size_t bytes);
// The last error is what a launch leaves for cudaGetLastError.
RUNG_HOST void register_kernel(const void* kernel, const char* name, void (*enter)(void**), const unsigned* sizes,
                               const unsigned* alignments, const unsigned* pointers, unsigned count, dim3 cluster);

template <int... I> struct Numbers {};

template <class P> using Held = std::conditional_t<std::is_reference<P>::value, std::remove_reference_t<P>*, std::remove_cv_t<P>>;  // of an argument
template <class P> Held<P> held(std::remove_reference_t<P>& argument)
{
    if constexpr (std::is_reference<P>::value) return &argument;
    else return argument;
}
template <class P> P given(void* value)
{
    if constexpr (std::is_reference<P>::value) return **static_cast<Held<P>*>(value);
    else return *static_cast<P*>(value);
}

template <class... P>
struct Signature
{
    using Kernel = void (*)(P...);
    static constexpr unsigned count = sizeof...(P);
    static constexpr unsigned sizes[] = {unsigned(sizeof(Held<P>))..., 0};
    static constexpr unsigned alignments[] = {unsigned(alignof(Held<P>))..., 0};
    static constexpr unsigned pointers[] = {unsigned(std::is_pointer<Held<P>>::value)..., 0};

    template <int... I>
    static inline __attribute__((always_inline)) void spread(Kernel kernel, [[maybe_unused]] void** values, Numbers<I...>)
    {
        kernel(given<P>(values[I + 1])...);
    }
    static void enter(void** values)  // values[0]: the kernel
    {
        spread(*static_cast<Kernel*>(values[0]), values, Numbers<__integer_pack(int(sizeof...(P)))...>{});
    }
    static const void* known(Kernel kernel, const char* name = nullptr, dim3 cluster = {0, 0, 0})
    {
        register_kernel((const void*)kernel, name, enter, sizes, alignments, pointers, count, cluster);
        return (const void*)kernel;
    }
};

template <class... P> inline void* address(void (*kernel)(P...)) { return const_cast<void*>(Signature<P...>::known(kernel)); }

// Memory for copies of these values, each at a multiple of 64.
inline constexpr size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

template <class... P>
struct Bound
{
    const char* name;
    void (*kernel)(P...);
    Configuration configuration;
    RungSite site;

    cudaError_t operator()(P... arguments) const
    {
        using S = Signature<P...>;
        S::known(kernel, name);
        constexpr size_t pointers = rounded((sizeof...(P) + 1) * sizeof(void*));
        constexpr size_t bytes = ((pointers + 64) + ... + rounded(sizeof(Held<P>)));
        char* memory = static_cast<char*>(argument_memory(bytes));
        Call call;
        call.name = name, call.kernel = (const void*)kernel, call.enter = S::enter;
        call.values = reinterpret_cast<void**>(memory);
        char* at = memory + pointers;
        *reinterpret_cast<void (**)(P...)>(at) = kernel;
        call.values[0] = at, at += 64;
        unsigned i = 0;
        ((call.values[++i] = ::new (static_cast<void*>(at)) Held<P>(held<P>(arguments)), at += rounded(sizeof(Held<P>))), ...);
        call.held = std::shared_ptr<void>(memory, [](void* held) { argument_memory_free(held, bytes); });
        call.pointers = S::pointers, call.count = S::count, call.bytes = bytes, call.site = site;
        return submit(call, configuration);
    }
};

template <class... P>
inline Bound<P...> bound(const char* name, void (*kernel)(P...), const Configuration& configuration, RungSite site = here())
{
    return {name, kernel, configuration, site};
}

template <class Run>
struct Deduced
{
    const char* name;
    Run run;
    Configuration configuration;
    RungSite site;

    template <class... A>
    cudaError_t operator()(A... arguments) const
    {
        auto whole = [run = run, arguments...]() { run(arguments...); };
        using Whole = decltype(whole);
        static const unsigned pointers[] = {unsigned(std::is_pointer<A>::value)..., 0};
        constexpr size_t bytes = rounded((sizeof...(A) + 1) * sizeof(void*)) + rounded(sizeof(Whole)) + (size_t(0) + ... + rounded(sizeof(A)));
        char* memory = static_cast<char*>(argument_memory(bytes));
        Call call;
        call.name = name;
        call.enter = [](void** values) { (*static_cast<Whole*>(values[0]))(); };
        call.values = reinterpret_cast<void**>(memory);
        char* at = memory + rounded((sizeof...(A) + 1) * sizeof(void*));
        call.values[0] = ::new (static_cast<void*>(at)) Whole(whole), at += rounded(sizeof(Whole));
        unsigned i = 0;
        ((call.values[++i] = ::new (static_cast<void*>(at)) A(arguments), at += rounded(sizeof(A))), ...);
        call.held = std::shared_ptr<void>(memory, [](void* held) { argument_memory_free(held, bytes); });
        call.pointers = pointers, call.count = sizeof...(A), call.bytes = bytes, call.site = site;
        return submit(call, configuration);
    }
};

template <class Run>
inline Deduced<Run> deduced(const char* name, Run run, const Configuration& configuration, RungSite site = here())
{
    return {name, run, configuration, site};
}

// A function of CUDA's that is not here, as a program calls it.
RUNG_HOST [[noreturn]] void not_modelled(const char* function, const char* place);
struct NotModelled
{
    const char *function, *place;
    template <class... A> cudaError_t operator()(A&&...) const { not_modelled(function, place); }
};

// What a call returns whose statement makes no use of it.
RUNG_HOST void ignored_error(const char* function, cudaError_t error, RungSite site);
struct Ignored
{
    const char* function;
    RungSite site;
    void operator=(cudaError_t error) const { if (error) ignored_error(function, error, site); }
};
inline Ignored ignored(const char* function, RungSite site = here()) { return {function, site}; }

// A literal zero, which a kernel may take as a number or as a pointer.
struct Zero
{
    template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value || std::is_pointer<T>::value>>
    constexpr operator T() const { return T(0); }
};

RUNG_HOST cudaError_t launch_by_address(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream,
                                        bool cooperative, RungSite site);
RUNG_HOST Configuration configuration_of(const cudaLaunchConfig_t* config);

RUNG_HOST cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value);
RUNG_HOST cudaError_t get_attributes(cudaFuncAttributes* attributes, const void* kernel);
RUNG_HOST cudaError_t active_blocks(int* blocks, const void* kernel, int threads, size_t shared);
RUNG_HOST cudaError_t best_block(int* grid, int* block, const void* kernel, size_t (*shared)(void*, int), void* context, int limit);
RUNG_HOST void* symbol_address(void* symbol);
RUNG_HOST cudaError_t copy_symbol(void* symbol, size_t room, void* other, size_t bytes, size_t offset, bool to, cudaMemcpyKind kind,
                                  cudaStream_t stream, bool wait, RungSite site);

template <class... P> inline const void* plain(void (*kernel)(P...)) { return Signature<P...>::known(kernel); }
inline const void* plain(const void* kernel) { return kernel; }

}  // namespace rung_host

template <class... P> inline void rung_host_known(void (*kernel)(P...), const char* name, dim3 cluster)
{
    rung_host::Signature<P...>::known(kernel, name, cluster);
}

template <class F>
cudaError_t cudaLaunchKernel(F kernel, dim3 grid, dim3 block, void** arguments, size_t shared = 0, cudaStream_t stream = 0, RungSite site = here())
{
    return rung_host::launch_by_address(rung_host::plain(kernel), grid, block, arguments, shared, stream, false, site);
}
template <class F>
cudaError_t cudaLaunchCooperativeKernel(F kernel, dim3 grid, dim3 block, void** arguments, size_t shared = 0, cudaStream_t stream = 0, RungSite site = here())
{
    return rung_host::launch_by_address(rung_host::plain(kernel), grid, block, arguments, shared, stream, true, site);
}
namespace rung_host {
struct ConfigurationHere  // with the place of the call, behind whose arguments no default fits
{
    const cudaLaunchConfig_t* config;
    RungSite site;
    ConfigurationHere(const cudaLaunchConfig_t* config, RungSite site = here()) : config(config), site(site) {}
};
}  // namespace rung_host
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(rung_host::ConfigurationHere how, void (*kernel)(P...), A&&... arguments)
{
    return rung_host::bound(nullptr, kernel, rung_host::configuration_of(how.config), how.site)(std::forward<A>(arguments)...);
}
RUNG_HOST cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments, RungSite site = here());

template <class F> cudaError_t cudaFuncSetAttribute(F kernel, cudaFuncAttribute attribute, int value)
{
    return rung_host::set_attribute(rung_host::plain(kernel), attribute, value);
}
template <class F> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, F kernel)
{
    return rung_host::get_attributes(attributes, rung_host::plain(kernel));
}
template <class F> cudaError_t cudaFuncSetCacheConfig(F, cudaFuncCache) { return cudaSuccess; }
template <class F> cudaError_t cudaFuncSetSharedMemConfig(F, cudaSharedMemConfig) { return cudaSuccess; }
template <class F> cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F kernel, int threads, size_t shared)
{
    return rung_host::active_blocks(blocks, rung_host::plain(kernel), threads, shared);
}
template <class F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, F kernel, int threads, size_t shared, unsigned)
{
    return rung_host::active_blocks(blocks, rung_host::plain(kernel), threads, shared);
}
template <class F> cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, F kernel, size_t shared = 0, int limit = 0)
{
    return rung_host::best_block(grid, block, rung_host::plain(kernel), [](void* bytes, int) { return *static_cast<size_t*>(bytes); }, &shared, limit);
}
template <class F, class S>
cudaError_t cudaOccupancyMaxPotentialBlockSizeVariableSMem(int* grid, int* block, F kernel, S shared, int limit = 0)
{
    return rung_host::best_block(grid, block, rung_host::plain(kernel), [](void* f, int n) { return size_t((*static_cast<S*>(f))(n)); }, &shared, limit);
}

template <class T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, size_t bytes, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyHostToDevice,
                               RungSite site = here())
{
    return rung_host::copy_symbol((void*)&symbol, sizeof(T), const_cast<void*>(from), bytes, offset, true, kind, nullptr, true, site);
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, T& symbol, size_t bytes, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyDeviceToHost,
                                 RungSite site = here())
{
    return rung_host::copy_symbol((void*)&symbol, sizeof(T), to, bytes, offset, false, kind, nullptr, true, site);
}
template <class T>
cudaError_t cudaMemcpyToSymbolAsync(T& symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind, cudaStream_t stream = 0,
                                    RungSite site = here())
{
    return rung_host::copy_symbol((void*)&symbol, sizeof(T), const_cast<void*>(from), bytes, offset, true, kind, stream, false, site);
}
template <class T>
cudaError_t cudaMemcpyFromSymbolAsync(void* to, T& symbol, size_t bytes, size_t offset, cudaMemcpyKind kind, cudaStream_t stream = 0,
                                      RungSite site = here())
{
    return rung_host::copy_symbol((void*)&symbol, sizeof(T), to, bytes, offset, false, kind, stream, false, site);
}
template <class T> cudaError_t cudaGetSymbolAddress(void** pointer, T& symbol)
{
    return (*pointer = rung_host::symbol_address((void*)&symbol)) ? cudaSuccess : cudaErrorInvalidSymbol;
}
template <class T> cudaError_t cudaGetSymbolSize(size_t* bytes, T&) { return *bytes = sizeof(T), cudaSuccess; }

