// One pass: each block takes a ticket, publishes its sum, and adds up what is before it.
#include <cstdio>
#include <vector>
__device__ unsigned ticket;
struct State { unsigned flag; int sum, prefix; };
__global__ void scan(const int* in, int* out, volatile State* states, int n)
{
    __shared__ unsigned part;
    __shared__ int warps[8], before;
    if (threadIdx.x == 0) part = atomicAdd(&ticket, 1);
    __syncthreads();
    int i = part * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, x = i < n ? in[i] : 0;
    for (int d = 1; d < 32; d *= 2) { int y = __shfl_up_sync(~0u, x, d); if (lane >= d) x += y; }
    if (lane == 31) warps[warp] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        int total = 0;
        for (int w = 0; w < (int)blockDim.x / 32; w++) { int t = warps[w]; warps[w] = total; total += t; }
        states[part].sum = total;
        __threadfence();
        states[part].flag = 1;
        int sum = 0;
        for (int p = (int)part - 1; p >= 0; p--) {
            unsigned flag;
            while ((flag = states[p].flag) == 0) {}
            __threadfence();
            if (flag == 2) { sum += states[p].prefix; break; }
            sum += states[p].sum;
        }
        before = sum;
        states[part].prefix = sum + total;
        __threadfence();
        states[part].flag = 2;
    }
    __syncthreads();
    if (i < n) out[i] = x + warps[warp] + before;
}
int main()
{
    const int n = 2000, threads = 128, blocks = (n + threads - 1) / threads;
    std::vector<int> h(n), r(n);
    for (int i = 0; i < n; i++) h[i] = i % 7 - 2;
    int *in, *out; State* states;
    cudaMalloc(&in, n * 4), cudaMalloc(&out, n * 4), cudaMalloc(&states, blocks * sizeof(State));
    cudaMemset(states, 0, blocks * sizeof(State));
    cudaMemcpy(in, h.data(), n * 4, cudaMemcpyHostToDevice);
    scan<<<blocks, threads>>>(in, out, states, n);
    cudaMemcpy(r.data(), out, n * 4, cudaMemcpyDeviceToHost);
    int sum = 0;
    for (int i = 0; i < n; i++) if (r[i] != (sum += h[i])) return printf("wrong at %d\n", i), 1;
    printf("OK\n");
}
