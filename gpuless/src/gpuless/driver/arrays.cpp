// Arrays, mipmapped arrays, and the objects that describe textures and surfaces to kernels.
#include "arrays.h"

#include <string.h>

#include <algorithm>

struct CUmipmappedArray_st
{ std::vector<CUarray> levels; };

namespace gpuless {
namespace {

auto& arrays = *new std::set<CUarray>;
auto& mipmaps = *new std::set<CUmipmappedArray>;

CUresult make(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR& of, const Site& site)
{
    const size_t element = element_bytes(of.Format, of.NumChannels);
    if (!array || !of.Width || !element || (of.Depth && !of.Height && !(of.Flags & CUDA_ARRAY3D_LAYERED)))
        return CUDA_ERROR_INVALID_VALUE;
    const size_t height = std::max<size_t>(1, of.Height), depth = std::max<size_t>(1, of.Depth);
    const size_t pitch = (of.Width * element + 31) / 32 * 32;
    void* data = nullptr;
    if (const CUresult error = allocate(&data, pitch * height * depth, Kind::Device, site)) return error;
    *array = new CUarray_st{of, static_cast<char*>(data), element, pitch, pitch * height};
    return arrays.insert(*array), CUDA_SUCCESS;
}

void destroy(CUarray array, const Site& site)
{
    if (allocation_at(array->data) && !allocation_at(array->data)->freed) release(array->data, false, site);
    arrays.erase(array);
    delete array;
}

}  // namespace

bool is_array(CUarray array) { return arrays.count(array); }
CUarray level_of(CUmipmappedArray of, unsigned level)
{ return mipmaps.count(of) && level < of->levels.size() ? of->levels[level] : nullptr; }

size_t element_bytes(CUarray_format format, unsigned channels)
{
    if (channels != 1 && channels != 2 && channels != 4) return 0;
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4 * channels;
    default: return 0;
    }
}

}  // namespace gpuless

using namespace gpuless;

CUresult cuArrayCreate(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* of)
{
    BEGIN("cuArrayCreate");
    if (!of) return CUDA_ERROR_INVALID_VALUE;
    return make(array, {of->Width, of->Height, 0, of->Format, of->NumChannels, 0}, site);
}
CUresult cuArray3DCreate(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* of)
{
    BEGIN("cuArray3DCreate");
    return of ? make(array, *of, site) : CUDA_ERROR_INVALID_VALUE;
}
#define ARRAY(NAME)                                                                                                    \
    BEGIN(NAME);                                                                                                       \
    if (!is_array(array)) return CUDA_ERROR_INVALID_HANDLE
CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR* of, CUarray array)
{
    ARRAY("cuArrayGetDescriptor");
    return *of = {array->of.Width, array->of.Height, array->of.Format, array->of.NumChannels}, CUDA_SUCCESS;
}
CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR* of, CUarray array)
{
    ARRAY("cuArray3DGetDescriptor");
    return *of = array->of, CUDA_SUCCESS;
}
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* of, CUarray array, CUdevice)
{
    ARRAY("cuArrayGetMemoryRequirements");
    *of = {};
    return of->size = array->slice * std::max<size_t>(1, array->of.Depth), of->alignment = 512, CUDA_SUCCESS;
}
CUresult cuArrayDestroy(CUarray array)
{
    ARRAY("cuArrayDestroy");
    if (!array->owned) return CUDA_ERROR_INVALID_HANDLE;
    wait_for_all();
    return destroy(array, site), CUDA_SUCCESS;
}
CUresult cuMipmappedArrayCreate(CUmipmappedArray* made, const CUDA_ARRAY3D_DESCRIPTOR* of, unsigned levels)
{
    BEGIN("cuMipmappedArrayCreate");
    if (!made || !of || !levels) return CUDA_ERROR_INVALID_VALUE;
    *made = new CUmipmappedArray_st;
    mipmaps.insert(*made);
    CUDA_ARRAY3D_DESCRIPTOR one = *of;
    for (unsigned level = 0; level < levels; level++) {
        CUarray array = nullptr;
        if (const CUresult error = make(&array, one, site)) return error;
        array->owned = false;
        (*made)->levels.push_back(array);
        if (one.Width == 1 && one.Height <= 1) break;
        one.Width = std::max<size_t>(1, one.Width / 2),
        one.Height = one.Height ? std::max<size_t>(1, one.Height / 2) : 0;
        if (!(one.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) && one.Depth)
            one.Depth = std::max<size_t>(1, one.Depth / 2);
    }
    return CUDA_SUCCESS;
}
CUresult cuMipmappedArrayGetLevel(CUarray* array, CUmipmappedArray of, unsigned level)
{
    BEGIN("cuMipmappedArrayGetLevel");
    if (!mipmaps.count(of)) return CUDA_ERROR_INVALID_HANDLE;
    if (level >= of->levels.size()) return CUDA_ERROR_INVALID_VALUE;
    return *array = of->levels[level], CUDA_SUCCESS;
}
CUresult cuMipmappedArrayDestroy(CUmipmappedArray of)
{
    BEGIN("cuMipmappedArrayDestroy");
    if (!mipmaps.erase(of)) return CUDA_ERROR_INVALID_HANDLE;
    wait_for_all();
    for (CUarray array : of->levels) destroy(array, site);
    return delete of, CUDA_SUCCESS;
}
