#include <cstdio>
#include <utility>
#include <vector>
#define IDX(r, c) ((r) * N + (c))
constexpr int N = 34;
__global__ void jacobi(double* next, const double* now, double* error)
{
    __shared__ double worst[256];
    int c = blockIdx.x * 16 + threadIdx.x + 1, r = blockIdx.y * 16 + threadIdx.y + 1, t = threadIdx.y * 16 + threadIdx.x;
    double change = 0;
    if (r < N - 1 && c < N - 1) {
        double v = 0.25 * (now[IDX(r - 1, c)] + now[IDX(r + 1, c)] + now[IDX(r, c - 1)] + now[IDX(r, c + 1)]);
        change = fabs(v - now[IDX(r, c)]);
        next[IDX(r, c)] = v;
    }
    worst[t] = change;
    for (int k = 128; k > 0; k /= 2) { __syncthreads(); if (t < k) worst[t] = fmax(worst[t], worst[t + k]); }
    if (t == 0) atomicMax((unsigned long long*)error, (unsigned long long)__double_as_longlong(worst[0]));
}
int main()
{
    std::vector<double> h(N * N), r(N * N);
    for (int i = 0; i < N; i++) h[IDX(0, i)] = 100;
    double *a, *b, *e, error;
    cudaMalloc(&a, sizeof(double) * N * N), cudaMalloc(&b, sizeof(double) * N * N), cudaMalloc(&e, sizeof(double));
    cudaMemcpy(a, h.data(), sizeof(double) * N * N, cudaMemcpyHostToDevice), cudaMemcpy(b, a, sizeof(double) * N * N, cudaMemcpyDeviceToDevice);
    for (int step = 0; step < 10; step++) {
        cudaMemsetAsync(e, 0, sizeof(double));
        jacobi<<<dim3(2, 2), dim3(16, 16)>>>(b, a, e);
        std::swap(a, b);
        std::vector<double> old = h;
        for (int y = 1; y < N - 1; y++) for (int x = 1; x < N - 1; x++) h[IDX(y, x)] = 0.25 * (old[IDX(y - 1, x)] + old[IDX(y + 1, x)] + old[IDX(y, x - 1)] + old[IDX(y, x + 1)]);
    }
    cudaMemcpy(r.data(), a, sizeof(double) * N * N, cudaMemcpyDeviceToHost), cudaMemcpy(&error, e, sizeof(double), cudaMemcpyDeviceToHost);
    puts(r == h && error > 0 ? "OK" : "wrong");
}
