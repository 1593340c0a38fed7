// Arrays, and the textures and surfaces over them.
#include "cudart.h"
#include "copies.h"

namespace cudart {
namespace {

bool driver_format(const cudaChannelFormatDesc& given, CUarray_format* format, unsigned* channels)
{
    *channels = unsigned(given.x > 0) + (given.y > 0) + (given.z > 0) + (given.w > 0);
    if (!*channels) return false;
    const bool is_signed = given.f == cudaChannelFormatKindSigned, is_float = given.f == cudaChannelFormatKindFloat;
    if (!is_signed && !is_float && given.f != cudaChannelFormatKindUnsigned) return false;
    switch (given.x) {
    case 8: *format = is_signed ? CU_AD_FORMAT_SIGNED_INT8 : CU_AD_FORMAT_UNSIGNED_INT8; return !is_float;
    case 16:
        *format = is_float ? CU_AD_FORMAT_HALF : is_signed ? CU_AD_FORMAT_SIGNED_INT16 : CU_AD_FORMAT_UNSIGNED_INT16;
        return true;
    case 32:
        *format = is_float ? CU_AD_FORMAT_FLOAT : is_signed ? CU_AD_FORMAT_SIGNED_INT32 : CU_AD_FORMAT_UNSIGNED_INT32;
        return true;
    default: return false;
    }
}

cudaChannelFormatDesc runtime_format(CUarray_format format, unsigned channels)
{
    const int bits = int(8 * element_bytes(format));
    const auto at = [&](unsigned n) { return channels > n ? bits : 0; };
    const cudaChannelFormatKind kind = format == CU_AD_FORMAT_FLOAT || format == CU_AD_FORMAT_HALF
                                           ? cudaChannelFormatKindFloat
                                       : format & 8 ? cudaChannelFormatKindSigned
                                                    : cudaChannelFormatKindUnsigned;
    return {at(0), at(1), at(2), at(3), kind};
}

cudaError_t driver_array(const cudaChannelFormatDesc* format, cudaExtent extent, unsigned flags,
                         CUDA_ARRAY3D_DESCRIPTOR* made)
{
    *made = {};
    if (!driver_format(*format, &made->Format, &made->NumChannels)) return cudaErrorInvalidChannelDescriptor;
    made->Width = extent.width, made->Height = extent.height, made->Depth = extent.depth;
    made->Flags = flags & (cudaArrayLayered | cudaArraySurfaceLoadStore | cudaArrayCubemap | cudaArrayTextureGather);
    return cudaSuccess;
}

cudaError_t driver_resource(const cudaResourceDesc& given, CUDA_RESOURCE_DESC* made)
{
    *made = {};
    made->resType = CUresourcetype(given.resType), made->flags = given.flags;
    switch (given.resType) {
    case cudaResourceTypeArray: made->res.array.hArray = as<CUarray>(given.res.array.array); return cudaSuccess;
    case cudaResourceTypeMipmappedArray:
        made->res.mipmap.hMipmappedArray = as<CUmipmappedArray>(given.res.mipmap.mipmap);
        return cudaSuccess;
    case cudaResourceTypeLinear: {
        auto& linear = made->res.linear;
        linear.devPtr = address(given.res.linear.devPtr), linear.sizeInBytes = given.res.linear.sizeInBytes;
        return driver_format(given.res.linear.desc, &linear.format, &linear.numChannels)
                   ? cudaSuccess
                   : cudaErrorInvalidChannelDescriptor;
    }
    case cudaResourceTypePitch2D: {
        auto& plane = made->res.pitch2D;
        plane.devPtr = address(given.res.pitch2D.devPtr), plane.pitchInBytes = given.res.pitch2D.pitchInBytes;
        plane.width = given.res.pitch2D.width, plane.height = given.res.pitch2D.height;
        return driver_format(given.res.pitch2D.desc, &plane.format, &plane.numChannels)
                   ? cudaSuccess
                   : cudaErrorInvalidChannelDescriptor;
    }
    default: return cudaErrorInvalidValue;
    }
}

CUDA_TEXTURE_DESC driver_texture(const cudaTextureDesc& given)
{
    CUDA_TEXTURE_DESC made = {};
    for (int i = 0; i < 3; i++) made.addressMode[i] = CUaddress_mode(given.addressMode[i]);
    made.filterMode = CUfilter_mode(given.filterMode), made.mipmapFilterMode = CUfilter_mode(given.mipmapFilterMode);
    made.flags = (given.readMode == cudaReadModeElementType ? CU_TRSF_READ_AS_INTEGER : 0) |
                 (given.normalizedCoords ? CU_TRSF_NORMALIZED_COORDINATES : 0) | (given.sRGB ? CU_TRSF_SRGB : 0) |
                 (given.disableTrilinearOptimization ? CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION : 0) |
                 (given.seamlessCubemap ? CU_TRSF_SEAMLESS_CUBEMAP : 0);
    made.maxAnisotropy = given.maxAnisotropy, made.mipmapLevelBias = given.mipmapLevelBias;
    made.minMipmapLevelClamp = given.minMipmapLevelClamp, made.maxMipmapLevelClamp = given.maxMipmapLevelClamp;
    memcpy(made.borderColor, given.borderColor, sizeof made.borderColor);
    return made;
}

}  // namespace
}  // namespace cudart

