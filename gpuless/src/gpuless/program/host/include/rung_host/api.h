// The CUDA runtime's host functions, as far as host/*.cpp implement them. Functions that may be at fault also take the
// place of their call.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "errors.h"

using rung_emulator::here;
using RungSite = rung_emulator::Site;

#define RUNG_HOST __attribute__((visibility("default")))
#define CUDARTAPI
#define CUDART_VERSION 13000

// CUDA's own types and constants; handles point to what this library makes.
#define __VECTOR_TYPES_H__
#define __HOST_DEFINES_H__
#define __device_builtin__
#define CUstream_st RungStream
#define CUevent_st RungEvent
#define CUgraph_st RungGraph
#define CUgraphExec_st RungGraphExec
#define CUgraphNode_st RungNode
#define CUmemPoolHandle_st RungPool
#define CUfunc_st RungFunction
#define cudaDeviceProp RungDeviceProp
#include "rung_cuda/driver_types.h"
#include "rung_cuda/library_types.h"
#include "rung_cuda/surface_types.h"
#include "rung_cuda/texture_types.h"
#undef cudaDeviceProp
typedef void (*cudaStreamCallback_t)(cudaStream_t, cudaError_t, void*);
struct cudaDeviceProp : RungDeviceProp  // with what CUDA 13 has no longer
{
    int clockRate, deviceOverlap, kernelExecTimeoutEnabled, computeMode, memoryClockRate, singleToDoublePrecisionPerfRatio, cooperativeMultiDeviceLaunch;
};
inline cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) { return {x, y, z, w, kind}; }
#include "rung_cuda/channel_descriptor.h"
inline cudaExtent make_cudaExtent(size_t w, size_t h, size_t d) { return {w, h, d}; }
inline cudaPos make_cudaPos(size_t x, size_t y, size_t z) { return {x, y, z}; }
inline cudaPitchedPtr make_cudaPitchedPtr(void* pointer, size_t pitch, size_t width, size_t height) { return {pointer, pitch, width, height}; }

extern "C++" {
// ---- errors -----------------------------------------------------------------------------------------------------
RUNG_HOST cudaError_t cudaGetLastError();
RUNG_HOST cudaError_t cudaPeekAtLastError();
RUNG_HOST const char* cudaGetErrorString(cudaError_t error);
RUNG_HOST const char* cudaGetErrorName(cudaError_t error);

// ---- memory -----------------------------------------------------------------------------------------------------
RUNG_HOST cudaError_t cudaMalloc(void** pointer, size_t bytes, RungSite site = here());
RUNG_HOST cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags = cudaMemAttachGlobal, RungSite site = here());
RUNG_HOST cudaError_t cudaMallocHost(void** pointer, size_t bytes, unsigned flags = 0, RungSite site = here());
RUNG_HOST cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags, RungSite site = here());
RUNG_HOST cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height, RungSite site = here());
RUNG_HOST cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream, RungSite site = here());
RUNG_HOST cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream, RungSite site = here());
RUNG_HOST cudaError_t cudaFree(void* pointer, RungSite site = here());
RUNG_HOST cudaError_t cudaFreeHost(void* pointer, RungSite site = here());
RUNG_HOST cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream, RungSite site = here());
RUNG_HOST cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags, RungSite site = here());
RUNG_HOST cudaError_t cudaHostUnregister(void* pointer, RungSite site = here());
RUNG_HOST cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags, RungSite site = here());
RUNG_HOST cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
RUNG_HOST cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);
RUNG_HOST cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, RungSite site = here());
RUNG_HOST cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = 0, RungSite site = here());
RUNG_HOST cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes, RungSite site = here());
RUNG_HOST cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream = 0, RungSite site = here());
RUNG_HOST cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                                   cudaMemcpyKind kind, RungSite site = here());
RUNG_HOST cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                                        cudaMemcpyKind kind, cudaStream_t stream = 0, RungSite site = here());
RUNG_HOST cudaError_t cudaMalloc3D(cudaPitchedPtr* pointer, cudaExtent extent, RungSite site = here());
RUNG_HOST cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* copy, RungSite site = here());
RUNG_HOST cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* copy, cudaStream_t stream = 0, RungSite site = here());
RUNG_HOST cudaError_t cudaMemset3D(cudaPitchedPtr to, int value, cudaExtent extent, RungSite site = here());
RUNG_HOST cudaError_t cudaMemset(void* to, int value, size_t bytes, RungSite site = here());
RUNG_HOST cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = 0, RungSite site = here());
RUNG_HOST cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height, RungSite site = here());
RUNG_HOST cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, int device, cudaStream_t stream = 0);
RUNG_HOST cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, cudaMemLocation place, unsigned flags, cudaStream_t stream = 0);
RUNG_HOST cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice, int device);
RUNG_HOST cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice, cudaMemLocation place);
RUNG_HOST cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device);
RUNG_HOST cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device);
RUNG_HOST cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties);
RUNG_HOST cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool);
RUNG_HOST cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
RUNG_HOST cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep);

