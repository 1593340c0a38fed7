// Graphs: nodes whose parameters the runtime describes otherwise than the driver.
#include "cudart.h"
#include "copies.h"

namespace cudart {
namespace {

CUcontext context()
{
    CUcontext now = nullptr;
    cuCtxGetCurrent(&now);
    return now;
}

cudaError_t driver_kernel(const cudaKernelNodeParams& given, CUDA_KERNEL_NODE_PARAMS* made)
{
    *made = {};
    if (const cudaError_t error = function_of(given.func, &made->func)) return error;
    made->gridDimX = given.gridDim.x, made->gridDimY = given.gridDim.y, made->gridDimZ = given.gridDim.z;
    made->blockDimX = given.blockDim.x, made->blockDimY = given.blockDim.y, made->blockDimZ = given.blockDim.z;
    made->sharedMemBytes = given.sharedMemBytes, made->kernelParams = given.kernelParams, made->extra = given.extra;
    return cudaSuccess;
}

CUDA_MEMSET_NODE_PARAMS driver_set(const cudaMemsetParams& given)
{ return {address(given.dst), given.pitch, given.value, given.elementSize, given.width, given.height}; }

const CUgraphNode* nodes(const cudaGraphNode_t* from) { return from; }

// A copy to a symbol (`to`) or from one.
cudaError_t symbol_copy(bool to, const void* symbol, const void* other, size_t bytes, size_t offset,
                        cudaMemcpyKind kind, CUDA_MEMCPY3D* made)
{
    CUdeviceptr at;
    size_t size;
    if (const cudaError_t error = variable_of(symbol, &at, &size)) return error;
    void* const place = reinterpret_cast<void*>(at + offset);
    *made = to ? line_copy(place, other, bytes, kind) : line_copy(const_cast<void*>(other), place, bytes, kind);
    return cudaSuccess;
}

}  // namespace
}  // namespace cudart

using namespace cudart;

#define NODE cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after, size_t count
#define AFTER node, graph, nodes(after), count

EXPORT cudaError_t cudaGraphAddKernelNode(NODE, const cudaKernelNodeParams* given)
{
    BEGIN;
    CUDA_KERNEL_NODE_PARAMS made;
    TRY(driver_kernel(*given, &made));
    const CUresult error = cuGraphAddKernelNode(AFTER, &made);
    ENDED(error == CUDA_ERROR_INVALID_VALUE ? cudaErrorInvalidConfiguration : cudaError_t(error));
}

EXPORT cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* given)
{
    BEGIN;
    CUDA_KERNEL_NODE_PARAMS made = {};
    TRY(cuGraphKernelNodeGetParams(node, &made));
    given->func = const_cast<void*>(host_of(made.kern ? made.kern : reinterpret_cast<CUkernel>(made.func)));
    given->gridDim = {made.gridDimX, made.gridDimY, made.gridDimZ};
    given->blockDim = {made.blockDimX, made.blockDimY, made.blockDimZ};
    given->sharedMemBytes = made.sharedMemBytes, given->kernelParams = made.kernelParams, given->extra = made.extra;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const cudaKernelNodeParams* given)
{
    BEGIN;
    CUDA_KERNEL_NODE_PARAMS made;
    TRY(driver_kernel(*given, &made));
    ENDED(cuGraphKernelNodeSetParams(node, &made));
}

EXPORT cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                    const cudaKernelNodeParams* given)
{
    BEGIN;
    CUDA_KERNEL_NODE_PARAMS made;
    TRY(driver_kernel(*given, &made));
    ENDED(cuGraphExecKernelNodeSetParams(exec, node, &made));
}

#if CUDART == 13
EXPORT cudaError_t cudaGraphKernelNodeCopyAttributes(cudaGraphNode_t to, cudaGraphNode_t from)
{
    BEGIN;
    ENDED(cuGraphKernelNodeCopyAttributes(to, from));
}
#else
EXPORT cudaError_t cudaGraphKernelNodeCopyAttributes(cudaGraphNode_t from, cudaGraphNode_t to)
{
    BEGIN;
    ENDED(cuGraphKernelNodeCopyAttributes(to, from));
}
#endif

// ---- copies: added, changed, changed in what has been instantiated

EXPORT cudaError_t cudaGraphAddMemcpyNode(NODE, const cudaMemcpy3DParms* given)
{
    BEGIN;
    const CUDA_MEMCPY3D made = driver_copy(*given);
    ENDED(cuGraphAddMemcpyNode(AFTER, &made, context()));
}
EXPORT cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const cudaMemcpy3DParms* given)
{
    BEGIN;
    const CUDA_MEMCPY3D made = driver_copy(*given);
    ENDED(cuGraphMemcpyNodeSetParams(node, &made));
}
EXPORT cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                    const cudaMemcpy3DParms* given)
{
    BEGIN;
    const CUDA_MEMCPY3D made = driver_copy(*given);
    ENDED(cuGraphExecMemcpyNodeSetParams(exec, node, &made, context()));
}

