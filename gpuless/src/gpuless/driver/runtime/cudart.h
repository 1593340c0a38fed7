// What the files of CUDA's runtime library share. It is written over the public functions of cuda.h alone.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#ifndef CUDART
#define CUDART 13  // whose interface the library has: 13 or 12
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace cudart {

// The thread's last error, and who made it: `cudaGetLastError` gives and forgets it.
cudaError_t note(cudaError_t error, const char* function, void* site);
inline cudaError_t note(CUresult error, const char* function, void* site)
{ return error ? note(cudaError_t(error), function, site) : cudaSuccess; }

// A context for this thread: that of the device of its choice, unless it has one.
cudaError_t ready();
int device_of_thread();

// While it lives, the driver knows the function that the program has called, and from where.
struct Call
{
    Call(const char* function, const void* site);
    ~Call();
};

void tell_misuse(const char* kind, const std::string& text);  // by that function

// What NVIDIA's compiler has registered: a kernel or a variable, by the address of its name on the host.
cudaError_t kernel_of(const void* host, CUkernel* kernel);
cudaError_t function_of(const void* host, CUfunction* function);
cudaError_t variable_of(const void* host, CUdeviceptr* address, size_t* bytes);
const void* host_of(CUkernel kernel);  // the reverse, for graphs
void remember(CUkernel kernel);        // one that a library gave

// One argument as the driver wants it: enumerations and handles have the same values on both sides.
template <class To, class From>
To as(From value)
{
    if constexpr (std::is_same_v<To, From>)
        return value;
    else if constexpr (std::is_pointer_v<From> && std::is_integral_v<To>)
        return To(reinterpret_cast<uintptr_t>(value));
    else if constexpr (std::is_pointer_v<To> && std::is_function_v<std::remove_pointer_t<From>>)
        return reinterpret_cast<To>(value);
    else if constexpr (std::is_pointer_v<To>)
        return reinterpret_cast<To>(const_cast<std::remove_const_t<std::remove_pointer_t<From>>*>(value));
    else if constexpr (std::is_class_v<To>)
        return std::bit_cast<To>(value);
    else
        return static_cast<To>(value);
}

// The stream of a thread of its own stands for the default stream in functions of `--default-stream per-thread`.
template <bool Thread, class T>
T streamed(T value)
{
    if constexpr (Thread && std::is_same_v<T, cudaStream_t>)
        return value ? value : cudaStreamPerThread;
    else
        return value;
}

// A function of the runtime that is one of the driver's.
template <auto Driver, class Runtime, bool Thread>
struct Forward;
template <class... D, CUresult (*Driver)(D...), class... R, bool Thread>
struct Forward<Driver, cudaError_t(R...), Thread>
{
    static cudaError_t call(const char* name, void* site, R... given)
    {
        const Call call(name, site);
        if (const cudaError_t error = ready()) return note(error, name, site);
        return note(Driver(as<D>(streamed<Thread>(given))...), name, site);
    }
};

}  // namespace cudart

// Leaves a function with the error of a step, noted under the function's name and the place it was called from.
#define SITE __builtin_return_address(0)
#define ENDED(error) return ::cudart::note(error, __func__, SITE)
#define TRY(step)                                                                                                      \
    do {                                                                                                               \
        if (const auto tried_ = (step)) ENDED(tried_);                                                                 \
    } while (0)
#define BEGIN                                                                                                          \
    const ::cudart::Call call_(__func__, SITE);                                                                        \
    TRY(::cudart::ready())
