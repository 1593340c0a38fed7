// The runtime's error codes, the last error of each thread, and errors that nobody asks for.
#include "cudart.h"

#include <stdlib.h>

#include <string>

// Of a libcuda.so.1 that reports; another one lacks them.
extern "C" __attribute__((weak)) void gpuless_enter(const char* function, const void* site);
extern "C" __attribute__((weak)) void gpuless_leave();
extern "C" __attribute__((weak)) int gpuless_refuse(const char* function);
extern "C" __attribute__((weak)) void gpuless_fault(const char* kind, const char* text, const char* function,
                                                    const void* site);

namespace cudart {
namespace {

struct Row
{
    int code;
    const char *name, *text;
};
constexpr Row ROWS[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {4, "cudaErrorCudartUnloading", "driver shutting down"},
    {5, "cudaErrorProfilerDisabled", nullptr},
    {6, "cudaErrorProfilerNotInitialized", nullptr},
    {7, "cudaErrorProfilerAlreadyStarted", nullptr},
    {8, "cudaErrorProfilerAlreadyStopped", nullptr},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {12, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {16, "cudaErrorInvalidHostPointer", "invalid host pointer"},
    {17, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {18, "cudaErrorInvalidTexture", "invalid texture reference"},
    {19, "cudaErrorInvalidTextureBinding", nullptr},
    {20, "cudaErrorInvalidChannelDescriptor", "invalid channel descriptor"},
    {21, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {22, "cudaErrorAddressOfConstant", nullptr},
    {23, "cudaErrorTextureFetchFailed", nullptr},
    {24, "cudaErrorTextureNotBound", nullptr},
    {25, "cudaErrorSynchronizationError", nullptr},
    {26, "cudaErrorInvalidFilterSetting", nullptr},
    {27, "cudaErrorInvalidNormSetting", nullptr},
    {28, "cudaErrorMixedDeviceExecution", nullptr},
    {31, "cudaErrorNotYetImplemented", nullptr},
    {32, "cudaErrorMemoryValueTooLarge", nullptr},
    {34, "cudaErrorStubLibrary", nullptr},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {36, "cudaErrorCallRequiresNewerDriver", nullptr},
    {37, "cudaErrorInvalidSurface", "invalid surface reference"},
    {43, "cudaErrorDuplicateVariableName", nullptr},
    {44, "cudaErrorDuplicateTextureName", nullptr},
    {45, "cudaErrorDuplicateSurfaceName", nullptr},
    {46, "cudaErrorDevicesUnavailable", nullptr},
    {49, "cudaErrorIncompatibleDriverContext", nullptr},
    {52, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    {53, "cudaErrorPriorLaunchFailure", nullptr},
    {65, "cudaErrorLaunchMaxDepthExceeded", nullptr},
    {66, "cudaErrorLaunchFileScopedTex", nullptr},
    {67, "cudaErrorLaunchFileScopedSurf", nullptr},
    {68, "cudaErrorSyncDepthExceeded", nullptr},
    {69, "cudaErrorLaunchPendingCountExceeded", nullptr},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {102, "cudaErrorDeviceNotLicensed", nullptr},
    {103, "cudaErrorSoftwareValidityNotEstablished", nullptr},
    {127, "cudaErrorStartupFailure", nullptr},
    {200, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {201, "cudaErrorDeviceUninitialized", "invalid device context"},
    {205, "cudaErrorMapBufferObjectFailed", nullptr},
    {206, "cudaErrorUnmapBufferObjectFailed", nullptr},
    {207, "cudaErrorArrayIsMapped", nullptr},
    {208, "cudaErrorAlreadyMapped", nullptr},
    {209, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {210, "cudaErrorAlreadyAcquired", nullptr},
    {211, "cudaErrorNotMapped", nullptr},
    {212, "cudaErrorNotMappedAsArray", nullptr},
    {213, "cudaErrorNotMappedAsPointer", nullptr},
    {214, "cudaErrorECCUncorrectable", nullptr},
    {215, "cudaErrorUnsupportedLimit", "limit is not supported on this architecture"},
    {216, "cudaErrorDeviceAlreadyInUse", nullptr},
    {217, "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {218, "cudaErrorInvalidPtx", "a PTX JIT compilation failed"},
    {219, "cudaErrorInvalidGraphicsContext", nullptr},
    {220, "cudaErrorNvlinkUncorrectable", nullptr},
    {221, "cudaErrorJitCompilerNotFound", "PTX JIT compiler library not found"},
    {222, "cudaErrorUnsupportedPtxVersion", "the provided PTX was compiled with an unsupported toolchain."},
    {223, "cudaErrorJitCompilationDisabled", nullptr},
    {224, "cudaErrorUnsupportedExecAffinity", nullptr},
    {225, "cudaErrorUnsupportedDevSideSync", nullptr},
    {226, "cudaErrorContained", nullptr},
    {300, "cudaErrorInvalidSource", "device kernel image is invalid"},
    {301, "cudaErrorFileNotFound", "file not found"},
    {302, "cudaErrorSharedObjectSymbolNotFound", nullptr},
    {303, "cudaErrorSharedObjectInitFailed", nullptr},
    {304, "cudaErrorOperatingSystem", nullptr},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {401, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {402, "cudaErrorLossyQuery", nullptr},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {702, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {703, "cudaErrorLaunchIncompatibleTexturing", nullptr},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {705, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {708, "cudaErrorSetOnActiveProcess", "cannot set while device is active in this process"},
    {709, "cudaErrorContextIsDestroyed", "context is destroyed"},
    {710, "cudaErrorAssert", "device-side assert triggered"},
    {711, "cudaErrorTooManyPeers", nullptr},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {714, "cudaErrorHardwareStackError", "hardware stack error"},
    {715, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {716, "cudaErrorMisalignedAddress", "misaligned address"},
    {717, "cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space"},
    {718, "cudaErrorInvalidPc", "invalid program counter"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {720, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {721, "cudaErrorTensorMemoryLeak", nullptr},
    {800, "cudaErrorNotPermitted", "operation not permitted"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {802, "cudaErrorSystemNotReady", nullptr},
    {803, "cudaErrorSystemDriverMismatch", nullptr},
    {804, "cudaErrorCompatNotSupportedOnDevice", nullptr},
    {805, "cudaErrorMpsConnectionFailed", nullptr},
    {806, "cudaErrorMpsRpcFailure", nullptr},
    {807, "cudaErrorMpsServerNotReady", nullptr},
    {808, "cudaErrorMpsMaxClientsReached", nullptr},
    {809, "cudaErrorMpsMaxConnectionsReached", nullptr},
    {810, "cudaErrorMpsClientTerminated", nullptr},
    {811, "cudaErrorCdpNotSupported", nullptr},
    {812, "cudaErrorCdpVersionMismatch", nullptr},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {902, "cudaErrorStreamCaptureMerge",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {903, "cudaErrorStreamCaptureUnmatched", "capture was not initiated in this stream"},
    {904, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {905, "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {906, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {909, "cudaErrorTimeout", nullptr},
    {910, "cudaErrorGraphExecUpdateFailure",
     "the graph update was not performed because it included changes which violated constraints specific to "
     "instantiated graph "
     "update"},
    {911, "cudaErrorExternalDevice", nullptr},
    {912, "cudaErrorInvalidClusterSize", "cluster misconfiguration"},
    {913, "cudaErrorFunctionNotLoaded", nullptr},
    {914, "cudaErrorInvalidResourceType", "invalid resource type"},
    {915, "cudaErrorInvalidResourceConfiguration", "invalid resource configuration"},
    {999, "cudaErrorUnknown", "unknown error"},
    {10000, "cudaErrorApiFailureBase", nullptr},
};

const Row* row(cudaError_t error)
{
    for (const Row& one : ROWS)
        if (one.code == int(error)) return &one;
    return nullptr;
}

const char* text_of(cudaError_t error)
{
    const Row* const found = row(error);
    if (!found) return "unrecognized error code";
    if (found->text) return found->text;
    const char* text = nullptr;
    return cuGetErrorString(CUresult(error), &text) || !text ? found->name : text;
}

thread_local cudaError_t last = cudaSuccess;
thread_local int depth = 0;
thread_local const char* calling;  // the function that the program has called, and from where
thread_local const void* caller;

// The first failure since the program has last asked: a fault at the end if it never does.
struct Failure
{
    cudaError_t error = cudaSuccess;
    const char* function = nullptr;
    const void* site = nullptr;
};
Failure failure;

// Of a kernel that was at fault: that has been told.
bool is_of_kernel(cudaError_t error)
{
    return error >= cudaErrorIllegalAddress && error <= cudaErrorLaunchFailure &&
           error != cudaErrorLaunchOutOfResources;
}

// Whether the code behind a call drops what it has returned: the next instruction neither reads eax nor leads out of
// the function.
bool dropped(const void* site)
{
#ifdef __x86_64__
    auto at = static_cast<const unsigned char*>(site);
    if ((at[0] & 0xf0) == 0x40) at++;  // a prefix
    switch (at[0]) {
    case 0x85: return at[1] != 0xc0;                   // test eax, eax
    case 0x89: return at[1] & 0x38;                    // mov ..., eax
    case 0x83: return at[1] != 0xf8 && at[1] != 0xc4;  // cmp eax, ...; add rsp, ...
    case 0x3d:
    case 0x98:
    case 0xc3:
    case 0xc9:
    case 0x5b:
    case 0x5d: return false;  // cmp eax; cdqe; ret, leave, pop
    default: return true;
    }
#else
    return !site;
#endif
}

void tell_unasked(int status, void*)
{
    if (status || !failure.error || !gpuless_fault) return;
    const std::string text = std::string("fails with '") + text_of(failure.error) + "', and the program never asks";
    gpuless_fault("unasked", text.c_str(), failure.function, failure.site);
}

__attribute__((constructor)) void begin() { on_exit(tell_unasked, nullptr); }

}  // namespace

cudaError_t note(cudaError_t error, const char* function, void* site)
{
    if (!error) return error;
    last = error;
    const bool launched = strstr(function, "aunch");
    if (depth < 2 && !failure.error && error != cudaErrorNotReady && !is_of_kernel(error) &&
        (launched || dropped(site)))
        failure = {error, function, site};
    return error;
}

// A function that is declared and not there: named once.
int refused(const char* function, void* site)
{
    if (gpuless_refuse) gpuless_refuse(function);
    return note(cudaErrorNotSupported, function, site);
}

void tell_misuse(const char* kind, const std::string& text)
{
    if (gpuless_fault) gpuless_fault(kind, text.c_str(), calling, caller);
}

Call::Call(const char* function, const void* site)
{
    if (depth++) return;
    calling = function, caller = site;
    if (gpuless_enter) gpuless_enter(function, site);
}

Call::~Call()
{
    if (!--depth && gpuless_leave) gpuless_leave();
}

}  // namespace cudart

using namespace cudart;

EXPORT cudaError_t cudaGetLastError()
{
    const cudaError_t error = last;
    last = cudaSuccess, failure = {};
    return error;
}

EXPORT cudaError_t cudaPeekAtLastError()
{
    failure = {};
    return last;
}

EXPORT const char* cudaGetErrorName(cudaError_t error)
{
    if (error == failure.error) failure = {};
    const Row* const found = row(error);
    return found ? found->name : "unrecognized error code";
}

EXPORT const char* cudaGetErrorString(cudaError_t error)
{
    if (error == failure.error) failure = {};
    return text_of(error);
}