EXPORT cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* given)
{
    BEGIN;
    CUDA_MEMCPY3D made = {};
    TRY(cuGraphMemcpyNodeGetParams(node, &made));
    *given = {};
    const auto pointer = [](CUmemorytype type, const void* host, CUdeviceptr device) {
        return type == CU_MEMORYTYPE_HOST ? const_cast<void*>(host) : reinterpret_cast<void*>(device);
    };
    given->srcArray = as<cudaArray_t>(made.srcArray), given->dstArray = as<cudaArray_t>(made.dstArray);
    given->srcPos = {made.srcXInBytes, made.srcY, made.srcZ}, given->dstPos = {made.dstXInBytes, made.dstY, made.dstZ};
    given->srcPtr = {pointer(made.srcMemoryType, made.srcHost, made.srcDevice), made.srcPitch, made.WidthInBytes,
                     made.srcHeight};
    given->dstPtr = {pointer(made.dstMemoryType, made.dstHost, made.dstDevice), made.dstPitch, made.WidthInBytes,
                     made.dstHeight};
    given->extent = {made.WidthInBytes, made.Height, made.Depth};
    const bool from = made.srcMemoryType == CU_MEMORYTYPE_HOST, to = made.dstMemoryType == CU_MEMORYTYPE_HOST;
    given->kind = made.srcMemoryType == CU_MEMORYTYPE_UNIFIED ? cudaMemcpyDefault
                  : from ? (to ? cudaMemcpyHostToHost : cudaMemcpyHostToDevice)
                         : (to ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice);
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphAddMemcpyNode1D(NODE, void* to, const void* from, size_t bytes, cudaMemcpyKind kind)
{
    BEGIN;
    const CUDA_MEMCPY3D made = line_copy(to, from, bytes, kind);
    ENDED(cuGraphAddMemcpyNode(AFTER, &made, context()));
}
EXPORT cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* to, const void* from, size_t bytes,
                                                  cudaMemcpyKind kind)
{
    BEGIN;
    const CUDA_MEMCPY3D made = line_copy(to, from, bytes, kind);
    ENDED(cuGraphMemcpyNodeSetParams(node, &made));
}
EXPORT cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void* to,
                                                      const void* from, size_t bytes, cudaMemcpyKind kind)
{
    BEGIN;
    const CUDA_MEMCPY3D made = line_copy(to, from, bytes, kind);
    ENDED(cuGraphExecMemcpyNodeSetParams(exec, node, &made, context()));
}

#define SYMBOL_COPIES(To, is_to, SECOND, THIRD, symbol, other)                                                         \
    EXPORT cudaError_t cudaGraphAddMemcpyNode##To##Symbol(NODE, SECOND, THIRD, size_t bytes, size_t offset,            \
                                                          cudaMemcpyKind kind)                                         \
    {                                                                                                                  \
        BEGIN;                                                                                                         \
        CUDA_MEMCPY3D made;                                                                                            \
        TRY(symbol_copy(is_to, symbol, other, bytes, offset, kind, &made));                                            \
        ENDED(cuGraphAddMemcpyNode(AFTER, &made, context()));                                                          \
    }                                                                                                                  \
    EXPORT cudaError_t cudaGraphMemcpyNodeSetParams##To##Symbol(cudaGraphNode_t node, SECOND, THIRD, size_t bytes,     \
                                                                size_t offset, cudaMemcpyKind kind)                    \
    {                                                                                                                  \
        BEGIN;                                                                                                         \
        CUDA_MEMCPY3D made;                                                                                            \
        TRY(symbol_copy(is_to, symbol, other, bytes, offset, kind, &made));                                            \
        ENDED(cuGraphMemcpyNodeSetParams(node, &made));                                                                \
    }                                                                                                                  \
    EXPORT cudaError_t cudaGraphExecMemcpyNodeSetParams##To##Symbol(                                                   \
        cudaGraphExec_t exec, cudaGraphNode_t node, SECOND, THIRD, size_t bytes, size_t offset, cudaMemcpyKind kind)   \
    {                                                                                                                  \
        BEGIN;                                                                                                         \
        CUDA_MEMCPY3D made;                                                                                            \
        TRY(symbol_copy(is_to, symbol, other, bytes, offset, kind, &made));                                            \
        ENDED(cuGraphExecMemcpyNodeSetParams(exec, node, &made, context()));                                           \
    }