// ---- the device -------------------------------------------------------------------------------------------------
RUNG_HOST cudaError_t cudaDeviceSynchronize();
RUNG_HOST cudaError_t cudaDeviceReset();
RUNG_HOST cudaError_t cudaSetDevice(int device);
RUNG_HOST cudaError_t cudaGetDevice(int* device);
RUNG_HOST cudaError_t cudaGetDeviceCount(int* count);
RUNG_HOST cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp* wanted);
RUNG_HOST cudaError_t cudaSetDeviceFlags(unsigned flags);
RUNG_HOST cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
RUNG_HOST cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
RUNG_HOST cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value);
RUNG_HOST cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit);
RUNG_HOST cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache config);
RUNG_HOST cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig config);
RUNG_HOST cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* config);
RUNG_HOST cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config);
RUNG_HOST cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
RUNG_HOST cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
RUNG_HOST cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
RUNG_HOST cudaError_t cudaDriverGetVersion(int* version);
RUNG_HOST cudaError_t cudaRuntimeGetVersion(int* version);
RUNG_HOST cudaError_t cudaProfilerStart();
RUNG_HOST cudaError_t cudaProfilerStop();
RUNG_HOST cudaError_t cudaCtxResetPersistingL2Cache();
inline cudaError_t cudaThreadSynchronize() { return cudaDeviceSynchronize(); }
inline cudaError_t cudaThreadExit() { return cudaDeviceReset(); }

// ---- streams and events -------------------------------------------------------------------------------------------
RUNG_HOST cudaError_t cudaStreamCreate(cudaStream_t* stream);
RUNG_HOST cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
RUNG_HOST cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
RUNG_HOST cudaError_t cudaStreamDestroy(cudaStream_t stream);
RUNG_HOST cudaError_t cudaStreamSynchronize(cudaStream_t stream);
RUNG_HOST cudaError_t cudaStreamQuery(cudaStream_t stream);
RUNG_HOST cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
RUNG_HOST cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority);
RUNG_HOST cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags);
RUNG_HOST cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID id, const cudaStreamAttrValue* value);
RUNG_HOST cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* pointer, size_t length = 0, unsigned flags = cudaMemAttachSingle);
RUNG_HOST cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned flags);
RUNG_HOST cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data);
RUNG_HOST cudaError_t cudaEventCreate(cudaEvent_t* event);
RUNG_HOST cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned flags);
RUNG_HOST cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
RUNG_HOST cudaError_t cudaEventDestroy(cudaEvent_t event);
RUNG_HOST cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = 0);
RUNG_HOST cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream = 0, unsigned flags = 0);
RUNG_HOST cudaError_t cudaEventSynchronize(cudaEvent_t event);
RUNG_HOST cudaError_t cudaEventQuery(cudaEvent_t event);
RUNG_HOST cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);

// ---- graphs -----------------------------------------------------------------------------------------------------
RUNG_HOST cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal);
RUNG_HOST cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
RUNG_HOST cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
RUNG_HOST cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags);
RUNG_HOST cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
RUNG_HOST cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, cudaGraphNode_t* error, char* log, size_t room);
RUNG_HOST cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
RUNG_HOST cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, void* result);
RUNG_HOST cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
RUNG_HOST cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
RUNG_HOST cudaError_t cudaGraphDestroy(cudaGraph_t graph);
RUNG_HOST cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
RUNG_HOST cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
RUNG_HOST cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                                             const cudaKernelNodeParams* kernel, RungSite site = here());
RUNG_HOST cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, void* to,
                                               const void* from, size_t bytes, cudaMemcpyKind kind, RungSite site = here());
RUNG_HOST cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                                             const cudaMemcpy3DParms* copy, RungSite site = here());
RUNG_HOST cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph);
RUNG_HOST cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
RUNG_HOST cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                                             const cudaMemsetParams* set, RungSite site = here());
RUNG_HOST cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                                           const cudaHostNodeParams* host);
RUNG_HOST cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count);
}

RUNG_HOST bool rung_host_at_once();  // from now on work of streams runs when it is issued: the host reads device memory

template <class T> cudaError_t cudaMalloc(T** pointer, size_t bytes, RungSite site = here()) { return cudaMalloc((void**)pointer, bytes, site); }
template <class T>
cudaError_t cudaMallocManaged(T** pointer, size_t bytes, unsigned flags = cudaMemAttachGlobal, RungSite site = here())
{
    return cudaMallocManaged((void**)pointer, bytes, flags, site);
}
template <class T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes, unsigned flags = 0, RungSite site = here())
{
    return cudaMallocHost((void**)pointer, bytes, flags, site);
}
template <class T>
cudaError_t cudaHostAlloc(T** pointer, size_t bytes, unsigned flags, RungSite site = here())
{
    return cudaHostAlloc((void**)pointer, bytes, flags, site);
}
template <class T>
cudaError_t cudaMallocPitch(T** pointer, size_t* pitch, size_t width, size_t height, RungSite site = here())
{
    return cudaMallocPitch((void**)pointer, pitch, width, height, site);
}
template <class T>
cudaError_t cudaMallocAsync(T** pointer, size_t bytes, cudaStream_t stream, RungSite site = here())
{
    return cudaMallocAsync((void**)pointer, bytes, stream, site);
}
template <class T>
cudaError_t cudaMallocFromPoolAsync(T** pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream, RungSite site = here())
{
    return cudaMallocFromPoolAsync((void**)pointer, bytes, pool, stream, site);
}
template <class T>
cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned flags, RungSite site = here())
{
    return cudaHostGetDevicePointer((void**)device, host, flags, site);
}
#define cudaGetDeviceProperties_v2 cudaGetDeviceProperties
