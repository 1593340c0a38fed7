// Memory: what is allocated, copies and sets in one to three dimensions, what a pointer is.
#include "cudart.h"
#include "copies.h"

namespace cudart {

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// The direction that the caller names decides which side is the host's: a wrong one is the driver's to find.
CUresult copy_line(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, CUstream stream, bool wait)
{
    if (!bytes) return CUDA_SUCCESS;
    CUresult error = CUDA_ERROR_INVALID_VALUE;
    switch (kind) {
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
        error = wait && !stream ? cuMemcpy(address(to), address(from), bytes)
                                : cuMemcpyAsync(address(to), address(from), bytes, stream);
        break;
    case cudaMemcpyHostToDevice:
        error = wait && !stream ? cuMemcpyHtoD(address(to), from, bytes)
                                : cuMemcpyHtoDAsync(address(to), from, bytes, stream);
        break;
    case cudaMemcpyDeviceToHost:
        error = wait && !stream ? cuMemcpyDtoH(to, address(from), bytes)
                                : cuMemcpyDtoHAsync(to, address(from), bytes, stream);
        break;
    case cudaMemcpyDeviceToDevice:
        error = wait && !stream ? cuMemcpyDtoD(address(to), address(from), bytes)
                                : cuMemcpyDtoDAsync(address(to), address(from), bytes, stream);
        break;
    default: return CUresult(cudaErrorInvalidMemcpyDirection);
    }
    return error || !wait || !stream ? error : cuStreamSynchronize(stream);
}

namespace {

CUmemorytype side(cudaMemcpyKind kind, bool source)
{
    switch (kind) {
    case cudaMemcpyHostToHost: return CU_MEMORYTYPE_HOST;
    case cudaMemcpyHostToDevice: return source ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    case cudaMemcpyDeviceToHost: return source ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    case cudaMemcpyDeviceToDevice: return CU_MEMORYTYPE_DEVICE;
    default: return CU_MEMORYTYPE_UNIFIED;
    }
}

size_t element_of(CUarray array)
{
    CUDA_ARRAY3D_DESCRIPTOR of = {};
    return array && !cuArray3DGetDescriptor(&of, array) ? element_bytes(of.Format) * of.NumChannels : 1;
}

}  // namespace

size_t element_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    default: return 4;
    }
}

// Where an array takes part, positions and extents count its elements.
CUDA_MEMCPY3D driver_copy(const cudaMemcpy3DParms& given)
{
    const auto from_array = reinterpret_cast<CUarray>(given.srcArray),
               to_array = reinterpret_cast<CUarray>(given.dstArray);
    const size_t element = element_of(from_array ? from_array : to_array);
    CUDA_MEMCPY3D made = {};
    made.srcXInBytes = given.srcPos.x * (from_array ? element : 1), made.srcY = given.srcPos.y,
    made.srcZ = given.srcPos.z;
    made.dstXInBytes = given.dstPos.x * (to_array ? element : 1), made.dstY = given.dstPos.y,
    made.dstZ = given.dstPos.z;
    made.srcMemoryType = from_array ? CU_MEMORYTYPE_ARRAY : side(given.kind, true);
    made.dstMemoryType = to_array ? CU_MEMORYTYPE_ARRAY : side(given.kind, false);
    made.srcHost = given.srcPtr.ptr, made.srcDevice = address(given.srcPtr.ptr), made.srcArray = from_array;
    made.dstHost = given.dstPtr.ptr, made.dstDevice = address(given.dstPtr.ptr), made.dstArray = to_array;
    made.srcPitch = given.srcPtr.pitch, made.srcHeight = given.srcPtr.ysize;
    made.dstPitch = given.dstPtr.pitch, made.dstHeight = given.dstPtr.ysize;
    made.WidthInBytes = given.extent.width * (from_array || to_array ? element : 1);
    made.Height = given.extent.height, made.Depth = given.extent.depth;
    return made;
}

