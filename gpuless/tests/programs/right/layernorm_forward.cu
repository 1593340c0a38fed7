#include "common.h"
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

void layernorm_cpu(float* out, float* mean, float* rstd, const float* inp, const float* w, const float* b, int N, int C)
{
    for (int n = 0; n < N; n++) {
        const float* x = inp + n * C;
        float m = 0, v = 0;
        for (int i = 0; i < C; i++) m += x[i];
        m /= C;
        for (int i = 0; i < C; i++) v += (x[i] - m) * (x[i] - m);
        float s = 1.0f / sqrtf(v / C + 1e-5f);
        for (int i = 0; i < C; i++) out[n * C + i] = s * (x[i] - m) * w[i] + b[i];
        mean[n] = m, rstd[n] = s;
    }
}

__global__ void layernorm_kernel1(float* out, float* mean, float* rstd, const float* inp, const float* w, const float* b, int N, int C)
{
    int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= N) return;
    const float* x = inp + n * C;
    float m = 0.0f, v = 0.0f;
    for (int i = 0; i < C; i++) m += x[i];
    m /= C;
    for (int i = 0; i < C; i++) { float d = x[i] - m; v += d * d; }
    float s = 1.0f / sqrtf(v / C + 1e-5f);
    for (int i = 0; i < C; i++) out[n * C + i] = s * (x[i] - m) * w[i] + b[i];
    mean[n] = m;
    rstd[n] = s;
}

__global__ void layernorm_kernel2(float* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, const float* __restrict__ inp,
                                  const float* __restrict__ w, const float* __restrict__ b, int N, int C)
{
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    int n = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (n >= N) return;
    const float* x = inp + n * C;
    float sum = 0.0f, squares = 0.0f;
    for (int i = warp.thread_rank(); i < C; i += warp.size()) sum += x[i], squares += x[i] * x[i];
    sum = cg::reduce(warp, sum, cg::plus<float>{});
    squares = cg::reduce(warp, squares, cg::plus<float>{});
    float m = sum / C, s = rsqrtf(squares / C - m * m + 1e-5f);
    if (warp.thread_rank() == 0) __stcs(mean + n, m), __stcs(rstd + n, s);
    for (int i = warp.thread_rank(); i < C; i += warp.size()) __stcs(out + n * C + i, s * (__ldcs(x + i) - m) * w[i] + b[i]);
}

void layernorm_forward1(float* out, float* mean, float* rstd, const float* inp, const float* w, const float* b, int N, int C, const int block_size)
{
    layernorm_kernel1<<<ceil_div(N, block_size), block_size>>>(out, mean, rstd, inp, w, b, N, C);
    cudaCheck(cudaGetLastError());
}
void layernorm_forward2(float* out, float* mean, float* rstd, const float* inp, const float* w, const float* b, int N, int C, const int block_size)
{
    layernorm_kernel2<<<ceil_div(N * 32, block_size), block_size>>>(out, mean, rstd, inp, w, b, N, C);
    cudaCheck(cudaGetLastError());
}
void layernorm_forward(int kernel_num, float* out, float* mean, float* rstd, const float* inp, const float* w, const float* b, int N, int C, int block_size)
{
    switch (kernel_num) {
        case 1: layernorm_forward1(out, mean, rstd, inp, w, b, N, C, block_size); break;
        case 2: layernorm_forward2(out, mean, rstd, inp, w, b, N, C, block_size); break;
        default: printf("Invalid kernel number\n"); exit(1);
    }
}

int main(int argc, char** argv)
{
    srand(0);
    int N = 33, C = 70;
    float *inp = make_random_float(N * C), *w = make_random_float(C), *b = make_random_float(C);
    float *out = (float*)malloc(N * C * 4), *mean = (float*)malloc(N * 4), *rstd = (float*)malloc(N * 4);
    layernorm_cpu(out, mean, rstd, inp, w, b, N, C);
    float *d_inp = to_device(inp, N * C), *d_w = to_device(w, C), *d_b = to_device(b, C), *d_out, *d_mean, *d_rstd;
    cudaCheck(cudaMalloc(&d_out, N * C * sizeof(float)));
    cudaCheck(cudaMalloc(&d_mean, N * sizeof(float)));
    cudaCheck(cudaMalloc(&d_rstd, N * sizeof(float)));
    int block_sizes[] = {32, 128, 256};
    for (int kernel_num = 1; kernel_num <= 2; kernel_num++)
        for (int block_size : block_sizes) {
            cudaCheck(cudaMemset(d_out, 0, N * C * sizeof(float)));
            layernorm_forward(kernel_num, d_out, d_mean, d_rstd, d_inp, d_w, d_b, N, C, block_size);
            validate_result(d_out, out, "out", N * C, 1e-3f);
            validate_result(d_mean, mean, "mean", N, 1e-4f);
            validate_result(d_rstd, rstd, "rstd", N, 1e-3f);
            float ms = benchmark_kernel(2, layernorm_forward, kernel_num, d_out, d_mean, d_rstd, d_inp, d_w, d_b, N, C, block_size);
            printf("kernel %d block_size %4d: %.4f ms\n", kernel_num, block_size, ms);
        }
    printf("OK\n");
    free(inp), free(w), free(b), free(out), free(mean), free(rstd);
    for (float* p : {d_inp, d_w, d_b, d_out, d_mean, d_rstd}) cudaCheck(cudaFree(p));
    return 0;
}
