// A chain of three kernels by programmatic dependent launch, captured into a graph as well.
#include <cuda_runtime.h>
#include <stdio.h>
#include <vector>
#define CK(x) { auto e = (x); if (e) { printf("%s line %d\n", cudaGetErrorString(e), __LINE__); return 1; } }
__global__ void produce(float* a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] = i * 0.5f;
    cudaTriggerProgrammaticLaunchCompletion();
}
__global__ void scale(const float* a, float* b, int n, float s)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    cudaGridDependencySynchronize();
    if (i < n) b[i] = a[i] * s;
    cudaTriggerProgrammaticLaunchCompletion();
}
template <int BLOCK> __global__ void total(const float* b, float* out, int n)
{
    __shared__ float part[BLOCK];
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
    float s = 0;
    for (int i = threadIdx.x; i < n; i += BLOCK) s += b[i];
    part[threadIdx.x] = s;
    __syncthreads();
    for (int w = BLOCK / 2; w > 0; w /= 2) {
        if (threadIdx.x < w) part[threadIdx.x] += part[threadIdx.x + w];
        __syncthreads();
    }
    if (!threadIdx.x) *out = part[0];
}
template <typename... Expected, typename... Actual>
cudaError_t launch_pdl(cudaStream_t stream, dim3 grid, dim3 block, void (*kernel)(Expected...), Actual&&... args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = block, config.stream = stream;
    cudaLaunchAttribute attr[1];
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attr, config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, std::forward<Actual>(args)...);
}
int main()
{
    const int n = 2000;
    float *a, *b, *out, got = 0;
    cudaStream_t stream;
    CK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CK(cudaMallocAsync(&a, n * 4, stream)); CK(cudaMallocAsync(&b, n * 4, stream)); CK(cudaMallocAsync(&out, 4, stream));
    CK(cudaStreamSynchronize(stream));
    auto chain = [&]() -> int {
        CK(launch_pdl(stream, dim3((n + 127) / 128), dim3(128), produce, a, n));
        CK(launch_pdl(stream, dim3((n + 127) / 128), dim3(128), scale, a, b, n, 2.0f));
        CK(launch_pdl(stream, dim3(1), dim3(256), total<256>, b, out, n));
        return 0;
    };
    if (chain()) return 1;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (chain()) return 1;
    CK(cudaStreamEndCapture(stream, &graph));
    CK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) CK(cudaGraphLaunch(exec, stream));
    CK(cudaMemcpyAsync(&got, out, 4, cudaMemcpyDeviceToHost, stream));
    CK(cudaStreamSynchronize(stream));
    CK(cudaGraphExecDestroy(exec)); CK(cudaGraphDestroy(graph));
    CK(cudaFreeAsync(a, stream)); CK(cudaFreeAsync(b, stream)); CK(cudaFreeAsync(out, stream));
    CK(cudaStreamDestroy(stream));
    puts(got == 1999.0f * 1000.0f ? "OK" : "FAILED");
    return got != 1999.0f * 1000.0f;
}
