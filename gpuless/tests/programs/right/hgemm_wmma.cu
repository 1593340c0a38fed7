#include <cstdio>
#include <cuda_fp16.h>
#include <mma.h>
#include <vector>
using namespace nvcuda;
template <const int WMMA_M = 16, const int WMMA_N = 16, const int WMMA_K = 16>
__global__ void hgemm_wmma_m16n16k16_naive_kernel(half* A, half* B, float* C, int M, int N, int K)
{
    const int load_gmem_a_m = blockIdx.y * WMMA_M, load_gmem_b_n = blockIdx.x * WMMA_N;
    if (load_gmem_a_m >= M && load_gmem_b_n >= N) return;
    wmma::fragment<wmma::accumulator, WMMA_M, WMMA_N, WMMA_K, float> C_frag;
    wmma::fill_fragment(C_frag, 0.0f);
    for (int k = 0; k < K / WMMA_K; ++k) {
        wmma::fragment<wmma::matrix_a, WMMA_M, WMMA_N, WMMA_K, half, wmma::row_major> A_frag;
        wmma::fragment<wmma::matrix_b, WMMA_M, WMMA_N, WMMA_K, half, wmma::row_major> B_frag;
        wmma::load_matrix_sync(A_frag, A + load_gmem_a_m * K + k * WMMA_K, K);
        wmma::load_matrix_sync(B_frag, B + (k * WMMA_K) * N + load_gmem_b_n, N);
        wmma::mma_sync(C_frag, A_frag, B_frag, C_frag);
    }
    wmma::store_matrix_sync(C + load_gmem_a_m * N + load_gmem_b_n, C_frag, N, wmma::mem_row_major);
}
int main()
{
    const int M = 32, N = 48, K = 32;
    std::vector<half> a(M * K), b(K * N);
    std::vector<float> c(M * N);
    for (int i = 0; i < M * K; i++) a[i] = half(float(i % 7 - 3));
    for (int i = 0; i < K * N; i++) b[i] = half(float(i % 5 - 2));
    half *da, *db; float* dc;
    cudaMalloc(&da, M * K * 2), cudaMalloc(&db, K * N * 2), cudaMalloc(&dc, M * N * 4);
    cudaMemcpy(da, a.data(), M * K * 2, cudaMemcpyHostToDevice), cudaMemcpy(db, b.data(), K * N * 2, cudaMemcpyHostToDevice);
    hgemm_wmma_m16n16k16_naive_kernel<16, 16, 16><<<dim3(N / 16, M / 16), dim3(32)>>>(da, db, dc, M, N, K);
    cudaMemcpy(c.data(), dc, M * N * 4, cudaMemcpyDeviceToHost);
    for (int i = 0; i < M * N; i++) {
        float s = 0;
        for (int k = 0; k < K; k++) s += float(i / N * K + k) * 0 + float((i / N * K + k) % 7 - 3) * float((k * N + i % N) % 5 - 2);
        if (c[i] != s) return printf("%d: %f, not %f\n", i, c[i], s), 1;
    }
    puts("OK");
}
