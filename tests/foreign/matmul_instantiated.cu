#define TS 16
// C = A * W^T + b, A: MxK, W: NxK
template <bool BIAS>
__global__ __launch_bounds__(TS * TS) void linear_tiled(const float* __restrict__ A, const float* __restrict__ W, const float* __restrict__ bias, float* __restrict__ C, int M, int N, int K) {
  __shared__ float As[TS][TS], Ws[TS][TS + 1];
  const int row = blockIdx.y * TS + threadIdx.y, col = blockIdx.x * TS + threadIdx.x;
  float acc = 0.f;
  for (int k0 = 0; k0 < K; k0 += TS) {
    As[threadIdx.y][threadIdx.x] = (row < M && k0 + threadIdx.x < K) ? A[row * K + k0 + threadIdx.x] : 0.f;
    int n = blockIdx.x * TS + threadIdx.y;
    Ws[threadIdx.y][threadIdx.x] = (n < N && k0 + threadIdx.x < K) ? W[n * K + k0 + threadIdx.x] : 0.f;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TS; ++k) acc += As[threadIdx.y][k] * Ws[threadIdx.x][k];
    __syncthreads();
  }
  if (row < M && col < N) C[row * N + col] = BIAS ? acc + bias[col] : acc;
}
template __global__ void linear_tiled<true>(const float*, const float*, const float*, float*, int, int, int);
