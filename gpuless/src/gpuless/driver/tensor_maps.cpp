// Tensor maps: the machine reads a form of its own (machine/tensor_map.h).
#include "driver.h"

#include "../machine/tensor_map.h"

#include <string.h>

using namespace gpuless;
using rung_emulator::TensorMapFields;

static unsigned bytes_of(CUtensorMapDataType type)
{
    switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
    default: return 4;
    }
}
// The instructions count some of them in another order than this interface.
static unsigned char element_of(CUtensorMapDataType type)
{
    switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ: return 8;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 9;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 10;
    default: return static_cast<unsigned char>(type);
    }
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill)
{
    if (const CUresult error = initialized()) return error;
    if (!map || uintptr_t(map) % 64 || !rank || rank > 5 || uintptr_t(address) % 16 || !dims || !box ||
        !element_strides || (rank > 1 && !strides))
        return CUDA_ERROR_INVALID_VALUE;
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle > CU_TENSOR_MAP_SWIZZLE_128B ||
        type > CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ)
        return CUDA_ERROR_NOT_SUPPORTED;
    const unsigned size = bytes_of(type), widths[] = {0, 32, 64, 128};
    if (box[0] * size % 16 || (swizzle && box[0] * size > widths[swizzle])) return CUDA_ERROR_INVALID_VALUE;
    TensorMapFields made = {};
    made.magic = rung_emulator::TENSOR_MAP_MAGIC, made.address = uint64_t(address);
    made.rank = static_cast<unsigned char>(rank), made.element_bytes = static_cast<unsigned char>(size);
    made.swizzle = static_cast<unsigned char>(swizzle), made.element = element_of(type);
    made.fill = fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
    for (unsigned i = 0; i < 5; i++) {
        const bool in = i < rank;
        if (in && (!dims[i] || dims[i] >> 32 || !box[i] || box[i] > 256 || !element_strides[i] ||
                   element_strides[i] > 8 || (i && (strides[i - 1] % 16 || strides[i - 1] >> 40))))
            return CUDA_ERROR_INVALID_VALUE;
        made.dims[i] = in ? unsigned(dims[i]) : 1;
        made.box[i] = static_cast<unsigned short>(in ? box[i] : 1);
        made.element_strides[i] = static_cast<unsigned char>(in ? element_strides[i] : 1);
        if (i) made.strides[i - 1] = in ? strides[i - 1] : 0;
    }
    return memcpy(map, &made, sizeof made), CUDA_SUCCESS;
}
CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address)
{
    if (!map || uintptr_t(address) % 16) return CUDA_ERROR_INVALID_VALUE;
    reinterpret_cast<TensorMapFields*>(map)->address = uint64_t(address);
    return CUDA_SUCCESS;
}
