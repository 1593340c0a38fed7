#include <cstdio>
#include <vector>
__device__ unsigned int retirementCount = 0;
__device__ volatile float partial[64];
__global__ void reduceSinglePass(const float* in, float* out, unsigned n)
{
    __shared__ float s[128];
    __shared__ bool amLast;
    float sum = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    s[threadIdx.x] = sum;
    __syncthreads();
    for (int k = blockDim.x / 2; k; k >>= 1) { if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k]; __syncthreads(); }
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = s[0];
        __threadfence();
        unsigned int ticket = atomicInc(&retirementCount, gridDim.x);
        amLast = (ticket == gridDim.x - 1);
    }
    __syncthreads();
    if (amLast) {
        __threadfence();
        if (threadIdx.x == 0) {
            float total = 0;
            for (int i = 0; i < gridDim.x; i++) total += partial[i];
            *out = total;
            retirementCount = 0;
        }
    }
}
int main()
{
    const unsigned n = 6000;
    std::vector<float> h(n, 0.25f);
    float *in, *out, r = 0;
    cudaMalloc(&in, n * 4), cudaMalloc(&out, 4), cudaMemcpy(in, h.data(), n * 4, cudaMemcpyHostToDevice);
    for (int i = 0; i < 2; i++) {
        cudaMemset(out, 0, 4);
        reduceSinglePass<<<7, 128>>>(in, out, n);
        cudaMemcpy(&r, out, sizeof r, cudaMemcpyDeviceToHost);
        if (r != n / 4) return printf("%f\n", r), 1;
    }
    puts("OK");
}
