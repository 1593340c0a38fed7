// Textures and surfaces: what the program describes, as the machine reads it (machine/texture.h). An object is the
// number that the machine gives it.
#include "arrays.h"

#include "../machine/texture.h"

#include <algorithm>

namespace gpuless {

CUarray level_of(CUmipmappedArray of, unsigned level);  // null if it has none

namespace {

struct Described
{
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
    bool viewed;
};
auto &textures = *new std::map<CUtexObject, Described>, &surfaces = *new std::map<CUsurfObject, Described>;

void set_format(rung_texture& to, CUarray_format format, unsigned channels)
{
    to.channels = uint8_t(channels), to.channel_bits = uint8_t(8 * element_bytes(format, 1));
    to.kind = format == CU_AD_FORMAT_HALF || format == CU_AD_FORMAT_FLOAT ? 2
              : format == CU_AD_FORMAT_UNSIGNED_INT8 || format == CU_AD_FORMAT_UNSIGNED_INT16 ||
                      format == CU_AD_FORMAT_UNSIGNED_INT32
                  ? 1
                  : 0;
}

CUresult of_array(rung_texture& to, CUarray array)
{
    if (!is_array(array)) return CUDA_ERROR_INVALID_HANDLE;
    to.address = uint64_t(array->data), to.pitch = array->pitch, to.slice = array->slice;
    to.width = uint32_t(array->of.Width), to.height = uint32_t(std::max<size_t>(1, array->of.Height));
    to.depth = uint32_t(std::max<size_t>(1, array->of.Depth));
    set_format(to, array->of.Format, array->of.NumChannels);
    return CUDA_SUCCESS;
}

CUresult of_memory(rung_texture& to, CUdeviceptr at, CUarray_format format, unsigned channels, size_t width,
                   size_t height, size_t pitch)
{
    const size_t element = element_bytes(format, channels);
    if (!element || !width || !height || pitch < width * element || !device_may_touch(bytes_at(at)))
        return CUDA_ERROR_INVALID_VALUE;
    to.address = at, to.pitch = pitch, to.slice = pitch * height;
    to.width = uint32_t(width), to.height = uint32_t(height), to.depth = 1;
    return set_format(to, format, channels), CUDA_SUCCESS;
}

CUresult described(rung_texture& to, const CUDA_RESOURCE_DESC& of)
{
    switch (of.resType) {
    case CU_RESOURCE_TYPE_ARRAY: return of_array(to, of.res.array.hArray);
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
        const CUarray one = level_of(of.res.mipmap.hMipmappedArray, 1);
        if (one) return CUDA_ERROR_NOT_SUPPORTED;  // the machine reads one level
        return of_array(to, level_of(of.res.mipmap.hMipmappedArray, 0));
    }
    case CU_RESOURCE_TYPE_LINEAR: {
        const auto& l = of.res.linear;
        const size_t element = element_bytes(l.format, l.numChannels);
        return element ? of_memory(to, l.devPtr, l.format, l.numChannels, l.sizeInBytes / element, 1, l.sizeInBytes)
                       : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
        const auto& p = of.res.pitch2D;
        return of_memory(to, p.devPtr, p.format, p.numChannels, p.width, p.height, p.pitchInBytes);
    }
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

}  // namespace
}  // namespace gpuless

using namespace gpuless;

CUresult cuTexObjectCreate(CUtexObject* object, const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC* texture,
                           const CUDA_RESOURCE_VIEW_DESC* view)
{
    BEGIN("cuTexObjectCreate");
    if (!object || !resource || !texture) return CUDA_ERROR_INVALID_VALUE;
    rung_texture made = {};
    if (const CUresult error = described(made, *resource)) return error;
    for (size_t axis = 0; axis < 3; axis++) made.address_mode[axis] = uint8_t(texture->addressMode[axis]);
    made.filter = uint8_t(texture->filterMode);
    made.normalized = (texture->flags & CU_TRSF_NORMALIZED_COORDINATES) != 0;
    made.reads_normalized = made.kind < 2 && made.channel_bits < 32 && !(texture->flags & CU_TRSF_READ_AS_INTEGER);
    if (made.filter && made.kind < 2 && !made.reads_normalized) return CUDA_ERROR_INVALID_VALUE;
    if (texture->flags & CU_TRSF_SRGB) return CUDA_ERROR_NOT_SUPPORTED;
    std::copy(texture->borderColor, texture->borderColor + 4, made.border);
    *object = rung_machine_add_texture(&made);
    textures[*object] = {*resource, *texture, view ? *view : CUDA_RESOURCE_VIEW_DESC(), view != nullptr};
    return CUDA_SUCCESS;
}
CUresult cuSurfObjectCreate(CUsurfObject* object, const CUDA_RESOURCE_DESC* resource)
{
    BEGIN("cuSurfObjectCreate");
    if (!object || !resource || resource->resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    rung_texture made = {};
    if (const CUresult error = described(made, *resource)) return error;
    *object = rung_machine_add_texture(&made);
    surfaces[*object] = {*resource, {}, {}, false};
    return CUDA_SUCCESS;
}
static CUresult destroy(std::map<unsigned long long, Described>& of, unsigned long long object)
{
    if (!of.count(object)) return CUDA_ERROR_INVALID_VALUE;
    wait_for_all();
    rung_machine_remove_texture(uint32_t(object));
    return of.erase(object), CUDA_SUCCESS;
}
CUresult cuTexObjectDestroy(CUtexObject object)
{
    BEGIN("cuTexObjectDestroy");
    return destroy(textures, object);
}
CUresult cuSurfObjectDestroy(CUsurfObject object)
{
    BEGIN("cuSurfObjectDestroy");
    return destroy(surfaces, object);
}
CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* to, CUtexObject object)
{
    BEGIN("cuTexObjectGetResourceDesc");
    return to && textures.count(object) ? (*to = textures[object].resource, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* to, CUtexObject object)
{
    BEGIN("cuTexObjectGetTextureDesc");
    return to && textures.count(object) ? (*to = textures[object].texture, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* to, CUtexObject object)
{
    BEGIN("cuTexObjectGetResourceViewDesc");
    if (!to || !textures.count(object) || !textures[object].viewed) return CUDA_ERROR_INVALID_VALUE;
    return *to = textures[object].view, CUDA_SUCCESS;
}
CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* to, CUsurfObject object)
{
    BEGIN("cuSurfObjectGetResourceDesc");
    return to && surfaces.count(object) ? (*to = surfaces[object].resource, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
}
