// What the host's part of ggml's headers asks for, where a launch needs none of it.
#pragma once
#include <cstdlib>

int ggml_cuda_get_device() { return 0; }
const ggml_cuda_device_info& ggml_cuda_info()
{
    static const ggml_cuda_device_info none = {};
    return none;
}
void ggml_cuda_error(const char*, const char*, const char*, int, const char*) { abort(); }
extern "C" void ggml_abort(const char*, int, const char*, ...) { abort(); }
