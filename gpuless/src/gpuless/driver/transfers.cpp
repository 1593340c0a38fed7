// The interface's copies and sets.
#include "arrays.h"
#include "graphs.h"

#include <string.h>

#include <algorithm>

namespace gpuless {
namespace {

constexpr int HOST = 0, DEVICE = 1, EITHER = -1;

Copy line(CUdeviceptr to, CUdeviceptr from, size_t bytes, int to_device, int from_device)
{
    Copy c = {{bytes_at(to), bytes, bytes}, {bytes_at(from), bytes, bytes}, bytes};
    c.to_device = to_device, c.from_device = from_device;
    return c;
}

// One end of a copy in three dimensions.
struct End
{
    CUmemorytype type;
    const void* host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z, pitch, height;
};
CUresult block_of(const End& e, const CUDA_MEMCPY3D& p, Block3& block, int& device)
{
    const bool rows = p.Height > 1 || p.Depth > 1;
    if (e.type == CU_MEMORYTYPE_ARRAY) {
        if (!is_array(e.array)) return CUDA_ERROR_INVALID_HANDLE;
        const CUarray_st& a = *e.array;
        const size_t height = std::max<size_t>(1, a.of.Height), depth = std::max<size_t>(1, a.of.Depth);
        if (e.x + p.WidthInBytes > a.of.Width * a.element || e.y + p.Height > height || e.z + p.Depth > depth)
            return CUDA_ERROR_INVALID_VALUE;
        block = {a.data + e.z * a.slice + e.y * a.pitch + e.x, a.pitch, a.slice}, device = EITHER;
        return CUDA_SUCCESS;
    }
    const size_t pitch = e.pitch ? e.pitch : p.WidthInBytes, height = e.height ? e.height : p.Height;
    if (rows && pitch < p.WidthInBytes + e.x) return CUDA_ERROR_INVALID_VALUE;
    if (p.Depth > 1 && height < p.Height + e.y) return CUDA_ERROR_INVALID_VALUE;
    char* const base =
        e.type == CU_MEMORYTYPE_HOST ? static_cast<char*>(const_cast<void*>(e.host)) : bytes_at(e.device);
    switch (e.type) {
    case CU_MEMORYTYPE_HOST: device = HOST; break;
    case CU_MEMORYTYPE_DEVICE: device = DEVICE; break;
    case CU_MEMORYTYPE_UNIFIED: device = EITHER; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    block = {base + (e.z * height + e.y) * pitch + e.x, pitch, pitch * height};
    return CUDA_SUCCESS;
}

CUresult copy_of(const CUDA_MEMCPY3D& p, Copy& c)
{
    c.width = p.WidthInBytes, c.height = p.Height, c.depth = p.Depth;
    if (const CUresult error = block_of({p.srcMemoryType, p.srcHost, p.srcDevice, p.srcArray, p.srcXInBytes, p.srcY,
                                         p.srcZ, p.srcPitch, p.srcHeight},
                                        p, c.from, c.from_device))
        return error;
    return block_of(
        {p.dstMemoryType, p.dstHost, p.dstDevice, p.dstArray, p.dstXInBytes, p.dstY, p.dstZ, p.dstPitch, p.dstHeight},
        p, c.to, c.to_device);
}

CUresult copy_3d(const CUDA_MEMCPY3D* p, CUstream stream, bool wait, const Site& site)
{
    Copy c;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult error = copy_of(*p, c)) return error;
    return copy(c, stream, wait, site);
}

CUDA_MEMCPY3D in_three(const CUDA_MEMCPY2D& p)
{
    CUDA_MEMCPY3D q = {};
    q.srcXInBytes = p.srcXInBytes, q.srcY = p.srcY, q.srcMemoryType = p.srcMemoryType, q.srcHost = p.srcHost;
    q.srcDevice = p.srcDevice, q.srcArray = p.srcArray, q.srcPitch = p.srcPitch;
    q.dstXInBytes = p.dstXInBytes, q.dstY = p.dstY, q.dstMemoryType = p.dstMemoryType, q.dstHost = p.dstHost;
    q.dstDevice = p.dstDevice, q.dstArray = p.dstArray, q.dstPitch = p.dstPitch;
    q.WidthInBytes = p.WidthInBytes, q.Height = p.Height, q.Depth = 1;
    return q;
}

CUDA_MEMCPY3D of_peers(const CUDA_MEMCPY3D_PEER& p)
{
    CUDA_MEMCPY3D q = {};
    q.srcXInBytes = p.srcXInBytes, q.srcY = p.srcY, q.srcZ = p.srcZ, q.srcMemoryType = p.srcMemoryType;
    q.srcHost = p.srcHost, q.srcDevice = p.srcDevice, q.srcArray = p.srcArray, q.srcPitch = p.srcPitch;
    q.srcHeight = p.srcHeight, q.dstXInBytes = p.dstXInBytes, q.dstY = p.dstY, q.dstZ = p.dstZ;
    q.dstMemoryType = p.dstMemoryType, q.dstHost = p.dstHost, q.dstDevice = p.dstDevice, q.dstArray = p.dstArray;
    q.dstPitch = p.dstPitch, q.dstHeight = p.dstHeight;
    q.WidthInBytes = p.WidthInBytes, q.Height = p.Height, q.Depth = p.Depth;
    return q;
}

CUDA_MEMCPY3D of_array(CUarray to, size_t to_offset, CUarray from, size_t from_offset, CUdeviceptr device,
                       const void* host, size_t bytes)
{
    CUDA_MEMCPY3D q = {};
    const CUmemorytype other = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    q.srcMemoryType = from ? CU_MEMORYTYPE_ARRAY : other, q.dstMemoryType = to ? CU_MEMORYTYPE_ARRAY : other;
    q.srcArray = from, q.dstArray = to, q.srcXInBytes = from_offset, q.dstXInBytes = to_offset;
    q.srcDevice = q.dstDevice = device, q.srcHost = host, q.dstHost = const_cast<void*>(host);
    q.WidthInBytes = bytes, q.Height = q.Depth = 1;
    return q;
}

}  // namespace

bool refused(const Copy& c, const Site& site);  // copies.cpp

CUresult copying_work(const CUDA_MEMCPY3D& p, Work& work, const Site& site)
{
    Copy c;
    if (const CUresult error = copy_of(p, c)) return error;
    if (refused(c, site)) return CUDA_ERROR_INVALID_VALUE;
    return work = copying(c, site), CUDA_SUCCESS;
}

}  // namespace gpuless

