// What a stream is, and work of it that waits for values in memory or writes them.
#include "graphs.h"

using namespace gpuless;

CUresult cuStreamGetPriority(CUstream stream, int* priority)
{
    STREAM("cuStreamGetPriority");
    return priority ? (*priority = one.priority, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuStreamGetFlags(CUstream stream, unsigned* flags)
{
    STREAM("cuStreamGetFlags");
    return flags ? (*flags = !one.blocking, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id)
{
    STREAM("cuStreamGetId");
    return *id = one.id, CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context)
{
    STREAM("cuStreamGetCtx");
    return *context = one.context ? one.context : current(), CUDA_SUCCESS;
}
CUresult cuStreamGetDevice(CUstream stream, CUdevice* device)
{
    STREAM("cuStreamGetDevice");
    return *device = current_device(), CUDA_SUCCESS;
}
CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID, const CUstreamAttrValue*)
{
    STREAM("cuStreamSetAttribute");
    return CUDA_SUCCESS;
}
CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID attribute, CUstreamAttrValue* value)
{
    STREAM("cuStreamGetAttribute");
    *value = {};
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = one.priority;
    return CUDA_SUCCESS;
}
CUresult cuStreamCopyAttributes(CUstream to, CUstream stream)
{
    STREAM("cuStreamCopyAttributes");
    return stream_of(to) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t, unsigned)
{
    STREAM("cuStreamAttachMemAsync");
    const Allocation* const memory = allocation_at(bytes_at(pointer));
    return memory && memory->kind == Kind::Managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- values in memory -----------------------------------------------------------------------------------------------
template <typename Word>
static CUresult write_value(CUstream stream, CUdeviceptr at, Word value, const Site& site)
{
    if (const CUresult error = check_stream(stream)) return error;
    if (!device_may_touch(bytes_at(at)) || at % sizeof value) return CUDA_ERROR_INVALID_VALUE;
    enqueue(
        stream, [=] { *reinterpret_cast<volatile Word*>(at) = value; },
        NodeParameters(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP));
    (void)site;
    return CUDA_SUCCESS;
}
template <typename Word>
static CUresult wait_value(CUstream stream, CUdeviceptr at, Word value, unsigned flags)
{
    if (const CUresult error = check_stream(stream)) return error;
    if (!device_may_touch(bytes_at(at)) || at % sizeof value) return CUDA_ERROR_INVALID_VALUE;
    if (capturing(stream)) return CUDA_ERROR_NOT_SUPPORTED;
    append(*stream_of(stream), nullptr, [=] {
        const Word is = *reinterpret_cast<volatile Word*>(at);
        switch (flags & 7) {
        case CU_STREAM_WAIT_VALUE_EQ: return is == value;
        case CU_STREAM_WAIT_VALUE_AND: return (is & value) != 0;
        case CU_STREAM_WAIT_VALUE_NOR: return Word(~(is | value)) != 0;
        default: return std::make_signed_t<Word>(is - value) >= 0;
        }
    });
    return CUDA_SUCCESS;
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned)
{
    STREAM("cuStreamWriteValue32");
    return write_value(stream, at, uint32_t(value), site);
}
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned)
{
    STREAM("cuStreamWriteValue64");
    return write_value(stream, at, uint64_t(value), site);
}
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags)
{
    STREAM("cuStreamWaitValue32");
    return wait_value(stream, at, uint32_t(value), flags);
}
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    STREAM("cuStreamWaitValue64");
    return wait_value(stream, at, uint64_t(value), flags);
}
CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams* every, unsigned)
{
    STREAM("cuStreamBatchMemOp");
    for (unsigned i = 0; i < count; i++) {
        const CUstreamBatchMemOpParams& p = every[i];
        CUresult error = CUDA_SUCCESS;
        switch (p.operation) {
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            error = write_value(stream, p.writeValue.address, p.writeValue.value, site);
            break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            error = write_value(stream, p.writeValue.address, uint64_t(p.writeValue.value64), site);
            break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            error = wait_value(stream, p.waitValue.address, p.waitValue.value, p.waitValue.flags);
            break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            error = wait_value(stream, p.waitValue.address, uint64_t(p.waitValue.value64), p.waitValue.flags);
            break;
        default: break;  // barriers and flushes: the order is that of the stream
        }
        if (error) return error;
    }
    return CUDA_SUCCESS;
}
