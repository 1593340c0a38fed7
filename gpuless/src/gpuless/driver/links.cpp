// The driver's linker: its pieces go to the loader, and the cubin comes back.
#include "modules.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

struct CUlinkState_st
{
    std::vector<std::pair<std::string, std::string>> pieces;  // kind and file
    void** values;                                            // the caller's, for the sizes of logs
    std::vector<CUjit_option> order;
    std::string cubin;
};

namespace gpuless {
namespace {

auto& links = *new std::set<CUlinkState>;
unsigned files;

const char* kind_of(CUjitInputType type)
{
    switch (type) {
    case CU_JIT_INPUT_CUBIN: return "cubin";
    case CU_JIT_INPUT_PTX: return "ptx";
    case CU_JIT_INPUT_FATBINARY: return "fatbin";
    case CU_JIT_INPUT_OBJECT: return "object";
    case CU_JIT_INPUT_LIBRARY: return "library";
    default: return "ltoir";
    }
}

// A log in the buffer that the options name, and its size.
void give_log(CUlinkState link, const std::string& log)
{
    char* buffer = nullptr;
    for (size_t i = 0; i < link->order.size(); i++)
        if (link->order[i] == CU_JIT_ERROR_LOG_BUFFER) buffer = static_cast<char*>(link->values[i]);
    for (size_t i = 0; i < link->order.size(); i++)
        if (link->order[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES && buffer && link->values[i]) {
            const size_t used = std::min(size_t(link->values[i]) - 1, log.size());
            memcpy(buffer, log.data(), used), buffer[used] = 0;
        }
}

}  // namespace
}  // namespace gpuless

using namespace gpuless;

CUresult cuLinkCreate(unsigned count, CUjit_option* options, void** values, CUlinkState* made)
{
    BEGIN("cuLinkCreate");
    if (!made) return CUDA_ERROR_INVALID_VALUE;
    *made = new CUlinkState_st;
    (*made)->values = values, (*made)->order.assign(options, options + count);
    return links.insert(*made), CUDA_SUCCESS;
}
CUresult cuLinkAddData(CUlinkState link, CUjitInputType type, void* data, size_t bytes, const char*, unsigned,
                       CUjit_option*, void**)
{
    BEGIN("cuLinkAddData");
    if (!links.count(link)) return CUDA_ERROR_INVALID_HANDLE;
    if (!data || !bytes) return CUDA_ERROR_INVALID_VALUE;
    const std::string path =
        cache_folder() + "/link-" + std::to_string(getpid()) + "-" + std::to_string(++files) + ".piece";
    std::ofstream(path, std::ios::binary).write(static_cast<const char*>(data), std::streamsize(bytes));
    link->pieces.emplace_back(kind_of(type), path);
    return CUDA_SUCCESS;
}
CUresult cuLinkAddFile(CUlinkState link, CUjitInputType type, const char* path, unsigned count, CUjit_option* options,
                       void** values)
{
    std::ifstream file(path ? path : "", std::ios::binary);
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    std::string data((std::istreambuf_iterator<char>(file)), {});
    return cuLinkAddData(link, type, &data[0], data.size(), path, count, options, values);
}
CUresult cuLinkComplete(CUlinkState link, void** cubin, size_t* bytes)
{
    BEGIN("cuLinkComplete");
    if (!links.count(link)) return CUDA_ERROR_INVALID_HANDLE;
    const std::string made = cache_folder() + "/link-" + std::to_string(getpid()) + ".cubin";
    std::string request =
                    "[\"link\", " + std::to_string(10 * gpu().major + gpu().minor) + ", " + in_json(made) + ", []",
                answer;
    for (const auto& [kind, path] : link->pieces) request += ", " + in_json(kind) + ", " + in_json(path);
    const CUresult error = load_request(request + "]", &answer);
    if (error) return give_log(link, answer), error;
    std::ifstream file(made, std::ios::binary);
    link->cubin.assign(std::istreambuf_iterator<char>(file), {});
    remove(made.c_str());
    if (cubin) *cubin = &link->cubin[0];
    if (bytes) *bytes = link->cubin.size();
    return CUDA_SUCCESS;
}
CUresult cuLinkDestroy(CUlinkState link)
{
    BEGIN("cuLinkDestroy");
    if (!links.erase(link)) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto& [_, path] : link->pieces) remove(path.c_str());
    return delete link, CUDA_SUCCESS;
}
