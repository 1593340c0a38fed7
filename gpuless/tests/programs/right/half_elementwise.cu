#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector>
#define HALF2(value) (reinterpret_cast<half2*>(&(value))[0])
#define LDST128BITS(value) (reinterpret_cast<float4*>(&(value))[0])
__global__ void elementwise_add_f16x2_kernel(half* a, half* b, half* c, int N)
{
    int idx = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (idx < N) {
        half2 reg_a = HALF2(a[idx]), reg_b = HALF2(b[idx]), reg_c;
        reg_c.x = __hadd(reg_a.x, reg_b.x), reg_c.y = __hadd(reg_a.y, reg_b.y);
        HALF2(c[idx]) = reg_c;
    }
}
__global__ void elementwise_add_f16x8_pack_kernel(half* a, half* b, half* c, int N)
{
    int idx = 8 * (blockIdx.x * blockDim.x + threadIdx.x);
    half pack_a[8], pack_b[8], pack_c[8];
    if (idx + 7 >= N) return;
    LDST128BITS(pack_a[0]) = LDST128BITS(a[idx]), LDST128BITS(pack_b[0]) = LDST128BITS(b[idx]);
#pragma unroll
    for (int i = 0; i < 8; i += 2) HALF2(pack_c[i]) = __hadd2(HALF2(pack_a[i]), HALF2(pack_b[i]));
    LDST128BITS(c[idx]) = LDST128BITS(pack_c[0]);
}
int main()
{
    const int n = 512;
    std::vector<half> a(n), b(n), c(n);
    for (int i = 0; i < n; i++) a[i] = __float2half(i * 0.25f), b[i] = __float2half(1.5f);
    half *da, *db, *dc;
    for (half** p : {&da, &db, &dc}) cudaMalloc(p, n * sizeof(half));
    cudaMemcpy(da, a.data(), n * 2, cudaMemcpyHostToDevice), cudaMemcpy(db, b.data(), n * 2, cudaMemcpyHostToDevice);
    for (int kernel = 0; kernel < 2; kernel++) {
        cudaMemset(dc, 0, n * 2);
        if (kernel) elementwise_add_f16x8_pack_kernel<<<n / 8 / 32, 32>>>(da, db, dc, n);
        else elementwise_add_f16x2_kernel<<<n / 2 / 64, 64>>>(da, db, dc, n);
        cudaMemcpy(c.data(), dc, n * 2, cudaMemcpyDeviceToHost);
        for (int i = 0; i < n; i++) if (__half2float(c[i]) != i * 0.25f + 1.5f) return printf("kernel %d at %d: %f\n", kernel, i, __half2float(c[i])), 1;
    }
    puts(__bfloat162float(__float2bfloat16(1.0f)) == 1.0f ? "OK" : "bfloat16");
}
