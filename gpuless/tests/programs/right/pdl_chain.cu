// A chain of dependent launches: each starts early and waits for the one ahead before it reads.
#include <cstdio>
#include <vector>
__global__ void step(const int* in, int* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    cudaTriggerProgrammaticLaunchCompletion();
    int own = i * 2;
    cudaGridDependencySynchronize();
    if (i < n) out[i] = in[i] + own;
}
int main()
{
    const int n = 256, steps = 5;
    int* buffers[2];
    cudaMalloc(&buffers[0], n * 4), cudaMalloc(&buffers[1], n * 4);
    cudaMemset(buffers[0], 0, n * 4);
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cudaDeviceSynchronize();
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(2), config.blockDim = dim3(128), config.stream = stream, config.attrs = &attribute, config.numAttrs = 1;
    for (int s = 0; s < steps; s++) {
        cudaError_t e = cudaLaunchKernelEx(&config, step, (const int*)buffers[s % 2], buffers[(s + 1) % 2], n);
        if (e != cudaSuccess) return printf("%s\n", cudaGetErrorString(e)), 1;
    }
    std::vector<int> r(n);
    cudaStreamSynchronize(stream);
    cudaMemcpy(r.data(), buffers[steps % 2], n * 4, cudaMemcpyDeviceToHost);
    for (int i = 0; i < n; i++) if (r[i] != 10 * i) return printf("wrong at %d: %d\n", i, r[i]), 1;
    printf("OK\n");
}
