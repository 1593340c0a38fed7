#include "common.h"

__device__ float warp_sum(float x)
{
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xFFFFFFFF, x, offset);
    return x;
}

__global__ void layernorm_backward_kernel(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp, const float* weight,
                                          const float* mean, const float* rstd, int N, int C)
{
    extern __shared__ float shared[];
    float *dbias_shared = shared, *dweight_shared = shared + C;
    for (int i = threadIdx.x; i < C; i += blockDim.x) dbias_shared[i] = 0.0f, dweight_shared[i] = 0.0f;
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = blockIdx.x * (blockDim.x / 32) + warp;
    if (n < N) {
        const float *dy = dout + n * C, *x = inp + n * C;
        float a = 0.0f, b = 0.0f;
        for (int i = lane; i < C; i += 32) {
            float norm = (x[i] - mean[n]) * rstd[n], d = weight[i] * dy[i];
            a += d, b += d * norm;
        }
        a = warp_sum(a) / C, b = warp_sum(b) / C;
        for (int i = lane; i < C; i += 32) {
            float norm = (x[i] - mean[n]) * rstd[n], d = weight[i] * dy[i];
            atomicAdd(&dbias_shared[i], dy[i]);
            atomicAdd(&dweight_shared[i], norm * dy[i]);
            dinp[n * C + i] += (d - a - norm * b) * rstd[n];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < C; i += blockDim.x) atomicAdd(&dbias[i], dbias_shared[i]), atomicAdd(&dweight[i], dweight_shared[i]);
}

int main()
{
    const int N = 21, C = 48;
    float *inp = make_random_float(N * C), *w = make_random_float(C), *dout = make_random_float(N * C);
    float mean[N], rstd[N], dx[N * C], dw[C] = {}, db[C] = {};
    for (int n = 0; n < N; n++) {
        double m = 0, v = 0, a = 0, b = 0;
        for (int i = 0; i < C; i++) m += inp[n * C + i] / C;
        for (int i = 0; i < C; i++) v += (inp[n * C + i] - m) * (inp[n * C + i] - m) / C;
        mean[n] = m, rstd[n] = 1 / sqrt(v + 1e-5);
        for (int i = 0; i < C; i++) a += w[i] * dout[n * C + i] / C, b += w[i] * dout[n * C + i] * (inp[n * C + i] - m) * rstd[n] / C;
        for (int i = 0; i < C; i++) {
            float norm = (inp[n * C + i] - m) * rstd[n];
            dx[n * C + i] = (w[i] * dout[n * C + i] - a - norm * b) * rstd[n];
            dw[i] += norm * dout[n * C + i], db[i] += dout[n * C + i];
        }
    }
    float *d_inp = to_device(inp, N * C), *d_w = to_device(w, C), *d_dout = to_device(dout, N * C), *d_mean = to_device(mean, N), *d_rstd = to_device(rstd, N);
    float *d_dx, *d_dw, *d_db;
    cudaCheck(cudaMalloc(&d_dx, N * C * sizeof(float)));
    cudaCheck(cudaMalloc(&d_dw, C * sizeof(float)));
    cudaCheck(cudaMalloc(&d_db, C * sizeof(float)));
    for (int block : {64, 128}) {
        cudaCheck(cudaMemset(d_dx, 0, N * C * sizeof(float)));
        cudaCheck(cudaMemset(d_dw, 0, C * sizeof(float)));
        cudaCheck(cudaMemset(d_db, 0, C * sizeof(float)));
        layernorm_backward_kernel<<<ceil_div(N * 32, block), block, 2 * C * sizeof(float)>>>(d_dx, d_dw, d_db, d_dout, d_inp, d_w, d_mean, d_rstd, N, C);
        cudaCheck(cudaGetLastError());
        validate_result(d_dx, dx, "dinp", N * C, 1e-3f);
        validate_result(d_dw, dw, "dweight", C, 1e-3f);
        validate_result(d_db, db, "dbias", C, 1e-3f);
    }
    printf("OK\n");
}