SYMBOL_COPIES(To, true, const void* symbol, const void* from, symbol, from)
SYMBOL_COPIES(From, false, void* to, const void* symbol, symbol, to)

// ---- sets

EXPORT cudaError_t cudaGraphAddMemsetNode(NODE, const cudaMemsetParams* given)
{
    BEGIN;
    const CUDA_MEMSET_NODE_PARAMS made = driver_set(*given);
    ENDED(cuGraphAddMemsetNode(AFTER, &made, context()));
}
EXPORT cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* given)
{
    BEGIN;
    CUDA_MEMSET_NODE_PARAMS made = {};
    TRY(cuGraphMemsetNodeGetParams(node, &made));
    *given = {reinterpret_cast<void*>(made.dst), made.pitch, made.value, made.elementSize, made.width, made.height};
    return cudaSuccess;
}
EXPORT cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const cudaMemsetParams* given)
{
    BEGIN;
    const CUDA_MEMSET_NODE_PARAMS made = driver_set(*given);
    ENDED(cuGraphMemsetNodeSetParams(node, &made));
}
EXPORT cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                    const cudaMemsetParams* given)
{
    BEGIN;
    const CUDA_MEMSET_NODE_PARAMS made = driver_set(*given);
    ENDED(cuGraphExecMemsetNodeSetParams(exec, node, &made, context()));
}

// ---- memory

EXPORT cudaError_t cudaGraphAddMemAllocNode(NODE, cudaMemAllocNodeParams* given)
{
    BEGIN;
    CUDA_MEM_ALLOC_NODE_PARAMS made = {};
    static_assert(sizeof made.poolProps == sizeof given->poolProps);
    memcpy(&made.poolProps, &given->poolProps, sizeof made.poolProps);
    made.accessDescs = reinterpret_cast<const CUmemAccessDesc*>(given->accessDescs);
    made.accessDescCount = given->accessDescCount, made.bytesize = given->bytesize;
    TRY(cuGraphAddMemAllocNode(AFTER, &made));
    given->dptr = reinterpret_cast<void*>(made.dptr);
    return cudaSuccess;
}

// ---- what version 12 of the interface has without data of edges, and the names of those with them

#if CUDART == 13
#define EDGES(name) name
#else
#define EDGES(name) name "_v2"
#define PLAIN(name, label, parameters, call)                                                                           \
    EXPORT cudaError_t name(parameters) __asm__(label);                                                                \
    cudaError_t name(parameters)                                                                                       \
    {                                                                                                                  \
        BEGIN;                                                                                                         \
        ENDED(call);                                                                                                   \
    }
#define PARAMETERS(...) __VA_ARGS__
PLAIN(add_edges, "cudaGraphAddDependencies",
      PARAMETERS(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count),
      cuGraphAddDependencies(graph, from, to, nullptr, count))
PLAIN(remove_edges, "cudaGraphRemoveDependencies",
      PARAMETERS(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count),
      cuGraphRemoveDependencies(graph, from, to, nullptr, count))
PLAIN(get_edges, "cudaGraphGetEdges",
      PARAMETERS(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, size_t* count),
      cuGraphGetEdges(graph, from, to, nullptr, count))
PLAIN(get_before, "cudaGraphNodeGetDependencies",
      PARAMETERS(cudaGraphNode_t node, cudaGraphNode_t* others, size_t* count),
      cuGraphNodeGetDependencies(node, others, nullptr, count))
PLAIN(get_after, "cudaGraphNodeGetDependentNodes",
      PARAMETERS(cudaGraphNode_t node, cudaGraphNode_t* others, size_t* count),
      cuGraphNodeGetDependentNodes(node, others, nullptr, count))
PLAIN(capture_info, "cudaStreamGetCaptureInfo",
      PARAMETERS(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id),
      cuStreamGetCaptureInfo(stream, as<CUstreamCaptureStatus*>(status), as<cuuint64_t*>(id), nullptr, nullptr, nullptr,
                             nullptr))
PLAIN(capture_info_2, "cudaStreamGetCaptureInfo_v2",
      PARAMETERS(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                 const cudaGraphNode_t** others, size_t* count),
      cuStreamGetCaptureInfo(stream, as<CUstreamCaptureStatus*>(status), as<cuuint64_t*>(id), graph, others, nullptr,
                             count))
PLAIN(update_capture, "cudaStreamUpdateCaptureDependencies",
      PARAMETERS(cudaStream_t stream, cudaGraphNode_t* others, size_t count, unsigned flags),
      cuStreamUpdateCaptureDependencies(stream, others, nullptr, count, flags))
#endif