CUDA_MEMCPY3D line_copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind)
{
    cudaMemcpy3DParms given = {};
    given.srcPtr = {const_cast<void*>(from), bytes, bytes, 1}, given.dstPtr = {to, bytes, bytes, 1};
    given.extent = {bytes, 1, 1}, given.kind = kind;
    return driver_copy(given);
}

namespace {

// A copy in two or three dimensions.
CUresult copy(const CUDA_MEMCPY3D& given, CUstream stream, bool wait)
{
    if (!given.WidthInBytes || !given.Height || !given.Depth) return CUDA_SUCCESS;
    if (wait && !stream) return cuMemcpy3D(&given);
    const CUresult error = cuMemcpy3DAsync(&given, stream);
    return error || !wait ? error : cuStreamSynchronize(stream);
}

struct Plane  // one side of a copy in two dimensions
{
    const void* pointer = nullptr;
    size_t pitch = 0;
    const void* array = nullptr;
    size_t x = 0, y = 0;  // in an array: x in bytes
};

CUresult copy(Plane to, Plane from, size_t width, size_t height, cudaMemcpyKind kind, CUstream stream, bool wait)
{
    if (!from.array && from.pitch < width && height > 1) return CUresult(cudaErrorInvalidPitchValue);
    if (!to.array && to.pitch < width && height > 1) return CUresult(cudaErrorInvalidPitchValue);
    CUDA_MEMCPY3D made = {};
    made.srcMemoryType = from.array ? CU_MEMORYTYPE_ARRAY : side(kind, true);
    made.dstMemoryType = to.array ? CU_MEMORYTYPE_ARRAY : side(kind, false);
    made.srcHost = from.pointer, made.srcDevice = address(from.pointer), made.srcArray = as<CUarray>(from.array);
    made.dstHost = const_cast<void*>(to.pointer), made.dstDevice = address(to.pointer),
    made.dstArray = as<CUarray>(to.array);
    made.srcPitch = from.pitch, made.srcXInBytes = from.x, made.srcY = from.y;
    made.dstPitch = to.pitch, made.dstXInBytes = to.x, made.dstY = to.y;
    made.WidthInBytes = width, made.Height = height, made.Depth = 1;
    return copy(made, stream, wait);
}

// An array is filled or read in the order of its rows: `bytes` from a place in it.
template <bool To>
CUresult copy_rows(const void* array, size_t x, size_t y, const void* pointer, size_t bytes, cudaMemcpyKind kind,
                   CUstream stream, bool wait)
{
    CUDA_ARRAY3D_DESCRIPTOR of = {};
    if (const CUresult error = cuArray3DGetDescriptor(&of, as<CUarray>(array))) return error;
    const size_t row = of.Width * element_bytes(of.Format) * of.NumChannels;
    for (const char* at = static_cast<const char*>(pointer); bytes; x = 0) {
        const bool whole = !x && bytes >= row;
        const size_t rows = whole ? bytes / row : 1, width = whole ? row : bytes < row - x ? bytes : row - x;
        const Plane held = {nullptr, 0, array, x, y}, plain = {at, width};
        if (const CUresult error = copy(To ? held : plain, To ? plain : held, width, rows, kind, stream, wait))
            return error;
        at += width * rows, bytes -= width * rows, y += rows;
    }
    return CUDA_SUCCESS;
}

CUresult set(void* to, size_t pitch, int value, size_t width, size_t height, CUstream stream, bool wait)
{
    if (!width || !height) return CUDA_SUCCESS;
    const auto byte = static_cast<unsigned char>(value);
    if (wait && !stream)
        return height == 1 ? cuMemsetD8(address(to), byte, width)
                           : cuMemsetD2D8(address(to), pitch, byte, width, height);
    return height == 1 ? cuMemsetD8Async(address(to), byte, width, stream)
                       : cuMemsetD2D8Async(address(to), pitch, byte, width, height, stream);
}

CUresult set(cudaPitchedPtr to, int value, cudaExtent extent, CUstream stream, bool wait)
{
    for (size_t z = 0; z < extent.depth; z++)
        if (const CUresult error = set(static_cast<char*>(to.ptr) + z * to.pitch * to.ysize, to.pitch, value,
                                       extent.width, extent.height, stream, wait))
            return error;
    return CUDA_SUCCESS;
}

// Where a part of a variable lies, if it is a part.
cudaError_t part_of(const void* symbol, size_t bytes, size_t offset, void** part)
{
    CUdeviceptr at;
    size_t size;
    if (const cudaError_t error = variable_of(symbol, &at, &size)) return error;
    *part = reinterpret_cast<void*>(at + offset);
    if (offset <= size && bytes <= size - offset) return cudaSuccess;
    tell_misuse("copy", "touches " + std::to_string(bytes) + " bytes from byte " + std::to_string(offset) +
                            " of a variable of " + std::to_string(size));
    return cudaErrorInvalidValue;
}

cudaError_t copy_to_symbol(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind,
                           CUstream stream, bool wait)
{
    void* to;
    if (const cudaError_t error = part_of(symbol, bytes, offset, &to)) return error;
    return cudaError_t(copy_line(to, from, bytes, kind, stream, wait));
}

cudaError_t copy_from_symbol(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind,
                             CUstream stream, bool wait)
{
    void* from;
    if (const cudaError_t error = part_of(symbol, bytes, offset, &from)) return error;
    return cudaError_t(copy_line(to, from, bytes, kind, stream, wait));
}

}  // namespace
}  // namespace cudart