using namespace gpuless;

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    BEGIN("cuMemcpy");
    return copy(line(to, from, bytes, EITHER, EITHER), nullptr, true, site);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    BEGIN("cuMemcpyAsync");
    return copy(line(to, from, bytes, EITHER, EITHER), stream, false, site);
}
CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes)
{
    BEGIN("cuMemcpyPeer");
    return copy(line(to, from, bytes, DEVICE, DEVICE), nullptr, true, site);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream stream)
{
    BEGIN("cuMemcpyPeerAsync");
    return copy(line(to, from, bytes, DEVICE, DEVICE), stream, false, site);
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes)
{
    BEGIN("cuMemcpyHtoD");
    return copy(line(to, device_pointer(from), bytes, DEVICE, HOST), nullptr, true, site);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream)
{
    BEGIN("cuMemcpyHtoDAsync");
    return copy(line(to, device_pointer(from), bytes, DEVICE, HOST), stream, false, site);
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes)
{
    BEGIN("cuMemcpyDtoH");
    return copy(line(device_pointer(to), from, bytes, HOST, DEVICE), nullptr, true, site);
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    BEGIN("cuMemcpyDtoHAsync");
    return copy(line(device_pointer(to), from, bytes, HOST, DEVICE), stream, false, site);
}
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    BEGIN("cuMemcpyDtoD");
    return copy(line(to, from, bytes, DEVICE, DEVICE), nullptr, true, site);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    BEGIN("cuMemcpyDtoDAsync");
    return copy(line(to, from, bytes, DEVICE, DEVICE), stream, false, site);
}
CUresult cuMemcpyDtoA(CUarray to, size_t offset, CUdeviceptr from, size_t bytes)
{
    BEGIN("cuMemcpyDtoA");
    const CUDA_MEMCPY3D p = of_array(to, offset, nullptr, 0, from, nullptr, bytes);
    return copy_3d(&p, nullptr, true, site);
}
CUresult cuMemcpyAtoD(CUdeviceptr to, CUarray from, size_t offset, size_t bytes)
{
    BEGIN("cuMemcpyAtoD");
    const CUDA_MEMCPY3D p = of_array(nullptr, 0, from, offset, to, nullptr, bytes);
    return copy_3d(&p, nullptr, true, site);
}
CUresult cuMemcpyHtoA(CUarray to, size_t offset, const void* from, size_t bytes)
{
    BEGIN("cuMemcpyHtoA");
    const CUDA_MEMCPY3D p = of_array(to, offset, nullptr, 0, 0, from, bytes);
    return copy_3d(&p, nullptr, true, site);
}
CUresult cuMemcpyAtoH(void* to, CUarray from, size_t offset, size_t bytes)
{
    BEGIN("cuMemcpyAtoH");
    const CUDA_MEMCPY3D p = of_array(nullptr, 0, from, offset, 0, to, bytes);
    return copy_3d(&p, nullptr, true, site);
}
CUresult cuMemcpyAtoA(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes)
{
    BEGIN("cuMemcpyAtoA");
    const CUDA_MEMCPY3D p = of_array(to, to_offset, from, from_offset, 0, nullptr, bytes);
    return copy_3d(&p, nullptr, true, site);
}
CUresult cuMemcpyHtoAAsync(CUarray to, size_t offset, const void* from, size_t bytes, CUstream stream)
{
    BEGIN("cuMemcpyHtoAAsync");
    const CUDA_MEMCPY3D p = of_array(to, offset, nullptr, 0, 0, from, bytes);
    return copy_3d(&p, stream, false, site);
}
CUresult cuMemcpyAtoHAsync(void* to, CUarray from, size_t offset, size_t bytes, CUstream stream)
{
    BEGIN("cuMemcpyAtoHAsync");
    const CUDA_MEMCPY3D p = of_array(nullptr, 0, from, offset, 0, to, bytes);
    return copy_3d(&p, stream, false, site);
}
static CUresult copy_2d(const CUDA_MEMCPY2D* p, CUstream stream, bool wait, const Site& site)
{
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMCPY3D q = in_three(*p);
    return copy_3d(&q, stream, wait, site);
}
CUresult cuMemcpy2D(const CUDA_MEMCPY2D* p)
{
    BEGIN("cuMemcpy2D");
    return copy_2d(p, nullptr, true, site);
}
CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* p)
{
    BEGIN("cuMemcpy2DUnaligned");
    return copy_2d(p, nullptr, true, site);
}
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* p, CUstream stream)
{
    BEGIN("cuMemcpy2DAsync");
    return copy_2d(p, stream, false, site);
}
CUresult cuMemcpy3D(const CUDA_MEMCPY3D* p)
{
    BEGIN("cuMemcpy3D");
    return copy_3d(p, nullptr, true, site);
}
CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D* p, CUstream stream)
{
    BEGIN("cuMemcpy3DAsync");
    return copy_3d(p, stream, false, site);
}
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* p)
{
    BEGIN("cuMemcpy3DPeer");
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMCPY3D q = of_peers(*p);
    return copy_3d(&q, nullptr, true, site);
}
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* p, CUstream stream)
{
    BEGIN("cuMemcpy3DPeerAsync");
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMCPY3D q = of_peers(*p);
    return copy_3d(&q, stream, false, site);
}
CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count, CUmemcpyAttributes*,
                            size_t*, size_t, CUstream stream)
{
    BEGIN("cuMemcpyBatchAsync");
    if (!stream) return CUDA_ERROR_INVALID_VALUE;  // neither does a GPU's driver take it
    for (size_t i = 0; i < count; i++)
        if (const CUresult error = copy(line(to[i], from[i], bytes[i], EITHER, EITHER), stream, false, site))
            return error;
    return CUDA_SUCCESS;
}

