// Earlier versions of functions, which programs of CUDA 12 and before link to, in terms of the present ones.
#define __CUDA_API_VERSION_INTERNAL
#include "driver.h"

CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device)
{ return cuCtxCreate_v4(context, nullptr, flags, device); }
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int, unsigned flags, CUdevice device)
{ return cuCtxCreate_v4(context, nullptr, flags, device); }
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }
CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }
CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{ return cuDevicePrimaryCtxSetFlags_v2(device, flags); }
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end)
{ return cuEventElapsedTime_v2(milliseconds, start, end); }
CUresult cuMemHostRegister(void* pointer, size_t bytes, unsigned flags)
{ return cuMemHostRegister_v2(pointer, bytes, flags); }
CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)
{ return cuMemPrefetchAsync_v2(pointer, bytes, {CU_MEM_LOCATION_TYPE_DEVICE, device}, 0, stream); }
CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device)
{ return cuMemAdvise_v2(pointer, bytes, advice, {CU_MEM_LOCATION_TYPE_DEVICE, device}); }
CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags)
{ return cuGetProcAddress_v2(name, function, version, flags, nullptr); }

CUresult cuStreamBeginCapture(CUstream stream)
{ return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); }
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id)
{ return cuStreamGetCaptureInfo_v3(stream, status, id, nullptr, nullptr, nullptr, nullptr); }
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** needs, size_t* count)
{ return cuStreamGetCaptureInfo_v3(stream, status, id, graph, needs, nullptr, count); }
CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* needs, size_t count, unsigned flags)
{ return cuStreamUpdateCaptureDependencies_v2(stream, needs, nullptr, count, flags); }
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{ return cuStreamWriteValue32_v2(stream, at, value, flags); }
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{ return cuStreamWriteValue64_v2(stream, at, value, flags); }
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{ return cuStreamWaitValue32_v2(stream, at, value, flags); }
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{ return cuStreamWaitValue64_v2(stream, at, value, flags); }
CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams* every, unsigned flags)
{ return cuStreamBatchMemOp_v2(stream, count, every, flags); }
CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* which, size_t kinds, size_t*, CUstream stream)
{ return cuMemcpyBatchAsync_v2(to, from, bytes, count, attributes, which, kinds, stream); }

// The first version of a kernel's node ends before its handle of a library's kernel.
static CUDA_KERNEL_NODE_PARAMS_v2 extended(const CUDA_KERNEL_NODE_PARAMS_v1& p)
{
    return {p.func,      p.gridDimX,       p.gridDimY,     p.gridDimZ, p.blockDimX, p.blockDimY,
            p.blockDimZ, p.sharedMemBytes, p.kernelParams, p.extra,    nullptr,     nullptr};
}
CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1* p)
{
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_KERNEL_NODE_PARAMS_v2 whole = extended(*p);
    return cuGraphAddKernelNode_v2(node, graph, needs, count, &whole);
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* p)
{
    CUDA_KERNEL_NODE_PARAMS_v2 q = {};
    const CUresult error = cuGraphKernelNodeGetParams_v2(node, &q);
    if (!error)
        *p = {q.func,      q.gridDimX,  q.gridDimY,       q.gridDimZ,     q.blockDimX,
              q.blockDimY, q.blockDimZ, q.sharedMemBytes, q.kernelParams, q.extra};
    return error;
}
CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* p)
{
    const CUDA_KERNEL_NODE_PARAMS_v2 whole = extended(*p);
    return cuGraphKernelNodeSetParams_v2(node, &whole);
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* p)
{
    const CUDA_KERNEL_NODE_PARAMS_v2 whole = extended(*p);
    return cuGraphExecKernelNodeSetParams_v2(exec, node, &whole);
}
static CUresult instantiated(CUgraphExec* exec, CUgraph graph, CUgraphNode* wrong, char* log, size_t room)
{
    if (wrong) *wrong = nullptr;
    if (log && room) *log = 0;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}
CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* wrong, char* log, size_t room)
{ return instantiated(exec, graph, wrong, log, room); }
CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* wrong, char* log, size_t room)
{ return instantiated(exec, graph, wrong, log, room); }
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* wrong, CUgraphExecUpdateResult* result)
{
    CUgraphExecUpdateResultInfo info = {};
    const CUresult error = cuGraphExecUpdate_v2(exec, graph, &info);
    if (wrong) *wrong = info.errorNode;
    if (result) *result = info.result;
    return error;
}
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count)
{ return cuGraphGetEdges_v2(graph, from, to, nullptr, count); }
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* to, size_t* count)
{ return cuGraphNodeGetDependencies_v2(node, to, nullptr, count); }
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* to, size_t* count)
{ return cuGraphNodeGetDependentNodes_v2(node, to, nullptr, count); }
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count)
{ return cuGraphAddDependencies_v2(graph, from, to, nullptr, count); }
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count)
{ return cuGraphRemoveDependencies_v2(graph, from, to, nullptr, count); }
CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count, CUgraphNodeParams* p)
{ return cuGraphAddNode_v2(node, graph, needs, nullptr, count, p); }
