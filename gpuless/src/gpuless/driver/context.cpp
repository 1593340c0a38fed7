// Contexts: each device has a primary one; each thread has a stack of them. They share one address space.
#include "driver.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>

struct CUctx_st
{
    int device;
    unsigned flags;
    unsigned long long id;
    bool primary;
    int retained = 0;
    CUfunc_cache cache = CU_FUNC_CACHE_PREFER_NONE;
    size_t limits[CU_LIMIT_MAX] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0, 0};
};

namespace gpuless {

void begin_child();
void forget_streams();
void free_all();
void unload_all();

namespace {

bool begun;
CUresult sticky;
auto& one_at_a_time = *new std::recursive_mutex;
auto& contexts = *new std::set<CUcontext>;
auto& primary = *new std::map<int, CUcontext>;
thread_local std::vector<CUcontext> stack;
unsigned long long made;

CUcontext make(int device, unsigned flags, bool is_primary)
{
    const CUcontext context = new CUctx_st{device, flags, ++made, is_primary};
    contexts.insert(context);
    return context;
}

bool known(CUcontext context) { return contexts.count(context); }

void forget(CUcontext context)
{
    contexts.erase(context);
    for (CUcontext& one : stack)
        if (one == context) one = nullptr;
    delete context;
}

CUcontext primary_of(int device)
{
    CUcontext& one = primary[device];
    return one ? one : one = make(device, 0, true);
}

// Of the last context, all memory and code.
void end_all()
{
    wait_for_all();
    free_all();
    unload_all();
}

}  // namespace

static thread_local unsigned depth;
thread_local bool of_library;
Alone::Alone() { one_at_a_time.lock(), depth++; }
Alone::~Alone()
{
    if (!--depth && !of_library) note_call();  // it may have taken long, as to load code does
    one_at_a_time.unlock();
}
bool is_alone() { return depth; }
void let_others(const std::function<void()>& meanwhile)
{
    const unsigned before = depth;
    for (; depth; depth--) one_at_a_time.unlock();
    meanwhile();
    for (; depth < before; depth++) one_at_a_time.lock();
}

CUresult initialized() { return begun ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }
CUresult ready()
{
    note_call();
    if (!begun) return CUDA_ERROR_NOT_INITIALIZED;
    if (sticky) return sticky;
    return current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
void stick(CUresult error)
{
    if (!sticky) sticky = error;
}
CUresult stuck() { return sticky; }
CUcontext current() { return stack.empty() || !known(stack.back()) ? nullptr : stack.back(); }
int current_device() { return current() ? current()->device : 0; }
size_t limit_of(CUlimit limit)
{
    const CUcontext one = current() ? current() : contexts.empty() ? nullptr : *contexts.begin();
    return one ? one->limits[limit] : limit == CU_LIMIT_MALLOC_HEAP_SIZE ? 8 << 20 : 0;
}

}  // namespace gpuless

using namespace gpuless;

CUresult cuInit(unsigned flags)
{
    const Alone alone;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (gpus().empty()) return CUDA_ERROR_NO_DEVICE;
    if (!begun) {
        pthread_atfork([] { one_at_a_time.lock(); }, [] { one_at_a_time.unlock(); },
                       [] { one_at_a_time.unlock(), forget_streams(), begin_child(); });
    }
    return begun = true, CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version)
{ return version ? (*version = CUDA_VERSION, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE; }

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device)
{
    const Alone alone;
    int count = 0;
    if (const CUresult error = cuDeviceGetCount(&count)) return error;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || device >= count) return CUDA_ERROR_INVALID_DEVICE;
    if (sticky) return sticky;
    *context = primary_of(device);
    return (*context)->retained++, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (device < 0 || size_t(device) >= gpus().size()) return CUDA_ERROR_INVALID_DEVICE;
    const auto found = primary.find(device);
    if (found == primary.end() || !found->second->retained) return CUDA_ERROR_INVALID_CONTEXT;
    if (!--found->second->retained && contexts.size() == 1) wait_for_all();
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (device < 0 || size_t(device) >= gpus().size()) return CUDA_ERROR_INVALID_DEVICE;
    if (contexts.size() <= 1) end_all();
    const auto found = primary.find(device);
    if (found == primary.end()) return CUDA_SUCCESS;
    const CUcontext fresh = found->second;  // whoever holds it may go on with it
    std::fill(std::begin(fresh->limits), std::end(fresh->limits), 0);
    const CUctx_st usual{};
    std::copy(std::begin(usual.limits), std::end(usual.limits), fresh->limits);
    return fresh->flags = 0, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (device < 0 || size_t(device) >= gpus().size()) return CUDA_ERROR_INVALID_DEVICE;
    return primary_of(device)->flags = flags, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (device < 0 || size_t(device) >= gpus().size()) return CUDA_ERROR_INVALID_DEVICE;
    const auto found = primary.find(device);
    *flags = found == primary.end() ? 0 : found->second->flags;
    return *active = found != primary.end() && found->second->retained, CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext* context, CUctxCreateParams*, unsigned flags, CUdevice device)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || size_t(device) >= gpus().size()) return CUDA_ERROR_INVALID_DEVICE;
    if (sticky) return sticky;
    stack.push_back(*context = make(device, flags, false));
    return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext context)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (!known(context) || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    wait_for_all();
    if (!stack.empty() && stack.back() == context) stack.pop_back();
    return forget(context), CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (!known(context)) return CUDA_ERROR_INVALID_CONTEXT;
    return stack.push_back(context), CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = stack.back();
    return stack.pop_back(), CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (context && !known(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack.empty()) stack.pop_back();
    if (context) stack.push_back(context);
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    return *context = current(), CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    return *device = current()->device, CUDA_SUCCESS;
}
CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context)
{
    const Alone alone;
    if (!context) return cuCtxGetDevice(device);
    return known(context) ? (*device = context->device, CUDA_SUCCESS) : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuCtxGetFlags(unsigned* flags)
{
    BEGIN("cuCtxGetFlags");
    return *flags = current()->flags, CUDA_SUCCESS;
}
CUresult cuCtxSetFlags(unsigned flags)
{
    BEGIN("cuCtxSetFlags");
    return current()->flags = flags, CUDA_SUCCESS;
}
CUresult cuCtxGetId(CUcontext context, unsigned long long* id)
{
    const Alone alone;
    const CUcontext one = context ? context : current();
    if (!known(one)) return CUDA_ERROR_INVALID_CONTEXT;
    return *id = one->id, CUDA_SUCCESS;
}
CUresult cuCtxSynchronize()
{
    BEGIN("cuCtxSynchronize");
    return wait_for_all_streams();
}
CUresult cuCtxSynchronize_v2(CUcontext) { return cuCtxSynchronize(); }
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    BEGIN("cuCtxSetLimit");
    if (unsigned(limit) >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    return current()->limits[limit] = value, CUDA_SUCCESS;
}
CUresult cuCtxGetLimit(size_t* value, CUlimit limit)
{
    BEGIN("cuCtxGetLimit");
    if (unsigned(limit) >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    return value ? (*value = current()->limits[limit], CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuCtxGetCacheConfig(CUfunc_cache* config)
{
    BEGIN("cuCtxGetCacheConfig");
    return *config = current()->cache, CUDA_SUCCESS;
}
CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    BEGIN("cuCtxSetCacheConfig");
    return current()->cache = config, CUDA_SUCCESS;
}
CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config)
{
    BEGIN("cuCtxGetSharedMemConfig");
    return *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE, CUDA_SUCCESS;
}
CUresult cuCtxSetSharedMemConfig(CUsharedconfig)
{
    BEGIN("cuCtxSetSharedMemConfig");
    return CUDA_SUCCESS;
}
CUresult cuCtxGetApiVersion(CUcontext context, unsigned* version)
{
    const Alone alone;
    if (context && !known(context)) return CUDA_ERROR_INVALID_CONTEXT;
    return *version = 3020, CUDA_SUCCESS;
}
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest)
{
    BEGIN("cuCtxGetStreamPriorityRange");
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}
CUresult cuCtxResetPersistingL2Cache() { return ready(); }
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    BEGIN("cuCtxEnablePeerAccess");
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!known(peer)) return CUDA_ERROR_INVALID_CONTEXT;
    return peer->device == current()->device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    BEGIN("cuCtxDisablePeerAccess");
    return known(peer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuCtxGetExecAffinity(CUexecAffinityParam*, CUexecAffinityType) { return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY; }
CUresult cuCtxAttach(CUcontext* context, unsigned flags)
{
    BEGIN("cuCtxAttach");
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    return *context = current(), CUDA_SUCCESS;
}
CUresult cuCtxDetach(CUcontext context)
{
    const Alone alone;
    return known(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
EXPORTED CUresult cuProfilerStart() { return ready(); }  // of cudaProfiler.h, which is not included
EXPORTED CUresult cuProfilerStop() { return ready(); }

// For tests that go on in one process behind a fault.
EXPORTED void gpuless_forget_error() { sticky = CUDA_SUCCESS; }

// Between tests in one process: all work is done, and the next test is like the first.
EXPORTED void gpuless_begin_period()
{
    const Alone alone;
    wait_for_all();
    sticky = CUDA_SUCCESS;
    begin_period();
}