using namespace cudart;

EXPORT cudaError_t cudaMalloc3DArray(cudaArray_t* array, const cudaChannelFormatDesc* format, cudaExtent extent,
                                     unsigned flags)
{
    BEGIN;
    CUDA_ARRAY3D_DESCRIPTOR made;
    TRY(driver_array(format, extent, flags, &made));
    ENDED(cuArray3DCreate(reinterpret_cast<CUarray*>(array), &made));
}

EXPORT cudaError_t cudaMallocArray(cudaArray_t* array, const cudaChannelFormatDesc* format, size_t width, size_t height,
                                   unsigned flags)
{
    BEGIN;
    CUDA_ARRAY3D_DESCRIPTOR made;
    TRY(driver_array(format, {width, height, 0}, flags, &made));
    ENDED(cuArray3DCreate(reinterpret_cast<CUarray*>(array), &made));
}

EXPORT cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t* array, const cudaChannelFormatDesc* format,
                                            cudaExtent extent, unsigned levels, unsigned flags)
{
    BEGIN;
    CUDA_ARRAY3D_DESCRIPTOR made;
    TRY(driver_array(format, extent, flags, &made));
    ENDED(cuMipmappedArrayCreate(reinterpret_cast<CUmipmappedArray*>(array), &made, levels));
}

EXPORT cudaError_t cudaGetMipmappedArrayLevel(cudaArray_t* level, cudaMipmappedArray_const_t array, unsigned number)
{
    BEGIN;
    ENDED(cuMipmappedArrayGetLevel(reinterpret_cast<CUarray*>(level), as<CUmipmappedArray>(array), number));
}

EXPORT cudaError_t cudaArrayGetInfo(cudaChannelFormatDesc* format, cudaExtent* extent, unsigned* flags,
                                    cudaArray_t array)
{
    BEGIN;
    CUDA_ARRAY3D_DESCRIPTOR of = {};
    TRY(cuArray3DGetDescriptor(&of, as<CUarray>(array)));
    if (format) *format = runtime_format(of.Format, of.NumChannels);
    if (extent) *extent = {of.Width, of.Height, of.Depth};
    if (flags) *flags = of.Flags;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetChannelDesc(cudaChannelFormatDesc* format, cudaArray_const_t array)
{ ENDED(cudaArrayGetInfo(format, nullptr, nullptr, const_cast<cudaArray_t>(array))); }

EXPORT cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind)
{ return {x, y, z, w, kind}; }

EXPORT cudaError_t cudaCreateTextureObject(cudaTextureObject_t* texture, const cudaResourceDesc* resource,
                                           const cudaTextureDesc* given, const cudaResourceViewDesc* view)
{
    BEGIN;
    CUDA_RESOURCE_DESC made;
    TRY(driver_resource(*resource, &made));
    const CUDA_TEXTURE_DESC how = driver_texture(*given);
    CUDA_RESOURCE_VIEW_DESC seen = {};
    static_assert(sizeof seen == sizeof *view);
    if (view) memcpy(&seen, view, sizeof seen);
    ENDED(cuTexObjectCreate(texture, &made, &how, view ? &seen : nullptr));
}

EXPORT cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t* surface, const cudaResourceDesc* resource)
{
    BEGIN;
    CUDA_RESOURCE_DESC made;
    TRY(driver_resource(*resource, &made));
    ENDED(cuSurfObjectCreate(surface, &made));
}
