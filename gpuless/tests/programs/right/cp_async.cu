// Two stages in shared memory, filled by cp.async; addresses and waits in inline PTX.
#include <cstdint>
#include <cstdio>
#include <vector>
#define CP_ASYNC_CG(dst, src, bytes) asm volatile("cp.async.cg.shared.global [%0], [%1], %2;\n" ::"r"(dst), "l"(src), "n"(bytes))
#define CP_ASYNC_COMMIT_GROUP() asm volatile("cp.async.commit_group;\n" ::)
#define CP_ASYNC_WAIT_GROUP(n) asm volatile("cp.async.wait_group %0;\n" ::"n"(n))
__global__ void sum_tiles(const float* x, float* out, int tiles)
{
    __shared__ alignas(16) float s[2][128];
    auto load = [&](int tile) {
        if (threadIdx.x < 32) {
            uint32_t to = (uint32_t)__cvta_generic_to_shared(&s[tile % 2][threadIdx.x * 4]);
            CP_ASYNC_CG(to, x + tile * 128 + threadIdx.x * 4, 16);
        }
        CP_ASYNC_COMMIT_GROUP();
    };
    float sum = 0;
    load(0);
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) { load(tile + 1); CP_ASYNC_WAIT_GROUP(1); }
        else CP_ASYNC_WAIT_GROUP(0);
        __syncthreads();
        sum += s[tile % 2][threadIdx.x];
        __syncthreads();
    }
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    out[threadIdx.x] = sum + lane * 0;
}
int main()
{
    const int tiles = 5;
    std::vector<float> h(tiles * 128), r(128);
    for (int i = 0; i < tiles * 128; i++) h[i] = i;
    float *x, *out;
    cudaMalloc(&x, h.size() * 4), cudaMalloc(&out, 128 * 4), cudaMemcpy(x, h.data(), h.size() * 4, cudaMemcpyHostToDevice);
    sum_tiles<<<1, 128>>>(x, out, tiles);
    cudaMemcpy(r.data(), out, 128 * 4, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 128; i++) if (r[i] != 5 * i + 1280) return printf("%d: %f\n", i, r[i]), 1;
    puts("OK");
}