using namespace cudart;

// ---- allocation

EXPORT cudaError_t cudaMalloc(void** pointer, size_t bytes)
{
    BEGIN;
    if (!bytes) return *pointer = nullptr, cudaSuccess;
    ENDED(cuMemAlloc(reinterpret_cast<CUdeviceptr*>(pointer), bytes));
}
EXPORT cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags)
{
    BEGIN;
    if (!bytes) ENDED(cudaErrorInvalidValue);
    ENDED(cuMemAllocManaged(reinterpret_cast<CUdeviceptr*>(pointer), bytes, flags));
}
EXPORT cudaError_t cudaMallocHost(void** pointer, size_t bytes)
{
    BEGIN;
    if (!bytes) return *pointer = nullptr, cudaSuccess;
    ENDED(cuMemHostAlloc(pointer, bytes, CU_MEMHOSTALLOC_PORTABLE));
}
EXPORT cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height)
{
    BEGIN;
    if (!width || !height) return *pointer = nullptr, *pitch = 0, cudaSuccess;
    ENDED(cuMemAllocPitch(reinterpret_cast<CUdeviceptr*>(pointer), pitch, width, height, 4));
}
EXPORT cudaError_t cudaMalloc3D(cudaPitchedPtr* pointer, cudaExtent extent)
{
    *pointer = {nullptr, 0, extent.width, extent.height};
    ENDED(cudaMallocPitch(&pointer->ptr, &pointer->pitch, extent.width, extent.height * extent.depth));
}
EXPORT cudaError_t cudaFree(void* pointer)
{
    BEGIN;
    if (!pointer) return cudaSuccess;
    ENDED(cuMemFree(address(pointer)));
}
EXPORT cudaError_t cudaFreeHost(void* pointer)
{
    BEGIN;
    if (!pointer) return cudaSuccess;
    ENDED(cuMemFreeHost(pointer));
}

EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer)
{
    BEGIN;
    memset(attributes, 0, sizeof *attributes);
    attributes->device = -2;
    unsigned type = 0, managed = 0;
    int of = 0;
    if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(pointer)) || !type) {
        attributes->hostPointer = const_cast<void*>(pointer);
        return cudaSuccess;
    }
    cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address(pointer));
    cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address(pointer));
    cuPointerGetAttribute(&attributes->devicePointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address(pointer));
    if (cuPointerGetAttribute(&attributes->hostPointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, address(pointer)))
        attributes->hostPointer = nullptr;
    attributes->type = managed ? cudaMemoryTypeManaged : cudaMemoryType(type), attributes->device = of;
    return cudaSuccess;
}

