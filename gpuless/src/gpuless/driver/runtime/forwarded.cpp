// Functions of the runtime that are the driver's by another name: arguments and errors have the same values.
#include "cudart.h"

using namespace cudart;

namespace {
template <class F>
struct Caller;
template <class... R>
struct Caller<cudaError_t(R...)>
{
    template <auto Driver, bool Thread, class Name>
    static cudaError_t call(R... given)
    { return Forward<Driver, cudaError_t(R...), Thread>::call(Name::text, SITE, given...); }
};
}  // namespace

// The name is bound, when the library is loaded, to the forwarding function of its type. (The function's label is its
// name: a declaration of the header's own would repeat its default arguments.)
#define BOUND(name, type, driver, thread)                                                                              \
    namespace {                                                                                                        \
    struct name##_                                                                                                     \
    { static constexpr const char* text = #name; };                                                                    \
    }                                                                                                                  \
    extern "C" {                                                                                                       \
    __attribute__((used)) static type* bind_##name() { return &Caller<type>::call<driver, thread, name##_>; }          \
    __attribute__((visibility("default"), ifunc("bind_" #name))) type label_##name __asm__(#name);                     \
    }
#define FORWARD(name, driver) BOUND(name, decltype(::name), driver, false)
#define STREAM(name, driver) FORWARD(name, driver) BOUND(name##_ptsz, decltype(::name), driver, true)

// Devices
FORWARD(cudaDeviceSynchronize, cuCtxSynchronize)
FORWARD(cudaDeviceGetCacheConfig, cuCtxGetCacheConfig)
FORWARD(cudaDeviceSetCacheConfig, cuCtxSetCacheConfig)
FORWARD(cudaDeviceGetStreamPriorityRange, cuCtxGetStreamPriorityRange)
FORWARD(cudaDeviceGetByPCIBusId, cuDeviceGetByPCIBusId)
FORWARD(cudaDeviceGetPCIBusId, cuDeviceGetPCIBusId)
FORWARD(cudaDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool)
FORWARD(cudaDeviceSetMemPool, cuDeviceSetMemPool)
FORWARD(cudaDeviceGetMemPool, cuDeviceGetMemPool)
FORWARD(cudaDeviceGetP2PAttribute, cuDeviceGetP2PAttribute)
FORWARD(cudaDeviceCanAccessPeer, cuDeviceCanAccessPeer)
FORWARD(cudaCtxResetPersistingL2Cache, cuCtxResetPersistingL2Cache)
FORWARD(cudaDeviceGraphMemTrim, cuDeviceGraphMemTrim)
FORWARD(cudaDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute)
FORWARD(cudaDeviceSetGraphMemAttribute, cuDeviceSetGraphMemAttribute)
FORWARD(cudaDeviceFlushGPUDirectRDMAWrites, cuFlushGPUDirectRDMAWrites)
FORWARD(cudaIpcGetEventHandle, cuIpcGetEventHandle)
FORWARD(cudaIpcOpenEventHandle, cuIpcOpenEventHandle)
FORWARD(cudaIpcGetMemHandle, cuIpcGetMemHandle)
FORWARD(cudaIpcOpenMemHandle, cuIpcOpenMemHandle)
FORWARD(cudaIpcCloseMemHandle, cuIpcCloseMemHandle)

// Streams and events
FORWARD(cudaStreamCreateWithFlags, cuStreamCreate)
FORWARD(cudaStreamCreateWithPriority, cuStreamCreateWithPriority)
FORWARD(cudaStreamDestroy, cuStreamDestroy)
STREAM(cudaStreamGetPriority, cuStreamGetPriority)
STREAM(cudaStreamGetFlags, cuStreamGetFlags)
STREAM(cudaStreamGetId, cuStreamGetId)
STREAM(cudaStreamGetDevice, cuStreamGetDevice)
STREAM(cudaStreamCopyAttributes, cuStreamCopyAttributes)
STREAM(cudaStreamGetAttribute, cuStreamGetAttribute)
STREAM(cudaStreamSetAttribute, cuStreamSetAttribute)
STREAM(cudaStreamWaitEvent, cuStreamWaitEvent)
STREAM(cudaStreamAddCallback, cuStreamAddCallback)
STREAM(cudaStreamSynchronize, cuStreamSynchronize)
STREAM(cudaStreamQuery, cuStreamQuery)
STREAM(cudaStreamAttachMemAsync, cuStreamAttachMemAsync)
STREAM(cudaStreamBeginCapture, cuStreamBeginCapture)
STREAM(cudaStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph)
FORWARD(cudaThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode)
STREAM(cudaStreamEndCapture, cuStreamEndCapture)
STREAM(cudaStreamIsCapturing, cuStreamIsCapturing)
STREAM(cudaLaunchHostFunc, cuLaunchHostFunc)
FORWARD(cudaEventCreateWithFlags, cuEventCreate)
STREAM(cudaEventRecord, cuEventRecord)
STREAM(cudaEventRecordWithFlags, cuEventRecordWithFlags)
FORWARD(cudaEventQuery, cuEventQuery)
FORWARD(cudaEventSynchronize, cuEventSynchronize)
FORWARD(cudaEventDestroy, cuEventDestroy)
FORWARD(cudaEventElapsedTime, cuEventElapsedTime)

// Memory
FORWARD(cudaHostAlloc, cuMemHostAlloc)
FORWARD(cudaHostRegister, cuMemHostRegister)
FORWARD(cudaHostUnregister, cuMemHostUnregister)
FORWARD(cudaHostGetDevicePointer, cuMemHostGetDevicePointer)
FORWARD(cudaHostGetFlags, cuMemHostGetFlags)
FORWARD(cudaMemGetInfo, cuMemGetInfo)
FORWARD(cudaFreeArray, cuArrayDestroy)
FORWARD(cudaFreeMipmappedArray, cuMipmappedArrayDestroy)
FORWARD(cudaArrayGetPlane, cuArrayGetPlane)
FORWARD(cudaMemRangeGetAttribute, cuMemRangeGetAttribute)
FORWARD(cudaMemRangeGetAttributes, cuMemRangeGetAttributes)
STREAM(cudaMallocAsync, cuMemAllocAsync)
STREAM(cudaFreeAsync, cuMemFreeAsync)
STREAM(cudaMallocFromPoolAsync, cuMemAllocFromPoolAsync)
FORWARD(cudaMemPoolTrimTo, cuMemPoolTrimTo)
FORWARD(cudaMemPoolSetAttribute, cuMemPoolSetAttribute)
FORWARD(cudaMemPoolGetAttribute, cuMemPoolGetAttribute)
FORWARD(cudaMemPoolSetAccess, cuMemPoolSetAccess)
FORWARD(cudaMemPoolGetAccess, cuMemPoolGetAccess)
FORWARD(cudaMemPoolCreate, cuMemPoolCreate)
FORWARD(cudaMemPoolDestroy, cuMemPoolDestroy)
FORWARD(cudaMemPoolExportToShareableHandle, cuMemPoolExportToShareableHandle)
FORWARD(cudaMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle)

// Textures and surfaces
FORWARD(cudaDestroyTextureObject, cuTexObjectDestroy)
FORWARD(cudaDestroySurfaceObject, cuSurfObjectDestroy)

// Libraries of kernels
FORWARD(cudaLibraryLoadData, cuLibraryLoadData)
FORWARD(cudaLibraryLoadFromFile, cuLibraryLoadFromFile)
FORWARD(cudaLibraryUnload, cuLibraryUnload)
FORWARD(cudaLibraryGetGlobal, cuLibraryGetGlobal)
FORWARD(cudaLibraryGetManaged, cuLibraryGetManaged)
FORWARD(cudaLibraryGetUnifiedFunction, cuLibraryGetUnifiedFunction)
FORWARD(cudaLibraryGetKernelCount, cuLibraryGetKernelCount)

// Graphs
FORWARD(cudaGraphCreate, cuGraphCreate)
FORWARD(cudaGraphKernelNodeGetAttribute, cuGraphKernelNodeGetAttribute)
FORWARD(cudaGraphKernelNodeSetAttribute, cuGraphKernelNodeSetAttribute)
FORWARD(cudaGraphAddHostNode, cuGraphAddHostNode)
FORWARD(cudaGraphHostNodeGetParams, cuGraphHostNodeGetParams)
FORWARD(cudaGraphHostNodeSetParams, cuGraphHostNodeSetParams)
FORWARD(cudaGraphAddChildGraphNode, cuGraphAddChildGraphNode)
FORWARD(cudaGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph)
FORWARD(cudaGraphAddEmptyNode, cuGraphAddEmptyNode)
FORWARD(cudaGraphAddEventRecordNode, cuGraphAddEventRecordNode)
FORWARD(cudaGraphEventRecordNodeGetEvent, cuGraphEventRecordNodeGetEvent)
FORWARD(cudaGraphEventRecordNodeSetEvent, cuGraphEventRecordNodeSetEvent)
FORWARD(cudaGraphAddEventWaitNode, cuGraphAddEventWaitNode)
FORWARD(cudaGraphEventWaitNodeGetEvent, cuGraphEventWaitNodeGetEvent)
FORWARD(cudaGraphEventWaitNodeSetEvent, cuGraphEventWaitNodeSetEvent)
FORWARD(cudaGraphAddMemFreeNode, cuGraphAddMemFreeNode)
FORWARD(cudaGraphClone, cuGraphClone)
FORWARD(cudaGraphNodeFindInClone, cuGraphNodeFindInClone)
FORWARD(cudaGraphNodeGetType, cuGraphNodeGetType)
FORWARD(cudaGraphGetNodes, cuGraphGetNodes)
FORWARD(cudaGraphGetRootNodes, cuGraphGetRootNodes)
FORWARD(cudaGraphDestroyNode, cuGraphDestroyNode)
FORWARD(cudaGraphInstantiate, cuGraphInstantiateWithFlags)
FORWARD(cudaGraphInstantiateWithFlags, cuGraphInstantiateWithFlags)
STREAM(cudaGraphInstantiateWithParams, cuGraphInstantiateWithParams)
FORWARD(cudaGraphExecGetFlags, cuGraphExecGetFlags)
FORWARD(cudaGraphExecHostNodeSetParams, cuGraphExecHostNodeSetParams)
FORWARD(cudaGraphExecChildGraphNodeSetParams, cuGraphExecChildGraphNodeSetParams)
FORWARD(cudaGraphExecEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent)
FORWARD(cudaGraphExecEventWaitNodeSetEvent, cuGraphExecEventWaitNodeSetEvent)
FORWARD(cudaGraphNodeSetEnabled, cuGraphNodeSetEnabled)
FORWARD(cudaGraphNodeGetEnabled, cuGraphNodeGetEnabled)
FORWARD(cudaGraphExecUpdate, cuGraphExecUpdate)
STREAM(cudaGraphUpload, cuGraphUpload)
STREAM(cudaGraphLaunch, cuGraphLaunch)
FORWARD(cudaGraphExecDestroy, cuGraphExecDestroy)
FORWARD(cudaGraphDestroy, cuGraphDestroy)
FORWARD(cudaGraphDebugDotPrint, cuGraphDebugDotPrint)
FORWARD(cudaUserObjectCreate, cuUserObjectCreate)
FORWARD(cudaUserObjectRetain, cuUserObjectRetain)
FORWARD(cudaUserObjectRelease, cuUserObjectRelease)
FORWARD(cudaGraphRetainUserObject, cuGraphRetainUserObject)
FORWARD(cudaGraphReleaseUserObject, cuGraphReleaseUserObject)

// Functions that tell of edges' data: version 12 has them behind those without.
#if CUDART == 13
#define EDGED(name, newer, driver) FORWARD(name, driver)
#else
#define EDGED(name, newer, driver) BOUND(name##newer, decltype(::name), driver, false)
#endif
EDGED(cudaGraphAddDependencies, _v2, cuGraphAddDependencies)
EDGED(cudaGraphRemoveDependencies, _v2, cuGraphRemoveDependencies)
EDGED(cudaGraphGetEdges, _v2, cuGraphGetEdges)
EDGED(cudaGraphNodeGetDependencies, _v2, cuGraphNodeGetDependencies)
EDGED(cudaGraphNodeGetDependentNodes, _v2, cuGraphNodeGetDependentNodes)
EDGED(cudaStreamGetCaptureInfo, _v3, cuStreamGetCaptureInfo)
EDGED(cudaStreamUpdateCaptureDependencies, _v2, cuStreamUpdateCaptureDependencies)
#if CUDART == 13
BOUND(cudaStreamGetCaptureInfo_ptsz, decltype(::cudaStreamGetCaptureInfo), cuStreamGetCaptureInfo, true)
BOUND(cudaStreamUpdateCaptureDependencies_ptsz, decltype(::cudaStreamUpdateCaptureDependencies),
      cuStreamUpdateCaptureDependencies, true)
#else
BOUND(cudaEventElapsedTime_v2, decltype(::cudaEventElapsedTime), cuEventElapsedTime, false)
#endif
