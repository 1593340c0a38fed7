#include <cmath>
#include <cstdio>
__device__ unsigned lcg(unsigned& state) { return state = state * 1664525u + 1013904223u; }
__global__ void throw_darts(unsigned long long* inside, int per_thread)
{
    unsigned state = (blockIdx.x * blockDim.x + threadIdx.x) * 7919u + 17u, hits = 0;
    for (int i = 0; i < per_thread; i++) {
        float x = (lcg(state) >> 8) * 0x1p-24f, y = (lcg(state) >> 8) * 0x1p-24f;
        hits += x * x + y * y <= 1.0f;
    }
    hits = __reduce_add_sync(~0u, hits);
    if (threadIdx.x % warpSize == 0) atomicAdd(inside, (unsigned long long)hits);
}
int main()
{
    unsigned long long *d, h;
    cudaMalloc(&d, sizeof *d), cudaMemset(d, 0, sizeof *d);
    throw_darts<<<8, 64>>>(d, 100);
    cudaMemcpy(&h, d, sizeof h, cudaMemcpyDeviceToHost);
    double pi = 4.0 * h / (8 * 64 * 100);
    printf("%f %s\n", pi, std::abs(pi - M_PI) < 0.05 ? "OK" : "wrong");
}