// A set of memory that the host sees ends before the call returns.
static CUresult fill_and_wait(const Fill& what, const Site& site)
{
    if (const CUresult error = fill(what, nullptr, site)) return error;
    const Allocation* const memory = allocation_at(what.to);
    return memory && memory->kind != Kind::Device && !capturing(nullptr) ? wait_for(nullptr) : CUDA_SUCCESS;
}

#define SET(NAME, TYPE)                                                                                                \
    CUresult NAME(CUdeviceptr to, TYPE value, size_t count)                                                            \
    {                                                                                                                  \
        BEGIN(#NAME);                                                                                                  \
        return fill_and_wait({bytes_at(to), 0, count, 1, sizeof value, value}, site);                                  \
    }                                                                                                                  \
    CUresult NAME##Async(CUdeviceptr to, TYPE value, size_t count, CUstream stream)                                    \
    {                                                                                                                  \
        BEGIN(#NAME "Async");                                                                                          \
        return fill({bytes_at(to), 0, count, 1, sizeof value, value}, stream, site);                                   \
    }
#define SET_2D(NAME, TYPE)                                                                                             \
    CUresult NAME(CUdeviceptr to, size_t pitch, TYPE value, size_t width, size_t height)                               \
    {                                                                                                                  \
        BEGIN(#NAME);                                                                                                  \
        return fill_and_wait({bytes_at(to), pitch, width, height, sizeof value, value}, site);                         \
    }                                                                                                                  \
    CUresult NAME##Async(CUdeviceptr to, size_t pitch, TYPE value, size_t width, size_t height, CUstream stream)       \
    {                                                                                                                  \
        BEGIN(#NAME "Async");                                                                                          \
        return fill({bytes_at(to), pitch, width, height, sizeof value, value}, stream, site);                          \
    }
SET(cuMemsetD8, unsigned char)
SET(cuMemsetD16, unsigned short)
SET(cuMemsetD32, unsigned)
SET_2D(cuMemsetD2D8, unsigned char)
SET_2D(cuMemsetD2D16, unsigned short)
SET_2D(cuMemsetD2D32, unsigned)
