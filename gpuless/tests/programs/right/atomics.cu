#include <cstdio>
__global__ void operate(int* g)
{
    const unsigned tid = blockDim.x * blockIdx.x + threadIdx.x;
    atomicAdd(&g[0], 10), atomicSub(&g[1], 10), atomicExch(&g[2], tid), atomicMax(&g[3], tid), atomicMin(&g[4], tid);
    atomicInc((unsigned*)&g[5], 17), atomicDec((unsigned*)&g[6], 137), atomicCAS(&g[7], tid - 1, tid);
    atomicAnd(&g[8], 2 * tid + 7), atomicOr(&g[9], 1 << tid % 31), atomicXor(&g[10], tid);
    int old, assumed;  // a loop of compare-and-swap
    old = atomicAdd(&g[11], 0);
    do { assumed = old; old = atomicCAS(&g[11], assumed, assumed + 3); } while (assumed != old);
}
int main()
{
    const int threads = 128;
    int h[12] = {0, 0, 0, -1 << 30, 1 << 30, 0, 0, 0, 0xff, 0, 0xff, 0}, *d;
    cudaMalloc(&d, sizeof h), cudaMemcpy(d, h, sizeof h, cudaMemcpyHostToDevice);
    operate<<<4, threads / 4>>>(d);
    cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);
    bool good = h[0] == 10 * threads && h[1] == -10 * threads && h[2] >= 0 && h[2] < threads && h[3] == threads - 1 && h[4] == 0;
    good &= h[5] == threads % 18 && h[9] == 0x7fffffff && h[11] == 3 * threads;
    puts(good ? "OK" : "wrong");
    return !good;
}