// ---- copies: each also under the name that `--default-stream per-thread` gives it

#define PARAMETERS(...) __VA_ARGS__
#define ARGUMENTS(...) __VA_ARGS__
#define WAITING(name, parameters, call)                                                                                \
    EXPORT cudaError_t name(parameters)                                                                                \
    {                                                                                                                  \
        const CUstream stream = nullptr;                                                                               \
        constexpr bool wait = true;                                                                                    \
        BEGIN;                                                                                                         \
        ENDED(call);                                                                                                   \
    }                                                                                                                  \
    EXPORT cudaError_t name##_ptds(parameters)                                                                         \
    {                                                                                                                  \
        const CUstream stream = CU_STREAM_PER_THREAD;                                                                  \
        constexpr bool wait = true;                                                                                    \
        BEGIN;                                                                                                         \
        ENDED(call);                                                                                                   \
    }
#define QUEUED(name, parameters, call)                                                                                 \
    EXPORT cudaError_t name(parameters, cudaStream_t stream)                                                           \
    {                                                                                                                  \
        constexpr bool wait = false;                                                                                   \
        BEGIN;                                                                                                         \
        ENDED(call);                                                                                                   \
    }                                                                                                                  \
    EXPORT cudaError_t name##_ptsz(parameters, cudaStream_t queue)                                                     \
    {                                                                                                                  \
        const CUstream stream = streamed<true>(queue);                                                                 \
        constexpr bool wait = false;                                                                                   \
        BEGIN;                                                                                                         \
        ENDED(call);                                                                                                   \
    }
#define BOTH(name, parameters, call)                                                                                   \
    WAITING(name, ARGUMENTS(parameters), ARGUMENTS(call))                                                              \
    QUEUED(name##Async, ARGUMENTS(parameters), ARGUMENTS(call))

BOTH(cudaMemcpy, PARAMETERS(void* to, const void* from, size_t bytes, cudaMemcpyKind kind),
     copy_line(to, from, bytes, kind, stream, wait))
BOTH(cudaMemcpy2D,
     PARAMETERS(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                cudaMemcpyKind kind),
     copy(Plane{to, to_pitch}, Plane{from, from_pitch}, width, height, kind, stream, wait))
BOTH(cudaMemcpy2DToArray,
     PARAMETERS(cudaArray_t to, size_t x, size_t y, const void* from, size_t pitch, size_t width, size_t height,
                cudaMemcpyKind kind),
     copy(Plane{nullptr, 0, to, x, y}, Plane{from, pitch}, width, height, kind, stream, wait))
BOTH(cudaMemcpy2DFromArray,
     PARAMETERS(void* to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t width, size_t height,
                cudaMemcpyKind kind),
     copy(Plane{to, pitch}, Plane{nullptr, 0, from, x, y}, width, height, kind, stream, wait))
WAITING(cudaMemcpy2DArrayToArray,
        PARAMETERS(cudaArray_t to, size_t to_x, size_t to_y, cudaArray_const_t from, size_t from_x, size_t from_y,
                   size_t width, size_t height, cudaMemcpyKind kind),
        copy(Plane{nullptr, 0, to, to_x, to_y}, Plane{nullptr, 0, from, from_x, from_y}, width, height, kind, stream,
             wait))
BOTH(cudaMemcpyToArray,
     PARAMETERS(cudaArray_t to, size_t x, size_t y, const void* from, size_t bytes, cudaMemcpyKind kind),
     copy_rows<true>(to, x, y, from, bytes, kind, stream, wait))
BOTH(cudaMemcpyFromArray,
     PARAMETERS(void* to, cudaArray_const_t from, size_t x, size_t y, size_t bytes, cudaMemcpyKind kind),
     copy_rows<false>(from, x, y, to, bytes, kind, stream, wait))
BOTH(cudaMemcpy3D, PARAMETERS(const cudaMemcpy3DParms* given), copy(driver_copy(*given), stream, wait))
BOTH(cudaMemcpyToSymbol,
     PARAMETERS(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind),
     copy_to_symbol(symbol, from, bytes, offset, kind, stream, wait))
BOTH(cudaMemcpyFromSymbol, PARAMETERS(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind),
     copy_from_symbol(to, symbol, bytes, offset, kind, stream, wait))
BOTH(cudaMemset, PARAMETERS(void* to, int value, size_t bytes), set(to, bytes, value, bytes, 1, stream, wait))
BOTH(cudaMemset2D, PARAMETERS(void* to, size_t pitch, int value, size_t width, size_t height),
     set(to, pitch, value, width, height, stream, wait))
BOTH(cudaMemset3D, PARAMETERS(cudaPitchedPtr to, int value, cudaExtent extent), set(to, value, extent, stream, wait))

EXPORT cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes)
{
    BEGIN;
    ENDED(copy_line(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr, true));
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream)
{
    BEGIN;
    ENDED(copy_line(to, from, bytes, cudaMemcpyDeviceToDevice, stream, false));
}

