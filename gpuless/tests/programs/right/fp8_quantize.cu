#include <cuda_fp8.h>
#include <cuda_fp16.h>
#include <cstdio>
#include <cmath>
__global__ void quantize(const float* x, __nv_fp8_e4m3* q, __nv_fp8_e5m2* r, float scale, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) q[i] = __nv_fp8_e4m3(x[i] * scale), r[i] = __nv_fp8_e5m2(x[i]);
}
__global__ void dequantize(const __nv_fp8_e4m3* q, float* y, float scale, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = float(q[i]) / scale;
}
__global__ void pairs(const float2* x, __nv_fp8x2_storage_t* out, __half2* back) { out[threadIdx.x] = __nv_cvt_float2_to_fp8x2(x[threadIdx.x], __NV_SATFINITE, __NV_E4M3); back[threadIdx.x] = __half2(__nv_cvt_fp8x2_to_halfraw2(out[threadIdx.x], __NV_E4M3)); }
int main()
{
    const int n = 300;
    float h[n], *x, *y; __nv_fp8_e4m3* q; __nv_fp8_e5m2* r; __nv_fp8x2_storage_t* p; __half2* b, hb[32];
    for (int i = 0; i < n; i++) h[i] = (i - 150) * 0.37f;
    cudaMalloc(&x, sizeof h), cudaMalloc(&y, sizeof h), cudaMalloc(&q, n), cudaMalloc(&r, n), cudaMalloc(&p, 64), cudaMalloc(&b, 128);
    cudaMemcpy(x, h, sizeof h, cudaMemcpyHostToDevice);
    quantize<<<3, 128>>>(x, q, r, 4.0f, n);
    dequantize<<<3, 128>>>(q, y, 4.0f, n);
    pairs<<<1, 32>>>((float2*)x, p, b);
    float g[n];
    cudaMemcpy(g, y, sizeof g, cudaMemcpyDeviceToHost), cudaMemcpy(hb, b, 128, cudaMemcpyDeviceToHost);
    bool ok = true;
    for (int i = 0; i < n; i++) ok &= fabs(g[i] - h[i]) <= fabs(h[i]) / 16 + 1e-6;
    for (int i = 0; i < 32; i++) ok &= fabs(__half2float(hb[i].x) - h[2 * i]) <= fabs(h[2 * i]) / 16 && fabs(__half2float(hb[i].y) - h[2 * i + 1]) <= fabs(h[2 * i + 1]) / 16;
    for (void* v : {(void*)x, (void*)y, (void*)q, (void*)r, (void*)p, (void*)b}) cudaFree(v);
    puts(ok ? "OK" : "FAILED");
    return !ok;
}
