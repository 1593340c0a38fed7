// A dependent launch that reads what the one ahead may still write.
__global__ void step(const int* in, int* out)
{
    cudaTriggerProgrammaticLaunchCompletion();
    out[threadIdx.x] = in[threadIdx.x] + 1;  // fault: race
    cudaGridDependencySynchronize();
}
int main()
{
    int* x[2];
    cudaMalloc(&x[0], 128), cudaMalloc(&x[1], 128);
    cudaMemset(x[0], 0, 128);
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = 1, config.blockDim = 32, config.attrs = &attribute, config.numAttrs = 1;
    for (int i = 0; i < 3; i++) cudaLaunchKernelEx(&config, step, (const int*)x[i % 2], x[1 - i % 2]);
    cudaDeviceSynchronize();
}