// ---- advice: where managed memory lies is of no consequence here, but the driver judges the arguments

namespace {
cudaError_t prefetch(const void* at, size_t bytes, CUmemLocation to, unsigned flags, CUstream stream)
{ return cudaError_t(cuMemPrefetchAsync(address(at), bytes, to, flags, stream)); }
cudaError_t advise(const void* at, size_t bytes, cudaMemoryAdvise advice, CUmemLocation where)
{ return cudaError_t(cuMemAdvise(address(at), bytes, CUmem_advise(advice), where)); }
}  // namespace

#define LABELLED(name, label, parameters, call)                                                                        \
    EXPORT cudaError_t name(parameters) __asm__(label);                                                                \
    cudaError_t name(parameters)                                                                                       \
    {                                                                                                                  \
        BEGIN;                                                                                                         \
        ENDED(call);                                                                                                   \
    }
#if CUDART == 13
#define NEWER ""
#else
#define NEWER "_v2"
namespace {
CUmemLocation place(int device)
{
    CUmemLocation location = {};
    location.type = device == cudaCpuDeviceId ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device < 0 ? 0 : device;
    return location;
}
}  // namespace
LABELLED(prefetch_to, "cudaMemPrefetchAsync", PARAMETERS(const void* at, size_t bytes, int to, cudaStream_t stream),
         prefetch(at, bytes, place(to), 0, stream))
LABELLED(prefetch_to_ptsz, "cudaMemPrefetchAsync_ptsz",
         PARAMETERS(const void* at, size_t bytes, int to, cudaStream_t stream),
         prefetch(at, bytes, place(to), 0, streamed<true>(stream)))
LABELLED(advise_of, "cudaMemAdvise", PARAMETERS(const void* at, size_t bytes, cudaMemoryAdvise advice, int where),
         advise(at, bytes, advice, place(where)))
#endif
LABELLED(prefetch_of, "cudaMemPrefetchAsync" NEWER,
         PARAMETERS(const void* at, size_t bytes, cudaMemLocation to, unsigned flags, cudaStream_t stream),
         prefetch(at, bytes, as<CUmemLocation>(to), flags, stream))
LABELLED(prefetch_of_ptsz, "cudaMemPrefetchAsync" NEWER "_ptsz",
         PARAMETERS(const void* at, size_t bytes, cudaMemLocation to, unsigned flags, cudaStream_t stream),
         prefetch(at, bytes, as<CUmemLocation>(to), flags, streamed<true>(stream)))
LABELLED(advise_at, "cudaMemAdvise" NEWER,
         PARAMETERS(const void* at, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation where),
         advise(at, bytes, advice, as<CUmemLocation>(where)))

EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream)
{
    BEGIN;
    ENDED(cuStreamCreate(stream, CU_STREAM_DEFAULT));
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event)
{
    BEGIN;
    ENDED(cuEventCreate(event, CU_EVENT_DEFAULT));
}
