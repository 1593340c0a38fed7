// Loops that read plainly first, and then compare and swap: what other threads do meanwhile is seen by the swap.
#include <cstdio>

__device__ double add(double* at, double by)
{
    auto* bits = (unsigned long long*)at;
    unsigned long long old = *bits, assumed;
    do {
        assumed = old;
        old = atomicCAS(bits, assumed, __double_as_longlong(by + __longlong_as_double(assumed)));
    } while (assumed != old);
    return __longlong_as_double(old);
}

__device__ float largest(float* at, float x)
{
    int old = *(int*)at;
    do {
        const int assumed = old;
        if (__int_as_float(old) >= x) break;
        old = atomicCAS((int*)at, assumed, __float_as_int(x));
        if (old == assumed) break;
    } while (true);
    return 0;
}

__device__ float read_in_the_loop(float* at, float by)
{
    int old, next;
    do {
        old = *(volatile int*)at;
        next = __float_as_int(by + __int_as_float(old));
    } while (atomicCAS((int*)at, old, next) != old);
    return __int_as_float(old);
}

__global__ void swaps(double* sum, float* top, float* steps, double* before, float* step)
{
    __shared__ double part[3];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x < 3) part[threadIdx.x] = 0;
    __syncthreads();
    add(part + i % 3, i);
    before[i] = add(sum, i);
    largest(top, float(i * 37 % 101));
    step[i] = read_in_the_loop(steps, 1);
    __syncthreads();
    if (threadIdx.x < 3) add(sum + 1, part[threadIdx.x]);
}

int main()
{
    const int n = 256;
    double h[2], *sum, *before;
    float most, count, *top, *steps, *step;
    cudaMalloc(&sum, sizeof h), cudaMalloc(&before, n * sizeof(double)), cudaMalloc(&top, 4), cudaMalloc(&steps, 4), cudaMalloc(&step, n * 4);
    cudaMemset(sum, 0, sizeof h), cudaMemset(top, 0, 4), cudaMemset(steps, 0, 4);
    swaps<<<4, n / 4>>>(sum, top, steps, before, step);
    cudaMemcpy(h, sum, sizeof h, cudaMemcpyDeviceToHost);
    cudaMemcpy(&most, top, 4, cudaMemcpyDeviceToHost);
    cudaMemcpy(&count, steps, 4, cudaMemcpyDeviceToHost);
    const bool good = h[0] == n * (n - 1) / 2 && h[1] == h[0] && most == 100 && count == n;
    puts(good ? "OK" : "wrong");
    return !good;
}
