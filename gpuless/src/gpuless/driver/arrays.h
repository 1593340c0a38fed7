// Arrays of texture and surface memory: rows one behind the other, at a pitch.
#pragma once
#include "driver.h"

struct CUarray_st
{
    CUDA_ARRAY3D_DESCRIPTOR of;
    char* data;
    size_t element, pitch, slice;  // bytes
    bool owned = true;             // else a level of a mipmap
};

namespace gpuless {

bool is_array(CUarray array);
size_t element_bytes(CUarray_format format, unsigned channels);

}  // namespace gpuless
