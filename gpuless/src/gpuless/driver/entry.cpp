// How functions of the interface are found: by name and version. What is missing is refused by name.
#include "driver.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <mutex>

namespace gpuless {
namespace {

struct Function
{
    const char* name;  // without its version
    int version;       // of CUDA, since which it is so
    void *function, *per_thread;
};
}  // namespace
}  // namespace gpuless

// All functions, by interface.py: those of a name in the order of their versions.
#include "declared.inc"
const gpuless::Function FUNCTIONS[] = {
#include "functions.inc"
};

using namespace gpuless;

// Said once for each function.
EXPORTED int gpuless_refuse(const char* function)
{
    static auto& told = *new std::set<std::string>;
    static std::mutex one_at_a_time;
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    if (told.insert(function).second) fprintf(stderr, "gpuless: %s is not supported\n", function);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* status)
{
    CUdriverProcAddressQueryResult ignored;
    if (!status) status = &ignored;
    if (!name || !function || !*name) return CUDA_ERROR_INVALID_VALUE;
    *function = nullptr, *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (const Function& one : FUNCTIONS) {
        if (strcmp(one.name, name)) continue;
        if (one.version > version) {
            if (!*function) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
            continue;
        }
        const bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && one.per_thread;
        *function = per_thread ? one.per_thread : one.function, *status = CU_GET_PROC_ADDRESS_SUCCESS;
    }
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// Tables that only NVIDIA's own libraries know of.
CUresult cuGetExportTable(const void** table, const CUuuid*) { return *table = nullptr, CUDA_ERROR_NOT_FOUND; }

namespace {
struct Error
{
    int number;
    const char *name, *text;
};
const Error ERRORS[] = {
#include "errors.inc"  // interface.py, from the names of cuda.h
};
const Error* error_of(CUresult error)
{
    const auto found =
        std::find_if(std::begin(ERRORS), std::end(ERRORS), [&](const Error& one) { return one.number == int(error); });
    return found == std::end(ERRORS) ? nullptr : found;
}
}  // namespace

CUresult cuGetErrorName(CUresult error, const char** text)
{
    const Error* const found = error_of(error);
    *text = found ? found->name : nullptr;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorString(CUresult error, const char** text)
{
    const Error* const found = error_of(error);
    *text = found ? found->text : nullptr;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
